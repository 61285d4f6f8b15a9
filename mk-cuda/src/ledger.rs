//! What is open: how many handles of each kind, and what could not be closed.

use crate::error::Failure;
use serde::Serialize;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Failures of releases that are kept; beyond, the first ones say it all.
const KEPT: usize = 64;

/// A kind of handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Context,
    Module,
    DeviceMemory,
    HostMemory,
    Stream,
    Event,
    Graph,
    Allocation,
    Reservation,
    Mapping,
    PeerAccess,
    Multicast,
}

/// How many handles are open, by kind. One whose release failed is still counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Live {
    /// Primary contexts that are held.
    pub contexts: u64,
    /// Loaded modules.
    pub modules: u64,
    /// Pieces of device memory.
    pub device_memory: u64,
    /// Pieces of pinned host memory.
    pub host_memory: u64,
    /// Streams; those of others are not counted.
    pub streams: u64,
    /// Events.
    pub events: u64,
    /// Recorded graphs.
    pub graphs: u64,
    /// Physical allocations that can be mapped.
    pub allocations: u64,
    /// Ranges of addresses that are reserved.
    pub reservations: u64,
    /// Mappings of allocations to addresses.
    pub mappings: u64,
    /// Peer accesses that are switched on.
    pub peer_accesses: u64,
    /// Multicast objects.
    pub multicasts: u64,
}

impl Live {
    /// Whether nothing is open.
    pub fn is_empty(&self) -> bool {
        *self == Live::default()
    }
}

impl fmt::Display for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            (self.contexts, "contexts"),
            (self.modules, "modules"),
            (self.device_memory, "pieces of device memory"),
            (self.host_memory, "pieces of host memory"),
            (self.streams, "streams"),
            (self.events, "events"),
            (self.graphs, "graphs"),
            (self.allocations, "allocations"),
            (self.reservations, "address ranges"),
            (self.mappings, "mappings"),
            (self.peer_accesses, "peer accesses"),
            (self.multicasts, "multicast objects"),
        ];
        let open: Vec<String> =
            kinds.iter().filter(|(n, _)| *n > 0).map(|(n, kind)| format!("{n} {kind}")).collect();
        if open.is_empty() { write!(f, "nothing is open") } else { write!(f, "{}", open.join(", ")) }
    }
}

/// Counts what is open.
#[derive(Default)]
pub(crate) struct Ledger {
    counts: [AtomicU64; 12],
    failures: Mutex<Vec<Failure>>,
}

impl Ledger {
    pub(crate) fn live(&self) -> Live {
        let n = |kind: Kind| self.counts[kind as usize].load(Ordering::Relaxed);
        Live {
            contexts: n(Kind::Context),
            modules: n(Kind::Module),
            device_memory: n(Kind::DeviceMemory),
            host_memory: n(Kind::HostMemory),
            streams: n(Kind::Stream),
            events: n(Kind::Event),
            graphs: n(Kind::Graph),
            allocations: n(Kind::Allocation),
            reservations: n(Kind::Reservation),
            mappings: n(Kind::Mapping),
            peer_accesses: n(Kind::PeerAccess),
            multicasts: n(Kind::Multicast),
        }
    }

    /// Keeps a failure that has nobody to go to.
    pub(crate) fn keep(&self, failure: Failure) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.len() < KEPT {
            failures.push(failure);
        }
    }

    pub(crate) fn take_failures(&self) -> Vec<Failure> {
        std::mem::take(&mut self.failures.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A handle was opened.
    pub(crate) fn open(self: &Arc<Ledger>, kind: Kind) -> Entry {
        self.counts[kind as usize].fetch_add(1, Ordering::Relaxed);
        Entry { ledger: Arc::clone(self), kind }
    }
}

/// One open handle in the ledger. Its owner closes it with what the release gave.
pub(crate) struct Entry {
    ledger: Arc<Ledger>,
    kind: Kind,
}

impl Entry {
    /// The handle was released, or could not be: then it stays in the ledger, and the failure is kept.
    pub(crate) fn close(&self, released: Result<(), Failure>) {
        match released {
            Ok(()) => {
                self.ledger.counts[self.kind as usize].fetch_sub(1, Ordering::Relaxed);
            }
            Err(failure) => self.ledger.keep(failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_closed_stays_open_and_its_failure_is_kept() {
        let ledger = Arc::new(Ledger::default());
        let [good, bad] = [ledger.open(Kind::Stream), ledger.open(Kind::Mapping)];
        assert_eq!(ledger.live().to_string(), "1 streams, 1 mappings");
        let failure = Failure { call: "cuMemUnmap", code: 1, name: "CUDA_ERROR_INVALID_VALUE".into() };
        good.close(Ok(()));
        bad.close(Err(failure.clone()));
        assert_eq!(ledger.live(), Live { mappings: 1, ..Live::default() });
        assert_eq!(ledger.take_failures(), [failure]);
        assert!(ledger.take_failures().is_empty());
    }
}
