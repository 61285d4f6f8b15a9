//! What a run was like.

use mk_core::{Fault, Rank};
use serde::Serialize;

/// One rank's part of a run. All times are sums over its lanes, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RankReport {
    /// Compute streams at work: loading, computing or storing.
    pub compute_ns: u64,
    /// Comm streams at work.
    pub comm_ns: u64,
    /// Compute streams that wait for signals and have nothing else to do.
    pub compute_wait_ns: u64,
    /// Comm streams that wait for signals and have nothing else to do.
    pub comm_wait_ns: u64,
    /// When its last epoch ended.
    pub end_ns: u64,
}

/// One link's part of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkReport {
    /// The transport.
    pub transport: &'static str,
    /// Sender.
    pub from: Rank,
    /// Receiver.
    pub to: Rank,
    /// Bytes of data.
    pub bytes: u64,
    /// Time in which its egress was held by them, ns.
    pub busy_ns: u64,
    /// Signals.
    pub signals: u64,
}

/// What the last run was like, whether it succeeded or not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Simulated time, ns.
    pub time_ns: u64,
    /// Tasks that ended.
    pub tasks: u64,
    /// Events.
    pub events: u64,
    /// Hash of the order of events: runs of one seed have one order.
    pub order: u64,
    /// The seed of the schedule: it replays the run.
    pub schedule_seed: u64,
    /// Tasks of one stream that overlap at most.
    pub overlap: u32,
    /// By rank.
    pub ranks: Vec<RankReport>,
    /// Links that something went through.
    pub links: Vec<LinkReport>,
    /// Pairs of overlapping accesses that were found to be ordered.
    pub ordered_pairs: u64,
    /// Pairs of which it could not be told within the budget.
    pub unknown_pairs: u64,
    /// Steps of the searches for orders that no single post tells: a measure of what the race detector costs.
    pub search_steps: u64,
    /// What is wrong; the first is what the run returned.
    pub findings: Vec<Fault>,
}
