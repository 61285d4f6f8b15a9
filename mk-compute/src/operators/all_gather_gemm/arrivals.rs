//! When rows arrive: what the order of tiles follows, and what predictions rest on.

use super::AllGatherGemm;
use super::islands::{PUSH, SEND};
use super::layout::{Layout, Relayed, RowBlock, slices};
use super::settings::{Gather, Settings};
use super::wire::{When, Wire};
use mk_core::{CommOp, Error, Registry};
use std::cell::OnceCell;
use std::collections::HashMap;

/// What rows cost on their way, of every plan with the same settings.
pub(super) struct Arrivals<'a> {
    layout: &'a Layout,
    gather: Gather,
    slices: f64,
    row_bytes: f64,
    /// By island: own rows inside it, rows of others inside it, and own rows to another one.
    inside: Vec<Wire>,
    forward: Vec<Wire>,
    between: Vec<Wire>,
    /// By rank: see [`Arrivals::forwards`].
    forwards: Vec<OnceCell<Vec<When>>>,
}

impl<'a> Arrivals<'a> {
    /// # Errors
    /// Ranks that need each other and that no transport connects.
    pub(super) fn new(
        op: &AllGatherGemm,
        layout: &'a Layout,
        settings: &Settings,
        registry: &Registry,
    ) -> Result<Arrivals<'a>, Error> {
        let (mut inside, mut forward, mut between) = (Vec::new(), Vec::new(), Vec::new());
        let own = match settings.gather {
            Gather::Push => CommOp::PutSignal,
            Gather::Pull => CommOp::Get,
        };
        for island in 0..layout.islands.count() {
            inside.push(wire_inside(op, layout, settings, registry, island, own)?);
            forward.push(wire_inside(op, layout, settings, registry, island, CommOp::PutSignal)?);
            between.push(wire_between(op, layout, settings, registry, island)?);
        }
        Ok(Arrivals {
            layout,
            gather: settings.gather,
            slices: slices(op, settings).count.into(),
            row_bytes: (op.k * op.dtype.bytes()) as f64,
            inside,
            forward,
            between,
            forwards: vec![OnceCell::new(); layout.world as usize],
        })
    }

    fn bytes(&self, block: &RowBlock) -> f64 {
        (block.rows.end - block.rows.start) as f64 * self.row_bytes
    }

    /// All rows of a rank.
    fn shard_bytes(&self, rank: u32) -> f64 {
        let rows = &self.layout.rows[rank as usize];
        (rows.end - rows.start) as f64 * self.row_bytes
    }

    /// What one of a rank's row blocks has on average, and a part of one.
    fn block_bytes(&self, rank: u32) -> f64 {
        self.shard_bytes(rank) / self.layout.blocks_of(rank).max(1) as f64
    }

    fn part_bytes(&self, rank: u32) -> f64 {
        self.shard_bytes(rank) / self.layout.parts_of(rank).max(1) as f64
    }

    /// All row blocks in the order in which they reach `rank`, each with its rank and when it is there. Own ones come first,
    /// neighbours' in their turn, and those of other islands as they arrive.
    pub(super) fn at(&self, rank: u32) -> Vec<(u32, RowBlock, When)> {
        let layout = self.layout;
        let own = |r: u32| layout.row_blocks(r).map(move |b| (r, b, When::default()));
        if !layout.takes(rank) {
            // A without columns: there is nothing to wait for.
            return (0..layout.world).flat_map(own).collect();
        }
        let mut all: Vec<_> = own(rank).collect();
        self.neighbours(rank, &mut all);
        for feeder in std::iter::once(rank).chain(layout.islands.after(rank)) {
            self.relayed(feeder, rank, &mut all);
        }
        all.sort_by(|(_, a, x), (_, b, y)| x.last.total_cmp(&y.last).then(a.number.cmp(&b.number)));
        self.through_one_port(rank, &mut all);
        all
    }

    /// All that comes from neighbours passes one port of `rank`: of those that would be there at once, some come later.
    fn through_one_port(&self, rank: u32, all: &mut [(u32, RowBlock, When)]) {
        let islands = &self.layout.islands;
        let island = islands.of(rank);
        let (own, others) = (&self.inside[island as usize], &self.forward[island as usize]);
        let mut passed = own.start_ns + own.latency_ns;
        for (source, block, when) in all.iter_mut().filter(|(s, ..)| islands.feeder(*s, rank) != rank) {
            let wire = if islands.of(*source) == island { own } else { others };
            passed += self.bytes(block) * wire.port_ns;
            when.last = when.last.max(passed);
        }
    }

    /// Appends the rows of the neighbours of `rank`. A neighbour pushes to one peer after the other, and this rank's turn comes
    /// as its distance says; a rank pulls from one neighbour after the other. Both ways, what is nearer comes first.
    fn neighbours(&self, rank: u32, all: &mut Vec<(u32, RowBlock, When)>) {
        let layout = self.layout;
        let wire = &self.inside[layout.islands.of(rank) as usize];
        let (mut pulled, all_pulled) = (0, self.own_moves(rank));
        for (turn, source) in (0..).zip(layout.islands.after(rank)) {
            let parts = layout.parts_of(source);
            let (before, count) = match self.gather {
                Gather::Push => (turn * parts, parts * layout.peers(source)),
                Gather::Pull => (pulled, all_pulled),
            };
            for block in layout.row_blocks(source) {
                // A row block is there when its last part is.
                let last = layout.parts_before(source, block.index + 1) - 1;
                let passes = wire.passes(before + last, count, self.part_bytes(source));
                all.push((source, block, When::of(passes, self.slices, wire.latency_ns)));
            }
            pulled += parts;
        }
    }

    /// Appends what `feeder` takes in from other islands and `rank` has from it.
    fn relayed(&self, feeder: u32, rank: u32, all: &mut Vec<(u32, RowBlock, When)>) {
        let layout = self.layout;
        let peers = layout.peers(feeder);
        let turn = layout.islands.distance(rank, feeder).saturating_sub(1).min(peers.saturating_sub(1));
        let mut first = turn;
        for relayed in layout.relayed(feeder) {
            for block in layout.row_blocks(relayed.source) {
                let when = match feeder == rank {
                    true => self.landed(feeder, relayed, &block),
                    false => self.forwards(feeder)[first as usize],
                };
                all.push((relayed.source, block, when));
                first += peers;
            }
        }
    }

    /// When each forward of `feeder` is there, in the order of the plan.
    fn forwards(&self, feeder: u32) -> &[When] {
        self.forwards[feeder as usize].get_or_init(|| self.walk(feeder))
    }

    /// Each part of a forward takes the next lane, behind what that moves of its own, and holds it until the last slice has landed and
    /// left; all of them share the port.
    fn walk(&self, feeder: u32) -> Vec<When> {
        let (layout, island) = (self.layout, self.layout.islands.of(feeder));
        let wire = &self.forward[island as usize];
        let (mut lanes, mut port) = self.behind_own(feeder);
        let mut next = self.own_moves(feeder);
        let mut all = Vec::new();
        for relayed in layout.relayed(feeder) {
            for block in layout.row_blocks(relayed.source) {
                let landed = self.landed(feeder, relayed, &block);
                for _ in 0..layout.peers(feeder) {
                    let mut whole = (0.0_f64, 0.0_f64);
                    for part in layout.parts(&block) {
                        let (lane, bytes) = (&mut lanes[(next % wire.lanes) as usize], self.bytes(&part));
                        let start = lane.max(landed.first);
                        port = port.max(start) + bytes * wire.port_ns;
                        let last_slice = bytes * wire.lane_ns / self.slices;
                        let end = port.max(start + bytes * wire.lane_ns).max(landed.last + last_slice);
                        whole = (whole.0.max(start), whole.1.max(end));
                        (*lane, next) = (end, next + 1);
                    }
                    all.push(When::of(whole, self.slices, wire.latency_ns));
                }
            }
        }
        all
    }

    /// When each lane that moves rows inside the island, and the port, is done with the own rows of `rank`.
    fn behind_own(&self, rank: u32) -> (Vec<f64>, f64) {
        let wire = &self.inside[self.layout.islands.of(rank) as usize];
        let (count, bytes) = (self.own_moves(rank), self.part_bytes(rank));
        let end = |i: u64| wire.passes(i, count, bytes).1;
        let last_of = |lane: u64| (count > lane).then(|| lane + (count - 1 - lane) / wire.lanes * wire.lanes);
        let lanes = (0..wire.lanes).map(|lane| last_of(lane).map_or(wire.start_ns, end)).collect();
        (lanes, count.checked_sub(1).map_or(wire.start_ns, end))
    }

    /// Tasks by which `rank` moves rows before it forwards any.
    fn own_moves(&self, rank: u32) -> u64 {
        match self.gather {
            Gather::Push => self.layout.parts_of(rank) * self.layout.peers(rank),
            Gather::Pull if !self.layout.takes(rank) => 0,
            Gather::Pull => self.layout.islands.after(rank).map(|r| self.layout.parts_of(r)).sum(),
        }
    }

    /// When a row block of another island has come to its relay: when its rank has sent it, and what comes before it has
    /// passed the relay's port.
    fn landed(&self, relay: u32, from: &Relayed, block: &RowBlock) -> When {
        let (islands, source) = (&self.layout.islands, from.source);
        let (here, there) = (islands.of(relay), islands.of(source));
        let distance = (here + islands.count() - there) % islands.count();
        let (blocks, bytes) = (self.layout.blocks_of(source), self.block_bytes(source));
        let (before, count) = (u64::from(distance - 1) * blocks, u64::from(islands.count() - 1) * blocks);
        let wire = &self.between[there as usize];
        let (start, end) = wire.passes(before + block.index, count, bytes);
        let into = (from.first + block.index + 1) as f64 * bytes * self.between[here as usize].port_ns;
        let late = (wire.start_ns + into - end).max(0.0);
        When::of((start + late, end + late), self.slices, wire.latency_ns)
    }

    /// What the credit takes that `rank` gives to neighbours that push to it, and to other islands that send to it.
    pub(super) fn credit_ns(&self, rank: u32) -> [f64; 2] {
        let (layout, islands) = (self.layout, &self.layout.islands);
        let pushed = self.gather == Gather::Push || layout.crosses();
        let inside = if pushed { self.inside[islands.of(rank) as usize].way_ns } else { 0.0 };
        let sources = layout.relayed(rank).iter().map(|r| islands.of(r.source) as usize);
        [inside, sources.map(|island| self.between[island].way_ns).fold(0.0, f64::max)]
    }

    /// Time in which the busiest port inside an island of `rank` is held, and that of its way out of it.
    pub(super) fn busy_ns(&self, rank: u32) -> [f64; 2] {
        let (layout, islands) = (self.layout, &self.layout.islands);
        let island = islands.of(rank);
        let all: f64 = (0..layout.world).map(|r| self.shard_bytes(r)).sum();
        let own = self.shard_bytes(rank);
        let relayed: f64 = layout.relayed(rank).iter().map(|s| self.shard_bytes(s.source)).sum();
        let into = if layout.takes(rank) { all - own - relayed } else { 0.0 };
        let out = (own + relayed) * layout.peers(rank) as f64;
        let elsewhere = islands.next(island).filter(|&i| layout.island_takes(i)).count() as f64;
        [
            into.max(out) * self.inside[island as usize].port_ns,
            (own * elsewhere).max(relayed) * self.between[island as usize].port_ns,
        ]
    }
}

/// How own rows or those of others move inside an island.
fn wire_inside(
    op: &AllGatherGemm,
    layout: &Layout,
    settings: &Settings,
    registry: &Registry,
    island: u32,
    with: CommOp,
) -> Result<Wire, Error> {
    let [a, b, ..] = *layout.islands.members(island) else { return Ok(Wire::NONE) };
    let route = registry.route(layout.rank(a), layout.rank(b), PUSH)?;
    Wire::inside(&route, with, settings.comm_lanes, &op.hardware)
}

/// How ranks of an island send to the next one that takes rows, as many of them through one port as share it.
fn wire_between(
    op: &AllGatherGemm,
    layout: &Layout,
    settings: &Settings,
    registry: &Registry,
    island: u32,
) -> Result<Wire, Error> {
    let islands = &layout.islands;
    let Some(next) = islands.next(island).find(|&i| layout.island_takes(i)) else { return Ok(Wire::NONE) };
    let (mut wire, mut sharing) = (Wire::NONE, HashMap::new());
    for &rank in islands.members(island).iter().filter(|&&r| layout.blocks_of(r) > 0) {
        let route = registry.route(layout.rank(rank), layout.rank(islands.relay(rank, next)), SEND)?;
        *sharing.entry(route.link(&op.hardware).egress.id).or_insert(0) += 1;
        wire = Wire::new(&route, CommOp::PutSignal, settings.network_lanes, &op.hardware)?;
    }
    Ok(wire.shared(sharing.values().copied().max().unwrap_or(1)))
}
