//! Which ranks reach each other's memory, and which one of an island takes in what comes from elsewhere.

use mk_core::{Caps, Rank, Registry};
use std::collections::HashMap;

/// What ranks of one island offer each other: pushes, signals, and credit by GPU atomics.
pub(super) const PUSH: Caps = Caps::PUT.union(Caps::SIGNAL).union(Caps::ATOMIC_ADD);
/// What a pull needs besides.
pub(super) const PULL: Caps = PUSH.union(Caps::GET);
/// What a shard needs that goes from one island to another; the credit for it goes back by a signal alone.
pub(super) const SEND: Caps = Caps::PUT.union(Caps::SIGNAL);

/// Groups of ranks that are mapped into each other. Between two of them, a byte travels once. A rank is its place among those
/// that take part.
pub(super) struct Islands {
    members: Vec<Vec<u32>>,
    of: Vec<u32>,
    place: Vec<u32>,
}

impl Islands {
    /// The topology's NVLink groups, as far as a transport serves them; a rank that none serves is an island of its own.
    pub(super) fn new(registry: &Registry, ranks: &[Rank]) -> Islands {
        let served = |a, b| registry.route(a, b, PUSH).is_ok() && registry.route(b, a, PUSH).is_ok();
        let mut islands = Islands { members: Vec::new(), of: Vec::new(), place: Vec::new() };
        let mut of_group: HashMap<u32, u32> = HashMap::new();
        for (i, &rank) in ranks.iter().enumerate() {
            let group = registry.topology().group_of(rank);
            let first = |island: u32| ranks[islands.members[island as usize][0] as usize];
            let known = of_group.get(&group).copied().filter(|&island| served(first(island), rank));
            let island = known.unwrap_or_else(|| {
                islands.members.push(Vec::new());
                islands.members.len() as u32 - 1
            });
            of_group.entry(group).or_insert(island);
            let members = &mut islands.members[island as usize];
            islands.of.push(island);
            islands.place.push(members.len() as u32);
            members.push(i as u32);
        }
        islands
    }

    pub(super) fn count(&self) -> u32 {
        self.members.len() as u32
    }

    /// The island of a rank.
    pub(super) fn of(&self, rank: u32) -> u32 {
        self.of[rank as usize]
    }

    /// The ranks of an island.
    pub(super) fn members(&self, island: u32) -> &[u32] {
        &self.members[island as usize]
    }

    /// The place of a rank among those of its island.
    pub(super) fn place(&self, rank: u32) -> u32 {
        self.place[rank as usize]
    }

    /// Ranks of the largest island.
    pub(super) fn largest(&self) -> u64 {
        self.members.iter().map(|m| m.len() as u64).max().unwrap_or(0)
    }

    /// The rank of `island` that takes in the rows of `source`, a rank of another one: the one in its place, where both are
    /// of one size, so that each NIC carries one shard.
    pub(super) fn relay(&self, source: u32, island: u32) -> u32 {
        let (from, to) = (self.members(self.of(source)).len() as u64, self.members(island));
        to[(u64::from(self.place(source)) * to.len() as u64 / from) as usize]
    }

    /// Whose memory `rank` has the rows of `source` from: its own, the source's, or a relay's in its island.
    pub(super) fn feeder(&self, source: u32, rank: u32) -> u32 {
        let island = self.of(rank);
        if self.of(source) == island { source } else { self.relay(source, island) }
    }

    /// How many places after `rank` another rank of its island is.
    pub(super) fn distance(&self, rank: u32, other: u32) -> u64 {
        let len = self.members(self.of(rank)).len() as u32;
        u64::from((self.place(other) + len - self.place(rank)) % len)
    }

    /// The other ranks of its island: the one after `rank` first.
    pub(super) fn after(&self, rank: u32) -> impl Iterator<Item = u32> + use<'_> {
        let (members, place) = (self.members(self.of(rank)), self.place(rank) as usize);
        (1..members.len()).map(move |d| members[(place + d) % members.len()])
    }

    /// The other ranks of its island: the one before `rank` first.
    pub(super) fn before(&self, rank: u32) -> impl Iterator<Item = u32> + use<'_> {
        let (members, place) = (self.members(self.of(rank)), self.place(rank) as usize);
        (1..members.len()).map(move |d| members[(place + members.len() - d) % members.len()])
    }

    /// The other islands, in the order in which `island` sends to them: the next one first, so that no two send to one at a
    /// time.
    pub(super) fn next(&self, island: u32) -> impl Iterator<Item = u32> + use<> {
        let count = self.count();
        (1..count).map(move |d| (island + d) % count)
    }

    /// The other islands, in the order in which `island` receives from them.
    pub(super) fn previous(&self, island: u32) -> impl Iterator<Item = u32> + use<> {
        let count = self.count();
        (1..count).map(move |d| (island + count - d) % count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mk_core::{NodeSpec, Topology, World};
    use mk_nvlink::NvLink;

    fn islands(nodes: &[(u32, Option<Vec<Vec<u32>>>)], nvlink: bool) -> Islands {
        let node = |(ranks, nvlink): &(u32, Option<Vec<Vec<u32>>>)| NodeSpec {
            name: String::new(),
            ranks: *ranks,
            nvlink: nvlink.clone(),
            nics: 1,
            fabric: String::new(),
        };
        let world = World::of(Topology::new(nodes.iter().map(node).collect()).expect("a legal topology"));
        let builder = Registry::builder();
        let builder = if nvlink { builder.transport(NvLink::new()) } else { builder };
        let ranks: Vec<Rank> = world.topology.ranks().collect();
        Islands::new(&builder.build(&world).expect("a legal registry"), &ranks)
    }

    #[test]
    fn groups_are_islands_where_a_transport_serves_them() {
        let nodes = [(3, None), (4, Some(vec![vec![0, 2], vec![1, 3]]))];
        let i = islands(&nodes, true);
        assert_eq!(i.members, [vec![0, 1, 2], vec![3, 5], vec![4, 6]]);
        assert_eq!((i.of(5), i.place(5), i.largest()), (1, 1, 3));
        assert_eq!(islands(&nodes, false).count(), 7);
    }

    #[test]
    fn each_rank_of_an_island_relays_a_share_of_another() {
        let i = islands(&[(4, None), (4, None), (2, None), (8, None)], true);
        assert_eq!([0, 1, 2, 3].map(|s| i.relay(s, 1)), [4, 5, 6, 7]);
        assert_eq!([0, 1, 2, 3].map(|s| i.relay(s, 2)), [8, 8, 9, 9]);
        assert_eq!([0, 1, 2, 3].map(|s| i.relay(s, 3)), [10, 12, 14, 16]);
        assert_eq!((i.feeder(1, 7), i.feeder(6, 7), i.feeder(7, 7)), (5, 6, 7));
    }

    #[test]
    fn peers_and_islands_take_turns() {
        let i = islands(&[(4, None), (1, None), (1, None)], true);
        assert_eq!(i.after(1).collect::<Vec<_>>(), [2, 3, 0]);
        assert_eq!(i.before(1).collect::<Vec<_>>(), [0, 3, 2]);
        assert_eq!(i.next(1).collect::<Vec<_>>(), [2, 0]);
        assert_eq!(i.previous(1).collect::<Vec<_>>(), [0, 2]);
    }
}
