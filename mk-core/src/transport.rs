//! Transports: who can move bytes and raise signals between which ranks.

use crate::{Caps, CommOp, Error, HandlerRef, Hardware, Rank, RunError, Topology};
use std::path::PathBuf;
use std::time::Duration;

/// A place that traffic shares: a GPU's NVLink egress, a NIC's ingress.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Port {
    /// Which of the transport's ports.
    pub id: u32,
    /// Its bandwidth in GB/s (10^9 bytes), shared by all that goes through it.
    pub gb_per_s: f64,
}

/// What a transfer from one rank to another costs, and what it shares: alpha, beta, order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkModel {
    /// One-way latency in nanoseconds, for data and for signals.
    pub latency_ns: f64,
    /// Where the traffic leaves.
    pub egress: Port,
    /// Where it arrives.
    pub ingress: Port,
    /// Whether data and signals arrive in the order in which they were sent. Otherwise a signal leaves only when
    /// the data before it has been acknowledged.
    pub ordered: bool,
}

/// Moves bytes and signals between ranks. A custom transport is one file that implements this, and one
/// [`register`](crate::RegistryBuilder::transport) call.
pub trait Transport: Send + Sync + 'static {
    /// Its name, unique in a registry.
    fn name(&self) -> &'static str;

    /// What this process's rank can do, found without side effects. What all ranks agree on is the AND of this.
    ///
    /// # Errors
    /// A library or device that is needed and missing.
    fn probe(&self) -> Result<Caps, Error>;

    /// What it can do from `from` to `to` (never the same rank) in this topology; empty where it does not serve
    /// the pair.
    fn caps(&self, topology: &Topology, from: Rank, to: Rank) -> Caps;

    /// The cost of a transfer from `from` to `to`; asked only for pairs that it serves.
    fn link(&self, topology: &Topology, hardware: &Hardware, from: Rank, to: Rank) -> LinkModel;

    /// Its comm handlers.
    fn handlers(&self) -> Vec<(CommOp, HandlerRef)>;

    /// Makes memory on the ranks of this process that peers reach, and reaches theirs; all processes of the meeting call it.
    /// `None`: this transport reaches no memory.
    ///
    /// # Errors
    /// A step failed here or on another rank, or had not ended by the bound: the same verdict on all ranks that meet.
    fn connect(&self, _: &Meeting) -> Result<Option<Box<dyn Heap>>, RunError> {
        Ok(None)
    }
}

/// What the processes of a world come together for: memory of the same size on every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// All ranks.
    pub topology: Topology,
    /// The ranks of this process, each with the ordinal of its GPU.
    pub own: Vec<(Rank, u32)>,
    /// Where processes meet: a folder that all of a node's reach and no stranger does. `None`: all ranks are this process's.
    pub folder: Option<PathBuf>,
    /// What the meeting is about; whoever comes with another key came to another meeting.
    pub key: [u8; 32],
    /// Bytes on each rank.
    pub bytes: u64,
    /// How long all of it may take.
    pub bound: Duration,
}

impl Meeting {
    /// Whether there can be such a meeting.
    ///
    /// # Errors
    /// No rank of this process's own, one that is not in the world, or one that is there twice.
    pub fn check(&self) -> Result<(), Error> {
        let size = self.topology.size();
        let refuse = |message: &str, given: String, allowed: String| {
            Err(Error::input(message, given, allowed, "give each process ranks of its own"))
        };
        if self.own.is_empty() {
            return refuse(
                "a process without ranks has no part in a meeting",
                "none".into(),
                "one or more".into(),
            );
        }
        for (i, (rank, _)) in self.own.iter().enumerate() {
            if u32::from(rank.0) >= size {
                return refuse("there is no such rank", rank.to_string(), format!("ranks 0..{size}"));
            }
            if self.own[..i].iter().any(|(other, _)| other == rank) {
                return refuse("a process has a rank twice", rank.to_string(), "each rank once".into());
            }
        }
        Ok(())
    }
}

/// Memory of the same size on every rank, all 0 at first. Dropped when nothing uses it any more.
pub trait Heap: Send {
    /// Where the memory of `rank` begins, as the GPUs of this process see it; `None` if it is out of reach.
    fn address(&self, rank: Rank) -> Option<u64>;

    /// A rank whose process has ended before it dropped its memory, as far as this one knows. Does not wait.
    fn lost(&self) -> Option<Rank>;
}

/// How a live link is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It works.
    Up,
    /// It has failed; the reason, in words.
    Down(String),
}

/// A connected link from one rank to another.
pub trait Link {
    /// Where it comes from and goes to.
    fn ends(&self) -> (Rank, Rank);

    /// How it is.
    fn health(&self) -> Health;

    /// Waits until nothing is in flight, for at most `bound`.
    ///
    /// # Errors
    /// The bound was reached, or the link is down.
    fn quiesce(&mut self, bound: std::time::Duration) -> Result<(), crate::RunError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meeting_is_of_ranks_of_the_world_each_once() {
        let meeting = |own: &[u16]| Meeting {
            topology: Topology::single_node(2).unwrap(),
            own: own.iter().map(|&r| (Rank(r), 0)).collect(),
            folder: None,
            key: [0; 32],
            bytes: 1,
            bound: Duration::from_secs(1),
        };
        assert!(meeting(&[1]).check().is_ok() && meeting(&[1, 0]).check().is_ok());
        for (own, words) in
            [(&[][..], "one or more"), (&[0, 2], "given rank 2, allowed ranks 0..2"), (&[1, 1], "rank 1")]
        {
            let e = meeting(own).check().unwrap_err().to_string();
            assert!(e.contains(words), "{e}");
        }
    }
}
