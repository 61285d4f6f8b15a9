//! The steps of a meeting.

use serde::Serialize;
use std::fmt;

/// A step of a meeting, in the order in which each process makes them. The process of the island's lowest rank is the host, the
/// others are its guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Step {
    /// The folder is looked at, and made if it is not there.
    Folder,
    /// The host takes its socket, a guest connects to it.
    Arrive,
    /// Each says who it is and what it came for.
    Greet,
    /// Each makes the memory of its ranks.
    Make,
    /// Each gives its memory to the others, by the host.
    Give,
    /// Each takes the memory of the others.
    Take,
    /// Each maps it.
    Map,
    /// Each tells the host what became of it.
    Report,
    /// All hear whether it worked everywhere.
    Verdict,
}

impl Step {
    /// All of them.
    pub const ALL: [Step; 9] = [
        Step::Folder,
        Step::Arrive,
        Step::Greet,
        Step::Make,
        Step::Give,
        Step::Take,
        Step::Map,
        Step::Report,
        Step::Verdict,
    ];
}

/// What is done in it: `to give its memory`.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Folder => "to look at the folder",
            Step::Arrive => "to arrive",
            Step::Greet => "to say who it is",
            Step::Make => "to make memory",
            Step::Give => "to give its memory",
            Step::Take => "to pass the others' memory on",
            Step::Map => "to map the others' memory",
            Step::Report => "to report",
            Step::Verdict => "to tell how it went",
        })
    }
}
