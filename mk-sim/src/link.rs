//! The simulated link between two ranks, as a session shows it.

use crate::session::Simulator;
use mk_core::{Caps, Error, Fault, Health, Link, Rank, Reason, RunError};
use std::time::Duration;

/// A link of a [`Simulator`], between two of its runs.
#[derive(Clone, Debug)]
pub struct SimulatedLink {
    ends: (Rank, Rank),
    /// The fault that took it down.
    fault: Option<Fault>,
}

impl Simulator {
    /// The link from one rank to another, over whichever transport serves the pair.
    ///
    /// # Errors
    /// No transport serves it.
    pub fn link(&self, from: Rank, to: Rank) -> Result<SimulatedLink, Error> {
        self.registry_ref().route(from, to, Caps::empty())?;
        let ends = (from, to);
        let concerns = |fault: &&Fault| match &fault.reason {
            Reason::PeerLost(rank) => *rank == from || *rank == to,
            Reason::Nic { peer, .. } => (fault.rank, *peer) == ends || (*peer, fault.rank) == ends,
            _ => false,
        };
        Ok(SimulatedLink { ends, fault: self.failed().filter(concerns).cloned() })
    }
}

impl Link for SimulatedLink {
    fn ends(&self) -> (Rank, Rank) {
        self.ends
    }

    fn health(&self) -> Health {
        self.fault.as_ref().map_or(Health::Up, |fault| Health::Down(fault.to_string()))
    }

    /// Returns at once: a run ends only when everything that it sent has arrived.
    ///
    /// # Errors
    /// The link is down.
    fn quiesce(&mut self, _: Duration) -> Result<(), RunError> {
        self.fault.clone().map_or(Ok(()), |fault| Err(fault.into()))
    }
}
