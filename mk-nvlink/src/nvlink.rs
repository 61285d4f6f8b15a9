//! The transport: which pairs it serves, with what, at what cost.

use crate::connect;
use crate::handlers;
use crate::step::Step;
use mk_core::{
    Caps, CommOp, Error, HandlerRef, Hardware, Heap, LinkModel, Meeting, Port, Rank, RunError, Topology,
    Transport,
};

/// What every mapped pair can do.
const MAPPED: Caps = Caps::PUT
    .union(Caps::GET)
    .union(Caps::SIGNAL)
    .union(Caps::ATOMIC_ADD)
    .union(Caps::REDUCE)
    .union(Caps::ORDERED);

/// Peer-mapped memory: loads, stores and atomics go straight to the peer's HBM.
///
/// ```
/// use mk_core::{Caps, Rank, Registry, World};
/// use mk_nvlink::NvLink;
///
/// let registry = Registry::builder().transport(NvLink::new()).build(&World::local(2)?)?;
/// let route = registry.route(Rank(0), Rank(1), Caps::PUT | Caps::ATOMIC_ADD)?;
/// assert_eq!(route.transport(), "nvlink");
/// # Ok::<(), mk_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct NvLink {
    multicast: bool,
    observer: Option<fn(Step)>,
}

impl NvLink {
    /// Without multicast.
    pub fn new() -> NvLink {
        NvLink::default()
    }

    /// Whether to offer [`Caps::MULTICAST`]. Off unless asked for: binding a multicast object can fail on one rank
    /// while the others wait for it.
    #[must_use]
    pub fn multicast(self, on: bool) -> NvLink {
        NvLink { multicast: on, ..self }
    }

    /// Calls this before each step of a meeting: for a log, or to see where a start takes its time.
    #[must_use]
    pub fn observe(self, observer: fn(Step)) -> NvLink {
        NvLink { observer: Some(observer), ..self }
    }

    /// What [`Transport::connect`] does, with this crate's own error.
    ///
    /// # Errors
    /// All of [`Error`](crate::Error).
    pub fn meet(&self, meeting: &Meeting) -> Result<Box<dyn Heap>, crate::Error> {
        connect::connect(self, meeting)
    }

    pub(crate) fn enter(&self, step: Step) {
        if let Some(observer) = self.observer {
            observer(step);
        }
    }

    pub(crate) fn offered(&self) -> Caps {
        if self.multicast { MAPPED | Caps::MULTICAST } else { MAPPED }
    }
}

impl Transport for NvLink {
    fn name(&self) -> &'static str {
        "nvlink"
    }

    /// All that it was asked to offer. Planning and simulating need no driver, so none is looked for here.
    fn probe(&self) -> Result<Caps, Error> {
        Ok(self.offered())
    }

    fn caps(&self, topology: &Topology, from: Rank, to: Rank) -> Caps {
        let in_world = [from, to].iter().all(|&r| u32::from(r.0) < topology.size());
        if in_world && topology.mapped(from, to) { self.offered() } else { Caps::empty() }
    }

    /// All that leaves a GPU shares its egress, all that arrives at one its ingress: the switch between them is
    /// not a bottleneck.
    fn link(&self, _: &Topology, hardware: &Hardware, from: Rank, to: Rank) -> LinkModel {
        let port = |id| Port { id, gb_per_s: hardware.nvlink_gb_per_s };
        LinkModel {
            latency_ns: hardware.nvlink_latency_ns,
            egress: port(2 * u32::from(from.0)),
            ingress: port(2 * u32::from(to.0) + 1),
            ordered: true,
        }
    }

    fn handlers(&self) -> Vec<(CommOp, HandlerRef)> {
        handlers::all()
    }

    /// Memory of [`Meeting::bytes`] on each rank of this process, mapped so that all ranks of its island reach it; and that of
    /// the island's others. Ranks of other islands have no address.
    ///
    /// Errors are those of [`NvLink::meet`], explained.
    fn connect(&self, meeting: &Meeting) -> Result<Option<Box<dyn Heap>>, RunError> {
        Ok(Some(self.meet(meeting)?))
    }
}
