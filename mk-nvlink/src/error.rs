//! Why ranks did not come to reach each other's memory.

use crate::step::Step;
use mk_core::{Explanation, Rank, RunError};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Most bytes of each text that another process is told.
const TOLD_BYTES: usize = 2048;

/// What went wrong on another rank, as it told it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// The rank that it is about.
    pub rank: Rank,
    /// What is wrong.
    pub message: String,
    /// What was found.
    pub given: String,
    /// What is allowed.
    pub allowed: String,
    /// What to do.
    pub hint: String,
}

/// Why ranks did not come to reach each other's memory.
///
/// Each says who, what was found, what is allowed and what to do: see [`Error::explain`].
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There can be no such meeting.
    #[error(transparent)]
    Input(#[from] mk_core::Error),
    /// The driver did not do what was asked, on a rank of this process.
    #[error("{rank}: {source}")]
    Driver {
        /// The rank.
        rank: Rank,
        /// What the driver said.
        source: mk_cuda::Error,
    },
    /// The folder cannot be met in.
    #[error("{path} is no folder to meet in: {found}")]
    Folder {
        /// The folder, or a file in it.
        path: String,
        /// What is wrong with it.
        found: String,
        /// What it must be.
        needed: &'static str,
    },
    /// Ranks whose processes did not come.
    #[error("{} did not come within {bound:?}", list(ranks))]
    Missing {
        /// The ranks.
        ranks: Vec<Rank>,
        /// How long they had.
        bound: Duration,
    },
    /// A process ended in the middle.
    #[error("the process of {rank} ended, when it was {step}")]
    Left {
        /// Its first rank.
        rank: Rank,
        /// What it was to do.
        step: Step,
    },
    /// A process came, and then did nothing.
    #[error("{rank} had {bound:?} {step}, and did not")]
    Late {
        /// Its first rank.
        rank: Rank,
        /// What it was to do.
        step: Step,
        /// How long the whole meeting may take.
        bound: Duration,
    },
    /// A process came for something else.
    #[error("{rank} came with another {what} than {host}: {given}, not {allowed}")]
    Mismatch {
        /// Its first rank.
        rank: Rank,
        /// What is not the same.
        what: &'static str,
        /// What it came with.
        given: String,
        /// The rank that it is compared with.
        host: Rank,
        /// What that one came with.
        allowed: String,
    },
    /// A rank came twice.
    #[error("two processes came as {rank}")]
    Twice {
        /// The rank.
        rank: Rank,
    },
    /// A process speaks another version of the protocol.
    #[error("a process came that speaks version {given} of the protocol, not {needed}")]
    Version {
        /// What it speaks.
        given: String,
        /// What this process speaks.
        needed: u32,
    },
    /// Somebody else sits where this process is to wait for the others.
    #[error("{path} is in use: {found}")]
    Taken {
        /// The socket.
        path: String,
        /// By whom.
        found: &'static str,
    },
    /// A process said what has no meaning.
    #[error("{rank} was {step}, and sent what has no meaning: {what}")]
    Garbled {
        /// Its first rank.
        rank: Rank,
        /// What it was to do.
        step: Step,
        /// What is wrong.
        what: String,
    },
    /// The operating system refused.
    #[error("{what}: {error}")]
    System {
        /// What was asked for.
        what: String,
        /// What it said.
        error: std::io::Error,
    },
    /// It went wrong on another rank.
    #[error("{}", .0.message)]
    Elsewhere(Box<Reason>),
    /// Processes can meet on Linux only.
    #[error("ranks of several processes can reach each other's memory on Linux only")]
    Platform,
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hint = self.explain().hint;
        write!(f, "{self}")?;
        if hint.is_empty() { Ok(()) } else { write!(f, "\n  what to do: {hint}") }
    }
}

/// `rank 1`, `rank 1, rank 2`.
fn list(ranks: &[Rank]) -> String {
    ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl Error {
    /// The operating system refused.
    #[cfg(target_os = "linux")]
    pub(crate) fn system(what: impl Into<String>, error: impl Into<std::io::Error>) -> Error {
        Error::System { what: what.into(), error: error.into() }
    }

    /// The rank that it is about, if it is about one.
    pub fn rank(&self) -> Option<Rank> {
        match self {
            Error::Driver { rank, .. }
            | Error::Left { rank, .. }
            | Error::Late { rank, .. }
            | Error::Mismatch { rank, .. }
            | Error::Twice { rank }
            | Error::Garbled { rank, .. } => Some(*rank),
            Error::Missing { ranks, .. } => ranks.first().copied(),
            Error::Elsewhere(reason) => Some(reason.rank),
            _ => None,
        }
    }

    /// The error as given, allowed and hint, for `--json` and for people.
    pub fn explain(&self) -> Explanation {
        let (kind, given, allowed, hint) = match self {
            Error::Input(e) => return e.explain(),
            Error::Driver { source, .. } => {
                return Explanation { message: self.to_string(), ..source.explain() };
            }
            Error::Elsewhere(reason) => {
                let Reason { message, given, allowed, hint, .. } = (**reason).clone();
                return Explanation { kind: "peer", message, given, allowed, hint };
            }
            Error::Folder { path, found, needed } => {
                ("file", format!("{path}: {found}"), (*needed).into(), "mkdir -m 700, and name that folder")
            }
            Error::Missing { ranks, bound } => (
                "peer",
                format!("no process of {}", list(ranks)),
                format!("all ranks within {bound:?}"),
                "see whether it runs, and with the same key and folder; raise the bound if it only starts slowly",
            ),
            Error::Left { rank, step } => (
                "peer",
                format!("{rank} ended"),
                format!("it was {step}"),
                "look at that process first: the others only report it",
            ),
            Error::Late { rank, step, bound } => (
                "peer",
                format!("nothing of {rank} in {bound:?}"),
                format!("it was {step}"),
                "see what that process does; raise the bound if it is only slow",
            ),
            Error::Mismatch { given, allowed, .. } => (
                "mismatch",
                given.clone(),
                allowed.clone(),
                "start all processes with the same program, topology and settings of the transport",
            ),
            Error::Twice { rank } => (
                "mismatch",
                format!("{rank}, twice"),
                "each rank once".into(),
                "give each process a rank of its own: see RANK, or what the launcher sets",
            ),
            Error::Version { given, needed } => (
                "mismatch",
                format!("version {given}"),
                format!("version {needed}"),
                "run all ranks with the same build",
            ),
            Error::Taken { path, found } => (
                "taken",
                format!("{path}: {found}"),
                "a name that nobody uses".into(),
                "give each process a rank of its own, and each session a key of its own",
            ),
            Error::Garbled { what, step, .. } => (
                "protocol",
                what.clone(),
                format!("it was {step}"),
                "run all ranks with the same build; see whether anything else uses the folder",
            ),
            Error::System { what, error } => (
                "system",
                format!("{what}: {error}"),
                String::new(),
                "look at the limits of the process (ulimit -n) and at the folder's file system",
            ),
            Error::Platform => (
                "missing",
                std::env::consts::OS.into(),
                "linux".into(),
                "give all ranks of an island to one process",
            ),
        };
        Explanation { kind, message: self.to_string(), given, allowed, hint: hint.into() }
    }
}

impl Reason {
    /// What other processes are told of an error in the process of `own`.
    pub(crate) fn of(error: &Error, own: Rank) -> Reason {
        if let Error::Elsewhere(reason) = error {
            return (**reason).clone();
        }
        let Explanation { message, given, allowed, hint, .. } = error.explain();
        // An error that is about no rank says nowhere whose it is.
        let message = if error.rank().is_some() { message } else { format!("{own}: {message}") };
        let [message, given, allowed, hint] = [message, given, allowed, hint].map(short);
        Reason { rank: error.rank().unwrap_or(own), message, given, allowed, hint }
    }
}

/// As much of a text as is told.
fn short(mut text: String) -> String {
    let boundary = (0..=TOLD_BYTES.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    text.truncate(boundary.unwrap_or(0));
    text
}

impl From<Error> for RunError {
    fn from(e: Error) -> RunError {
        match e {
            Error::Input(e) => RunError::Input(e),
            e => RunError::Hardware(Box::new(e.explain())),
        }
    }
}
