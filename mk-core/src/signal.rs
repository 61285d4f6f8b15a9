//! Signals: words that only grow.

use serde::{Deserialize, Serialize};

/// Who may write a signal's words, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum SignalKind {
    /// GPU atomics only: each post adds 1.
    Add = 0,
    /// One writer, absolute value, idempotent: the only kind that a NIC or a CPU may write.
    Set = 1,
    /// One writer; the flag travels inside 16 bytes of data. One post a word and epoch, into a region with at
    /// least two rotating copies. For small messages: data and flag are one transfer, twice as many bytes.
    Packet = 2,
}

impl SignalKind {
    /// The kind with this code, as a task record holds it.
    pub fn from_code(code: u8) -> Option<SignalKind> {
        [SignalKind::Add, SignalKind::Set, SignalKind::Packet].get(code as usize).copied()
    }
}

/// A group of signal words that exists on every rank, each a `u64` that starts at 0 and is never reset.
///
/// A word that receives `n` posts an epoch stands at `n * e` once epoch `e` (counted from 1) is complete.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Signal {
    /// Unique in its program.
    pub name: String,
    /// How its words are written.
    pub kind: SignalKind,
    /// Index of its first word in the rank's signal page.
    pub first: u32,
    /// Number of words on every rank.
    pub words: u32,
    /// Programs of one session that declare a shared signal of this name use the same words, and count their
    /// epochs together. Its posts must be the same in each of them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
}

impl Signal {
    /// Whether two programs that share a signal of this name mean the same words by it.
    pub fn agrees(&self, other: &Signal) -> bool {
        (self.kind, self.words) == (other.kind, other.words)
    }
}
