//! Worlds with their registries.

use crate::random::Random;
use mk_core::{Error, Rank, Registry, Topology, World};

/// What connects the ranks of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// One node: mapped memory.
    Mapped,
    /// Several nodes, and a network between them that keeps order.
    Ordered,
    /// Several nodes, and a network between them that does not.
    Unordered,
}

impl Network {
    /// All of them.
    pub const ALL: [Network; 3] = [Network::Mapped, Network::Ordered, Network::Unordered];

    /// All compute handlers, and the transports of this network.
    ///
    /// # Errors
    /// No such world.
    pub fn registry(self, nodes: u64, ranks: u64, nics: u32) -> Result<Registry, Error> {
        let registry =
            Registry::builder().handlers(mk_compute::handlers()).transport(mk_nvlink::NvLink::new());
        let registry = match self {
            Network::Mapped => registry,
            Network::Ordered => registry.transport(mk_rdma::Rdma::ordered()),
            Network::Unordered => registry.transport(mk_rdma::Rdma::unordered()),
        };
        registry.build(&World::of(Topology::uniform(nodes, ranks, nics)?))
    }

    /// A small world of it: one node of up to four ranks, or two or three nodes of one or two.
    pub(crate) fn draw(self, random: &mut Random) -> Result<Registry, Error> {
        if self == Network::Mapped {
            return self.registry(1, random.range(1, 4), 0);
        }
        let (nodes, each) = (random.range(2, 3), random.range(1, 2));
        self.registry(nodes, nodes * each, random.range(1, each) as u32)
    }
}

/// The ranks that `me` and a handler's transport can copy to and from: itself, and those that are served both ways.
pub(crate) fn peers(registry: &Registry, handler: &str, me: Rank) -> Result<Vec<Rank>, Error> {
    let (opcode, _) = registry.handler(handler)?;
    let served = |a, b| registry.route_of(opcode, a, b).is_some();
    Ok(registry.topology().ranks().filter(|&p| p == me || served(me, p) && served(p, me)).collect())
}
