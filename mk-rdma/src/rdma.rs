//! The transport: which pairs it serves, with what, at what cost.

use crate::handlers;
use mk_core::{Caps, CommOp, Error, HandlerRef, Hardware, LinkModel, Port, Rank, Topology, Transport};

/// Whether a network delivers in the order in which it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ordering {
    /// One reliable connection on one path: InfiniBand and RoCE without adaptive routing.
    Ordered,
    /// Packets take several paths: adaptive routing, relaxed ordering, EFA.
    Unordered,
}

/// What every pair can do, ordered or not. No [`Caps::ATOMIC_ADD`]: a NIC's atomics and a GPU's do not see each
/// other, so only `Set` words are written through it.
const NETWORKED: Caps =
    Caps::PUT.union(Caps::GET).union(Caps::SIGNAL).union(Caps::REDUCE).union(Caps::GPU_DIRECT);

/// Ranks that are not mapped into each other, through their NICs: those of different nodes, and of different NVLink groups of
/// one node.
///
/// ```
/// use mk_core::{Caps, Rank, Registry, Topology, World};
/// use mk_rdma::Rdma;
///
/// let two_nodes = World::of(Topology::uniform(2, 4, 2)?);
/// let registry = Registry::builder().transport(Rdma::unordered()).build(&two_nodes)?;
/// assert!(registry.route(Rank(0), Rank(2), Caps::PUT | Caps::SIGNAL).is_ok());
/// // Two ranks that NVLink connects are not its business, and GPU atomics do not cross the network.
/// assert!(registry.route(Rank(0), Rank(1), Caps::PUT).is_err());
/// assert!(registry.route(Rank(0), Rank(2), Caps::ATOMIC_ADD).is_err());
/// # Ok::<(), mk_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Rdma {
    ordering: Ordering,
}

impl Rdma {
    /// A network with this ordering.
    pub fn new(ordering: Ordering) -> Rdma {
        Rdma { ordering }
    }

    /// A network that keeps order.
    pub fn ordered() -> Rdma {
        Rdma::new(Ordering::Ordered)
    }

    /// A network that does not.
    pub fn unordered() -> Rdma {
        Rdma::new(Ordering::Unordered)
    }

    fn offered(&self) -> Caps {
        match self.ordering {
            Ordering::Ordered => NETWORKED | Caps::ORDERED,
            Ordering::Unordered => NETWORKED,
        }
    }
}

impl Transport for Rdma {
    fn name(&self) -> &'static str {
        "rdma"
    }

    /// All that a network of this ordering can do. Planning and simulating need no NIC, so none is looked for here.
    fn probe(&self) -> Result<Caps, Error> {
        Ok(self.offered())
    }

    fn caps(&self, topology: &Topology, from: Rank, to: Rank) -> Caps {
        let in_world = [from, to].iter().all(|&r| u32::from(r.0) < topology.size());
        let served = in_world
            && !topology.mapped(from, to)
            && topology.networked(from, to)
            && topology.nic_of(from).is_some()
            && topology.nic_of(to).is_some();
        if served { self.offered() } else { Caps::empty() }
    }

    /// Ranks that share a NIC share its egress and its ingress.
    ///
    /// # Panics
    /// For a pair that it does not serve.
    fn link(&self, topology: &Topology, hardware: &Hardware, from: Rank, to: Rank) -> LinkModel {
        let nic = |rank| topology.nic_of(rank).expect("a rank of a pair that is served has a NIC");
        let port = |id| Port { id, gb_per_s: hardware.nic_gb_per_s };
        LinkModel {
            latency_ns: hardware.nic_latency_ns,
            egress: port(2 * nic(from)),
            ingress: port(2 * nic(to) + 1),
            ordered: self.ordering == Ordering::Ordered,
        }
    }

    fn handlers(&self) -> Vec<(CommOp, HandlerRef)> {
        handlers::all()
    }
}
