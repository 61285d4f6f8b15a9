//! What goes wrong in a run, on purpose.

use mk_core::{Error, Rank};
use serde::{Deserialize, Serialize};

/// Messages that take longer than they should.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delay {
    /// Of a message, 0 to 1.
    pub probability: f64,
    /// Longest delay in microseconds; drawn evenly from 0 on.
    pub max_us: f64,
}

/// Messages that are lost on the way and sent again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drop {
    /// Of a message, each time that it is sent, 0 to 0.99.
    pub probability: f64,
    /// Until it is sent again, microseconds.
    pub retransmit_us: f64,
}

/// A NIC that completes a transfer with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicError {
    /// Where the transfer comes from.
    pub from: Rank,
    /// Where it goes to.
    pub to: Rank,
    /// Transfers of data from `from` to `to`, since the session began, that still succeed.
    #[serde(default)]
    pub after_transfers: u64,
    /// What the NIC says; 12 is "retry exceeded" of InfiniBand verbs.
    #[serde(default = "retry_exceeded")]
    pub status: u32,
}

fn retry_exceeded() -> u32 {
    12
}

/// A rank that ceases to exist.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kill {
    /// Which.
    pub rank: Rank,
    /// When, in microseconds from the begin of the run.
    pub at_us: f64,
}

/// A rank that takes longer for everything.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slow {
    /// Which.
    pub rank: Rank,
    /// How many times as long, at least 1.
    pub factor: f64,
}

/// The faults of a run. The default is none.
///
/// The first group is what machines do: a proved program gives the right bits under any of `delay` to `torn`, and a
/// typed error under `nic_error` and `kill`. The second group breaks what a transport has promised, to test that the
/// detectors see it.
///
/// ```
/// let faults = mk_sim::Faults::from_toml("reorder = 0.5\ndelay = { probability = 0.1, max_us = 20.0 }")?;
/// assert_eq!(faults.reorder, 0.5);
/// # Ok::<(), mk_core::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// Messages that are late.
    pub delay: Delay,
    /// Every latency is multiplied by 1 to `1 + jitter`.
    pub jitter: f64,
    /// Probability that a message is overtaken by later ones. Only on unordered links.
    pub reorder: f64,
    /// Probability that a message arrives twice, the second time before it is acknowledged. Only on unordered links:
    /// a receiver that keeps order drops the second.
    pub duplicate: f64,
    /// Messages that are lost and sent again.
    pub drop: Drop,
    /// A NIC that fails.
    pub nic_error: Option<NicError>,
    /// A rank that is killed.
    pub kill: Option<Kill>,
    /// A rank that is slow.
    pub slow: Option<Slow>,
    /// Writes of more than 16 bytes land in two pieces.
    pub torn: bool,
    /// Breaks a promise: on unordered links, a signal does not wait for the data that it follows.
    pub flag_overtakes_data: bool,
    /// Breaks a promise: this post of a run (from 1, in the order in which they are made) never arrives.
    pub lose_post: Option<u64>,
    /// Breaks a promise: this post of a run (from 1, in the order in which they are made) is counted twice.
    pub surplus_post: Option<u64>,
}

const KEYS: &str = "delay, jitter, reorder, duplicate, drop, nic_error, kill, slow, torn, flag_overtakes_data, lose_post, \
                    surplus_post; all may be left out";

impl Faults {
    /// Faults from TOML: one key for each field, all of them optional.
    ///
    /// # Errors
    /// A key that is unknown or given twice, or a number out of range; with line and key.
    pub fn from_toml(text: &str) -> Result<Faults, Error> {
        let faults: Faults = toml::from_str(text).map_err(|e| at_line(text, &e))?;
        faults.check_numbers()?;
        Ok(faults)
    }

    /// Whether all is in range for a world of `ranks` ranks.
    pub(crate) fn check(&self, ranks: u32) -> Result<(), Error> {
        self.check_numbers()?;
        let nic = self.nic_error.iter().flat_map(|n| [n.from, n.to]);
        if let Some(n) = self.nic_error.filter(|n| n.from == n.to) {
            return Err(Error::input(
                "faults: a NIC error lies between two ranks",
                format!("from {} to {}", n.from, n.to),
                "two different ranks",
                "name the rank at the other end",
            ));
        }
        let named = nic.chain(self.kill.map(|k| k.rank)).chain(self.slow.map(|s| s.rank));
        match named.into_iter().find(|r| u32::from(r.0) >= ranks) {
            Some(rank) => Err(Error::input(
                "a fault names a rank that does not exist",
                rank,
                format!("ranks 0 to {}", ranks.saturating_sub(1)),
                "name a rank of this world",
            )),
            None => Ok(()),
        }
    }

    fn check_numbers(&self) -> Result<(), Error> {
        // A year in microseconds: times in picoseconds then stay far below 2^64.
        const LONG_US: f64 = 1e12;
        let (kill, slow) = (self.kill.map_or(0.0, |k| k.at_us), self.slow.map_or(1.0, |s| s.factor));
        let (lose, surplus) = (self.lose_post.unwrap_or(1) as f64, self.surplus_post.unwrap_or(1) as f64);
        let numbers = [
            ("lose_post", lose, 1.0, f64::MAX),
            ("surplus_post", surplus, 1.0, f64::MAX),
            ("delay.probability", self.delay.probability, 0.0, 1.0),
            ("delay.max_us", self.delay.max_us, 0.0, LONG_US),
            ("jitter", self.jitter, 0.0, 1e6),
            ("reorder", self.reorder, 0.0, 1.0),
            ("duplicate", self.duplicate, 0.0, 1.0),
            ("drop.probability", self.drop.probability, 0.0, 0.99),
            ("drop.retransmit_us", self.drop.retransmit_us, 0.0, LONG_US),
            ("kill.at_us", kill, 0.0, LONG_US),
            ("slow.factor", slow, 1.0, 1e9),
        ];
        match numbers.into_iter().find(|(_, x, low, high)| !(*low..=*high).contains(x)) {
            Some((key, x, low, high)) => Err(Error::input(
                format!("faults: {key} is out of range"),
                format!("{key} = {x:?}"),
                format!("{low} to {high}"),
                "choose a number in that range",
            )),
            None => Ok(()),
        }
    }
}

fn at_line(text: &str, e: &toml::de::Error) -> Error {
    let at = e.span().map_or(0, |s| s.start.min(text.len()));
    let line = text.as_bytes()[..at].iter().filter(|&&b| b == b'\n').count();
    let shown: String = text.lines().nth(line).unwrap_or("").trim().chars().take(120).collect();
    let said: String = e.message().trim().replace('\n', ", ").chars().take(300).collect();
    Error::input(
        format!("faults, line {}: {said}", line + 1),
        format!("`{shown}`"),
        KEYS,
        "correct the line, or leave the key out",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_round_trip_through_toml() {
        let text = "jitter = 0.5\nreorder = 0.25\nduplicate = 0.125\ntorn = true\nflag_overtakes_data = true\n\
                    lose_post = 3\nsurplus_post = 4\n[delay]\nprobability = 0.5\nmax_us = 2.0\n[drop]\nprobability = 0.1\n\
                    retransmit_us = 30.0\n[nic_error]\nfrom = 0\nto = 1\nafter_transfers = 3\n[kill]\nrank = 1\nat_us = 5.0\n\
                    [slow]\nrank = 2\nfactor = 3.0\n";
        let faults = Faults::from_toml(text).unwrap();
        assert_eq!(faults.nic_error.unwrap().status, 12);
        assert_eq!((faults.kill.unwrap().rank, faults.slow.unwrap().factor), (Rank(1), 3.0));
        assert_eq!(Faults::from_toml(&toml::to_string(&faults).unwrap()).unwrap(), faults);
        assert_eq!(Faults::from_toml("").unwrap(), Faults::default());
    }

    #[test]
    fn bad_faults_name_line_and_key() {
        for (text, words) in [
            ("reorder = 0.5\nreordr = 0.5\n", ["line 2", "reordr"]),
            ("reorder = 2.0\n", ["reorder", "0 to 1"]),
            ("reorder = nan\n", ["reorder", "0 to 1"]),
            ("reorder = \"often\"\n", ["line 1", "often"]),
            ("reorder = 0.5\nreorder = 0.5\n", ["line 2", "reorder"]),
            ("[drop]\nprobability = 1.0\nretransmit_us = 1.0\n", ["drop.probability", "0.99"]),
            ("[delay]\nprobability = 1.0\n", ["max_us", "line 1"]),
            ("[slow]\nrank = 0\nfactor = 0.5\n", ["slow.factor", "1 to"]),
            ("[kill]\nrank = 70000\nat_us = 0.0\n", ["line 2", "70000"]),
            ("[kill\n", ["line 1", "[kill"]),
        ] {
            let e = Faults::from_toml(text).expect_err(text).explain();
            let said = format!("{} {} {}", e.message, e.given, e.allowed);
            assert!(words.iter().all(|w| said.contains(w)), "{text:?}: '{said}' does not say {words:?}");
        }
    }

    #[test]
    fn a_fault_names_a_rank_of_the_world() {
        let faults = Faults { kill: Some(Kill { rank: Rank(4), at_us: 0.0 }), ..Faults::default() };
        assert!(faults.check(5).is_ok());
        assert!(faults.check(4).unwrap_err().to_string().contains("ranks 0 to 3"));
    }
}
