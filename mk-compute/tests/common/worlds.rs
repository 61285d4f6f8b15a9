//! Worlds to plan for: one node and several, even and uneven.

use mk_compute::handlers;
use mk_core::*;
use mk_nvlink::NvLink;
use mk_rdma::Rdma;

/// NVLink inside the nodes, `network` between them.
pub fn connected(topology: Topology, network: Rdma) -> Registry {
    let builder = Registry::builder().transport(NvLink::new()).transport(network).handlers(handlers());
    builder.build(&World::of(topology)).unwrap()
}

/// Ranks of one node.
pub fn local(ranks: u64) -> Registry {
    connected(Topology::single_node(ranks).unwrap(), Rdma::ordered())
}

/// `nodes` nodes with `ranks` ranks in all, and a NIC for each of them.
pub fn nodes(nodes: u64, ranks: u64) -> Registry {
    nodes_on(nodes, ranks, Rdma::ordered())
}

/// The same, on a network of this kind.
pub fn nodes_on(nodes: u64, ranks: u64, network: Rdma) -> Registry {
    connected(Topology::uniform(nodes, ranks, (ranks / nodes) as u32).unwrap(), network)
}

/// Three nodes of 3, 1 and 4 ranks; the ranks of the last share two NICs.
pub const UNEVEN: &str = "
    [[node]]
    ranks = 3
    nics = 3
    [[node]]
    ranks = 1
    nics = 1
    [[node]]
    ranks = 4
    nics = 2
";

/// Two NVLink groups and a rank of its own in one node, and another node.
pub const GROUPS: &str = "
    [[node]]
    ranks = 5
    nics = 5
    nvlink = [[0, 2], [1, 4]]
    [[node]]
    ranks = 3
    nics = 1
";

/// A world from a topology file.
pub fn described(toml: &str, network: Rdma) -> Registry {
    connected(Topology::from_toml(toml).unwrap(), network)
}
