//! What processes say to each other: a line that tells what it is, then JSON.

use crate::error::Reason;
use mk_core::{Caps, Meeting, Rank};
use serde::{Deserialize, Serialize};

/// The version of the protocol.
pub(crate) const VERSION: u32 = 1;

/// How each message begins; the version and a line feed follow.
const MAGIC: &[u8] = b"mk-nvlink ";

/// Most bytes of a message: the texts of a reason, each control character of which takes six, and the memory of as many ranks as
/// a process may have, take less.
pub(crate) const MESSAGE_BYTES: usize = 64 * 1024;

/// One message. Descriptors go with [`Message::Given`] only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Message {
    /// Of a guest, first of all.
    Hello(Hello),
    /// Memory of a process, by rank: to the host, and from it to all others.
    Given(Vec<Given>),
    /// Of a guest: all is mapped.
    Done,
    /// Of a guest: it cannot go on.
    Failed(Reason),
    /// Of the host: it is over. Without a reason, all is well.
    Verdict(Option<Reason>),
}

/// Who comes, and what for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Hello {
    pub(crate) purpose: Purpose,
    /// The lowest first.
    pub(crate) ranks: Vec<Rank>,
    /// How long it will wait.
    pub(crate) patience_ms: u64,
}

/// What all processes of a meeting have to agree on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Purpose {
    /// In hexadecimal.
    pub(crate) key: String,
    /// In words, with a hash of all of it.
    pub(crate) topology: String,
    /// On each rank.
    pub(crate) bytes: u64,
    /// What plans may rely on: who offers less would be misread.
    pub(crate) offers: String,
}

/// Memory of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Given {
    pub(crate) rank: Rank,
    /// Of the allocation, as its owner's driver counts.
    pub(crate) bytes: u64,
    /// The GPU that it is on.
    pub(crate) gpu: String,
}

/// Why bytes are no message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// Nothing of ours.
    Stranger,
    /// Of another version.
    Version(String),
    /// Of ours, and broken.
    Garbled(String),
}

impl Purpose {
    pub(crate) fn of(meeting: &Meeting, offers: Caps) -> Purpose {
        let (topology, bytes) = (&meeting.topology, meeting.bytes);
        let hash = blake3::hash(topology.to_toml().as_bytes()).to_hex();
        let topology = format!("{} ranks ({})", topology.size(), &hash[..16]);
        let key = blake3::Hash::from_bytes(meeting.key).to_hex().to_string();
        Purpose { key, topology, bytes, offers: offers.to_string() }
    }

    /// What is not the same: its name, what this has, what the other has.
    pub(crate) fn differs(&self, other: &Purpose) -> Option<(&'static str, String, String)> {
        let bytes = |p: &Purpose| format!("{} bytes on each rank", p.bytes);
        let all = [
            ("topology", self.topology.clone(), other.topology.clone()),
            ("size of memory", bytes(self), bytes(other)),
            ("set of capabilities", self.offers.clone(), other.offers.clone()),
        ];
        all.into_iter().find(|(_, own, others)| own != others)
    }
}

impl Message {
    /// As bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = [MAGIC, VERSION.to_string().as_bytes(), b"\n"].concat();
        serde_json::to_writer(&mut bytes, self).expect("structs of numbers and texts are JSON");
        bytes
    }

    /// From bytes that anybody may have sent.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Message, Unread> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(Unread::Stranger)?;
        let end = rest.iter().position(|b| *b == b'\n').ok_or(Unread::Stranger)?;
        let version = String::from_utf8_lossy(&rest[..end]);
        if version != VERSION.to_string() {
            return Err(Unread::Version(version.chars().take(32).collect()));
        }
        serde_json::from_slice(&rest[end + 1..]).map_err(|e| Unread::Garbled(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mk_core::Topology;
    use proptest::prelude::*;
    use std::time::Duration;

    fn purpose(ranks: u64, bytes: u64) -> Purpose {
        let (topology, bound) = (Topology::single_node(ranks).unwrap(), Duration::from_secs(1));
        let meeting = Meeting { topology, own: vec![(Rank(0), 0)], folder: None, key: [9; 32], bytes, bound };
        Purpose::of(&meeting, Caps::PUT | Caps::GET)
    }

    fn reason() -> Reason {
        let text = || "\u{1}".repeat(2048);
        Reason { rank: Rank(u16::MAX), message: text(), given: text(), allowed: text(), hint: String::new() }
    }

    #[test]
    fn messages_are_read_as_they_were_written_and_the_largest_one_fits() {
        let hello = Hello { purpose: purpose(2, 5), ranks: vec![Rank(1), Rank(2)], patience_ms: 7 };
        let given = Given { rank: Rank(u16::MAX), bytes: u64::MAX, gpu: "x".repeat(40) };
        for message in [
            Message::Hello(hello),
            Message::Given(vec![given; crate::island::MOST_RANKS]),
            Message::Done,
            Message::Failed(reason()),
            Message::Verdict(Some(reason())),
            Message::Verdict(None),
        ] {
            let bytes = message.encode();
            assert!(bytes.len() <= MESSAGE_BYTES, "{message:?}");
            assert_eq!(Message::decode(&bytes), Ok(message));
        }
    }

    #[test]
    fn what_is_not_the_same_is_named() {
        let differs = |other: Purpose| purpose(2, 4096).differs(&other).map(|(what, ..)| what);
        assert_eq!(differs(purpose(2, 4096)), None);
        assert_eq!(differs(purpose(3, 4096)), Some("topology"));
        assert_eq!(differs(purpose(2, 8192)), Some("size of memory"));
        assert_eq!(
            differs(Purpose { offers: "PUT".into(), ..purpose(2, 4096) }),
            Some("set of capabilities")
        );
    }

    #[test]
    fn another_version_is_told_from_a_stranger_and_from_garbage() {
        assert_eq!(Message::decode(b"mk-nvlink 2\n{}"), Err(Unread::Version("2".into())));
        assert_eq!(Message::decode(b"GET / HTTP/1.1\r\n"), Err(Unread::Stranger));
        assert_eq!(Message::decode(b""), Err(Unread::Stranger));
        assert_eq!(Message::decode(b"mk-nvlink 1"), Err(Unread::Stranger));
        for broken in ["", "{}", "\"done\" \"done\"", "{\"given\":[{\"rank\":-1}]}", "{\"hello\":{}}"] {
            let bytes = [b"mk-nvlink 1\n", broken.as_bytes()].concat();
            assert!(matches!(Message::decode(&bytes), Err(Unread::Garbled(_))), "{broken}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_at_all_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64), tagged: bool) {
            let head: &[u8] = if tagged { b"mk-nvlink 1\n" } else { b"" };
            let _ = Message::decode(&[head, &bytes].concat());
        }
    }
}
