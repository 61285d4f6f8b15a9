//! Where the ranks are, and what connects them.

use crate::{Error, Limits, Node, Rank, config};
use serde::{Deserialize, Serialize};

/// One server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// Its name, for messages.
    #[serde(default)]
    pub name: String,
    /// Its ranks (GPUs).
    pub ranks: u32,
    /// Groups of local ranks whose memory is mapped into each other; `None`: all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink: Option<Vec<Vec<u32>>>,
    /// Its NICs, shared evenly by its ranks in order.
    #[serde(default)]
    pub nics: u32,
    /// The network that its NICs are on; nodes of one fabric reach each other.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fabric: String,
}

/// A topology file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TopologyFile {
    node: Vec<NodeSpec>,
}

/// Nodes, ranks, links and NICs. Ranks are numbered node by node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    nodes: Vec<NodeSpec>,
    /// Node of each rank.
    node_of: Vec<Node>,
    /// First rank of each node.
    first: Vec<u32>,
    /// NVLink group of each rank, numbered over all nodes.
    group_of: Vec<u32>,
}

impl Topology {
    /// `ranks` GPUs of one server, all connected by NVLink.
    ///
    /// # Errors
    /// No ranks, or more than [`Limits::RANKS`].
    pub fn single_node(ranks: u64) -> Result<Topology, Error> {
        Topology::uniform(1, ranks, 0)
    }

    /// `nodes` equal servers with `ranks / nodes` GPUs and `nics` NICs each, on one fabric.
    ///
    /// # Errors
    /// No ranks or too many, `ranks` not divisible by `nodes`, or several nodes without a NIC.
    pub fn uniform(nodes: u64, ranks: u64, nics: u32) -> Result<Topology, Error> {
        if nodes == 0 || ranks == 0 || ranks > Limits::RANKS {
            return Err(Error::input(
                "no world of this size",
                format!("{ranks} ranks, {nodes} nodes"),
                format!("1 to {} ranks on at least 1 node", Limits::RANKS),
                "choose a number of ranks in that range",
            ));
        }
        if !ranks.is_multiple_of(nodes) {
            return Err(Error::input(
                "ranks do not divide evenly over nodes",
                format!("{ranks} ranks on {nodes} nodes"),
                "a multiple of the number of nodes",
                "change --ranks or --nodes, or describe the nodes in a --topology file",
            ));
        }
        let node = |i| NodeSpec {
            name: format!("node{i}"),
            ranks: (ranks / nodes) as u32,
            nvlink: None,
            nics,
            fabric: String::new(),
        };
        Topology::new((0..nodes).map(node).collect())
    }

    /// These nodes.
    ///
    /// # Errors
    /// No ranks or too many, a group that names a rank twice or one that does not exist, or a rank that
    /// cannot reach rank 0 by NVLink and network.
    pub fn new(nodes: Vec<NodeSpec>) -> Result<Topology, Error> {
        let total: u64 = nodes.iter().map(|n| n.ranks as u64).sum();
        if total == 0 || total > Limits::RANKS || nodes.len() as u64 > Limits::RANKS {
            return Err(Error::input(
                "no world of this size",
                format!("{total} ranks on {} nodes", nodes.len()),
                format!("1 to {} ranks", Limits::RANKS),
                "choose a number of ranks in that range",
            ));
        }
        let nics: u64 = nodes.iter().map(|n| n.nics as u64).sum();
        if nics > Limits::NICS {
            return Err(Error::input(
                "too many NICs",
                format!("{nics} NICs"),
                format!("at most {} in all", Limits::NICS),
                "give each node the NICs that it has",
            ));
        }
        let (mut node_of, mut first, mut group_of, mut groups) = (Vec::new(), Vec::new(), Vec::new(), 0u32);
        for (i, node) in nodes.iter().enumerate() {
            let base = node_of.len();
            first.push(base as u32);
            node_of.resize(base + node.ranks as usize, Node(i as u16));
            groups = add_groups(node, &mut group_of, groups)?;
        }
        let topology = Topology { nodes, node_of, first, group_of };
        topology.check_islands()?;
        Ok(topology)
    }

    /// A topology from TOML: one `[[node]]` for each server.
    ///
    /// ```
    /// let topology = mk_core::Topology::from_toml(r#"
    ///     [[node]]
    ///     name = "left"              # for messages; may be left out
    ///     ranks = 4
    ///     nics = 2                   # 0 if left out
    ///     fabric = "rail"            # nodes of one fabric reach each other
    ///     nvlink = [[0, 1], [2, 3]]  # local ranks mapped into each other; all of them if left out
    ///
    ///     [[node]]
    ///     ranks = 2
    ///     nics = 2
    ///     fabric = "rail"
    /// "#)?;
    /// assert_eq!(topology.size(), 6);
    /// # Ok::<(), mk_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// A key that is missing, unknown or given twice, or a value of another type, with its line; and as
    /// [`Topology::new`].
    pub fn from_toml(text: &str) -> Result<Topology, Error> {
        let keys = "[[node]] tables with ranks and, if wanted, name, nics, fabric, nvlink";
        Topology::new(config::from_toml::<TopologyFile>("topology", text, keys)?.node)
    }

    /// The topology as TOML.
    ///
    /// # Panics
    /// Never: nodes have only numbers, names and lists.
    pub fn to_toml(&self) -> String {
        toml::to_string(&TopologyFile { node: self.nodes.clone() }).expect("a list of flat tables is TOML")
    }

    /// Number of ranks.
    #[inline]
    pub fn size(&self) -> u32 {
        self.node_of.len() as u32
    }

    /// All ranks.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.size()).map(|r| Rank(r as u16))
    }

    /// The nodes.
    pub fn nodes(&self) -> &[NodeSpec] {
        &self.nodes
    }

    /// The node of `rank`.
    ///
    /// # Panics
    /// If there is no such rank.
    #[inline]
    pub fn node_of(&self, rank: Rank) -> Node {
        self.node_of[rank.index()]
    }

    /// Place of `rank` in its node.
    #[inline]
    pub fn local(&self, rank: Rank) -> u32 {
        rank.0 as u32 - self.first[self.node_of(rank).index()]
    }

    /// Whether the two ranks' memory is mapped into each other.
    #[inline]
    pub fn mapped(&self, a: Rank, b: Rank) -> bool {
        self.group_of[a.index()] == self.group_of[b.index()]
    }

    /// The NVLink group of `rank`, numbered over all nodes from 0.
    ///
    /// # Panics
    /// If there is no such rank.
    #[inline]
    pub fn group_of(&self, rank: Rank) -> u32 {
        self.group_of[rank.index()]
    }

    /// The NIC of `rank`, numbered over all nodes; `None` if its node has none.
    pub fn nic_of(&self, rank: Rank) -> Option<u32> {
        let node = self.node_of(rank).index();
        let before: u32 = self.nodes[..node].iter().map(|n| n.nics).sum();
        let NodeSpec { ranks, nics, .. } = self.nodes[node];
        (nics > 0).then(|| before + (self.local(rank) as u64 * nics as u64 / ranks as u64) as u32)
    }

    /// Whether the two ranks' NICs are on one fabric.
    pub fn networked(&self, a: Rank, b: Rank) -> bool {
        let (a, b) = (&self.nodes[self.node_of(a).index()], &self.nodes[self.node_of(b).index()]);
        a.nics > 0 && b.nics > 0 && a.fabric == b.fabric
    }

    fn check_islands(&self) -> Result<(), Error> {
        // Ranks of one NVLink group are one piece; so are all groups whose node is on the same fabric.
        let pieces = self.group_of.iter().max().map_or(0, |g| *g as usize + 1);
        let mut parent: Vec<usize> = (0..pieces).collect();
        fn root(parent: &mut [usize], mut i: usize) -> usize {
            while parent[i] != i {
                parent[i] = parent[parent[i]];
                i = parent[i];
            }
            i
        }
        let mut fabrics: std::collections::HashMap<&str, usize> = std::collections::HashMap::new();
        for rank in self.ranks() {
            let node = &self.nodes[self.node_of(rank).index()];
            if node.nics > 0 {
                let group = self.group_of[rank.index()] as usize;
                let other = *fabrics.entry(node.fabric.as_str()).or_insert(group);
                let (a, b) = (root(&mut parent, group), root(&mut parent, other));
                parent[a] = b;
            }
        }
        let main = root(&mut parent, self.group_of[0] as usize);
        let mut island = None;
        for rank in self.ranks() {
            if root(&mut parent, self.group_of[rank.index()] as usize) != main {
                island = Some(rank);
                break;
            }
        }
        let Some(rank) = island else { return Ok(()) };
        let node = &self.nodes[self.node_of(rank).index()];
        Err(Error::input(
            "two ranks cannot reach each other",
            format!(
                "{rank} (node {} '{}', {} NICs) cannot reach rank 0",
                self.node_of(rank).index(),
                node.name,
                node.nics
            ),
            "a path of NVLink or network between any two ranks",
            "give both nodes a NIC on the same fabric, or put the ranks into one nvlink group",
        ))
    }
}

/// Numbers the NVLink groups of a node from `next`; a rank in no group is a group of its own.
fn add_groups(node: &NodeSpec, group_of: &mut Vec<u32>, mut next: u32) -> Result<u32, Error> {
    let base = group_of.len();
    let Some(groups) = &node.nvlink else {
        group_of.resize(base + node.ranks as usize, next);
        return Ok(next + 1);
    };
    group_of.resize(base + node.ranks as usize, u32::MAX);
    for group in groups {
        for &local in group {
            let bad = |what: &str| {
                Error::input(
                    format!("nvlink group of node '{}' {what}", node.name),
                    format!("local rank {local}"),
                    format!("each of 0..{} at most once", node.ranks),
                    "correct the group",
                )
            };
            if local >= node.ranks {
                return Err(bad("names a rank that does not exist"));
            }
            let slot = &mut group_of[base + local as usize];
            if *slot != u32::MAX {
                return Err(bad("names a rank twice"));
            }
            *slot = next;
        }
        next += 1;
    }
    for slot in &mut group_of[base..] {
        if *slot == u32::MAX {
            *slot = next;
            next += 1;
        }
    }
    Ok(next)
}

/// The world as one process sees it: the topology, and which rank it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {
    /// Where the ranks are.
    pub topology: Topology,
    /// This process's rank; `None` where one process holds all of them, as the simulator does.
    pub rank: Option<Rank>,
}

impl World {
    /// A world of `ranks` GPUs of one server, all in this process.
    ///
    /// # Errors
    /// As [`Topology::single_node`].
    pub fn local(ranks: u64) -> Result<World, Error> {
        Ok(World::of(Topology::single_node(ranks)?))
    }

    /// A world with this topology, all in this process.
    pub fn of(topology: Topology) -> World {
        World { topology, rank: None }
    }

    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.topology.size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topology_round_trips_through_toml() {
        let node = |name: &str, ranks, nvlink| NodeSpec {
            name: name.into(),
            ranks,
            nvlink,
            nics: 2,
            fabric: "rail \"0\"".into(),
        };
        let t =
            Topology::new(vec![node("a", 5, None), node("", 4, Some(vec![vec![0, 1], vec![3]]))]).unwrap();
        assert_eq!(Topology::from_toml(&t.to_toml()).unwrap(), t);
        assert!(!t.mapped(Rank(7), Rank(8)) && t.mapped(Rank(5), Rank(6)));
        assert_eq!(t.ranks().map(|r| t.nic_of(r).unwrap()).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 2, 2, 3, 3]);
    }

    #[test]
    fn a_bad_topology_names_line_and_key() {
        let two = "[[node]]\nranks = 2\nname = \"a\"\n\n[[node]]\nranks = 2\nname = \"b\"\n";
        for (text, words) in [
            ("", ["node", "missing"]),
            ("[[node]]\n", ["ranks", "missing"]),
            ("[[node]]\nranks = 0\n", ["0 ranks", "65536"]),
            ("[[node]]\nranks = 8589934592\n", ["line 2", "ranks = 8589934592"]),
            ("[[node]]\nranks = -1\n", ["line 2", "ranks = -1"]),
            ("[[node]]\nranks = \"two\"\n", ["line 2", "ranks"]),
            ("[[node]]\nranks = 4294967295\n[[node]]\nranks = 4294967295\n", ["8589934590 ranks", "65536"]),
            (
                "[[node]]\nranks = 2\nnics = 4294967295\n[[node]]\nranks = 2\nnics = 1\n",
                ["4294967296 NICs", "NICs"],
            ),
            ("[[node]]\nranks = 2\nrank = 3\n", ["line 3", "rank = 3"]),
            ("[[node]]\nranks = 2\nranks = 3\n", ["line 3", "ranks"]),
            ("[[nodes]]\nranks = 2\n", ["line 1", "nodes"]),
            ("[[node]]\nranks = 2\nnvlink = [[0, 2]]\n", ["local rank 2", "does not exist"]),
            ("[[node]]\nranks = 2\nnvlink = [[0], [0]]\n", ["local rank 0", "twice"]),
            ("[[node]]\nranks = 2\nnvlink = [[0]]\n", ["cannot reach", "rank 1"]),
            (two, ["cannot reach", "'b'"]),
            ("[[node]\nranks = 2\n", ["line 1", "[[node]"]),
        ] {
            let e = Topology::from_toml(text).expect_err(text).explain();
            let said = format!("{} {} {} {}", e.message, e.given, e.allowed, e.hint);
            assert!(words.iter().all(|w| said.contains(w)), "{text:?}: '{said}' does not say {words:?}");
        }
        let deep = format!("node = {}", "[".repeat(100_000));
        assert!(Topology::from_toml(&deep).is_err());
    }

    #[test]
    fn nodes_of_different_fabrics_are_islands() {
        let node = |fabric: &str| NodeSpec {
            name: String::new(),
            ranks: 1,
            nvlink: None,
            nics: 1,
            fabric: fabric.into(),
        };
        assert!(Topology::new(vec![node("x"), node("y")]).is_err());
        assert!(Topology::new(vec![node("x"), node("x")]).is_ok());
    }
}
