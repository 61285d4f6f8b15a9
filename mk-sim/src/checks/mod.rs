//! Detectors: they look at what happened, and take no part in it.
//!
//! The engine writes a [`Log`] while it runs; the detectors read it when the run has ended.

pub(crate) mod deadlock;
mod join;
mod log;
pub(crate) mod output;
mod past;
pub(crate) mod posts;
pub(crate) mod races;
mod run;

pub(crate) use log::{Item, Log};

use serde::{Deserialize, Serialize};

/// Which detectors are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checks {
    /// Accesses without an order.
    pub races: bool,
    /// Output bytes that nobody wrote.
    pub unwritten: bool,
    /// Words that stand lower or higher than the program's posts make them.
    pub posts: bool,
    /// Which task waits for which when nothing can happen any more. Without it, the run ends in a time-out.
    pub deadlock: bool,
}

impl Checks {
    /// All of them.
    pub const fn all() -> Checks {
        Checks { races: true, unwritten: true, posts: true, deadlock: true }
    }

    /// None of them.
    pub const fn none() -> Checks {
        Checks { races: false, unwritten: false, posts: false, deadlock: false }
    }
}

impl Default for Checks {
    fn default() -> Checks {
        Checks::all()
    }
}
