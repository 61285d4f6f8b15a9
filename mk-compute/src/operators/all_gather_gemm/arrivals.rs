//! When rows arrive, by alpha and beta of the links: what the order of tiles follows, and what predictions rest on.
//!
//! Messages that share a port follow one another in the order of the plan. As many of them as there are lanes to send them are
//! under way at a time, share the port evenly and arrive together.

use super::islands::{PUSH, SEND};
use super::layout::{Layout, Relayed, RowBlock, slices};
use super::settings::{Gather, Settings};
use super::{AllGatherGemm, TILE};
use mk_core::{CommOp, Error, Hardware, Registry, Route};

/// What a byte and a message cost on the way from one rank to another.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wire {
    /// From the last byte sent to the signal seen.
    latency_ns: f64,
    ns_per_byte: f64,
    /// Messages under way at a time.
    at_once: f64,
}

impl Wire {
    /// Inside an island: a port of each rank, and as much of it as `lanes` lanes fill with messages of `bytes`.
    fn inside(
        route: &Route<'_>,
        op: CommOp,
        lanes: u16,
        bytes: f64,
        hardware: &Hardware,
    ) -> Result<Wire, Error> {
        let (link, factor) = (route.link(hardware), hardware.factor(route.handler(op)?));
        let port = 1.0 / link.egress.gb_per_s.min(link.ingress.gb_per_s);
        // A lane that pulls asks for a slice when it has the one before; pushes follow one another at once.
        let asks = if op == CommOp::Get { 2.0 * link.latency_ns } else { 0.0 };
        let lane = 1.0 / hardware.sm_copy_gb_per_s + asks / bytes.max(1.0);
        let (latency_ns, ns_per_byte) = (link.latency_ns, factor * port.max(lane / f64::from(lanes)));
        Ok(Wire { latency_ns, ns_per_byte, at_once: lanes.into() })
    }

    /// Between islands: `sharing` ranks send through one port. Without order, the signal waits until the data is
    /// acknowledged.
    fn between(route: &Route<'_>, lanes: u16, sharing: f64, hardware: &Hardware) -> Result<Wire, Error> {
        let (link, factor) = (route.link(hardware), hardware.factor(route.handler(CommOp::PutSignal)?));
        let port = sharing / link.egress.gb_per_s.min(link.ingress.gb_per_s);
        let ways = if link.ordered { 1.0 } else { 3.0 };
        Ok(Wire { latency_ns: ways * link.latency_ns, ns_per_byte: factor * port, at_once: lanes.into() })
    }

    /// When message `i` of equal ones of `bytes` starts and ends to pass the port, if the first may start at 0.
    fn passes(&self, i: u64, bytes: f64) -> (f64, f64) {
        let batch = (i as f64 / self.at_once).floor();
        let span = self.at_once * bytes * self.ns_per_byte;
        (batch * span, (batch + 1.0) * span)
    }
}

/// When the slices of a row block are there, in nanoseconds: the first, and the last; those between are spread evenly.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct When {
    pub(super) first: f64,
    pub(super) last: f64,
}

impl When {
    /// A message that passes the port from `start` to `end`, in `slices` slices.
    fn of((start, end): (f64, f64), slices: f64, latency: f64) -> When {
        When { first: start + (end - start) / slices + latency, last: end + latency }
    }

    /// When slice `i` of `slices` is there.
    pub(super) fn slice(&self, i: u16, slices: u16) -> f64 {
        match slices {
            0 | 1 => self.last,
            _ => self.first + (self.last - self.first) * f64::from(i) / f64::from(slices - 1),
        }
    }
}

/// What rows cost on their way, of every plan with the same settings.
pub(super) struct Arrivals<'a> {
    layout: &'a Layout,
    slices: f64,
    row_bytes: f64,
    /// By island.
    inside: Vec<Wire>,
    between: Vec<Wire>,
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
        let (mut inside, mut between) = (Vec::new(), Vec::new());
        for island in 0..layout.islands.count() {
            inside.push(wire_inside(op, layout, settings, registry, island)?);
            between.push(wire_between(op, layout, settings, registry, island)?);
        }
        Ok(Arrivals {
            layout,
            slices: slices(op, settings).count.into(),
            row_bytes: (op.k * op.dtype.bytes()) as f64,
            inside,
            between,
        })
    }

    fn bytes(&self, block: &RowBlock) -> f64 {
        (block.rows.end - block.rows.start) as f64 * self.row_bytes
    }

    /// A full block of a rank: what its blocks before the last one are like.
    fn block_bytes(&self, rank: u32) -> f64 {
        let rows = &self.layout.rows[rank as usize];
        (rows.end - rows.start).min(TILE[0]) as f64 * self.row_bytes
    }

    /// All row blocks in the order in which they reach `rank`, each with its rank and when it is there. Own ones come first,
    /// neighbours' in their turn, and those of other islands as they arrive.
    pub(super) fn at(&self, rank: u32) -> Vec<(u32, RowBlock, When)> {
        let (layout, islands) = (self.layout, &self.layout.islands);
        let own = |r: u32| layout.row_blocks(r).map(move |b| (r, b, When::default()));
        if !layout.takes(rank) {
            // A without columns: there is nothing to wait for.
            return (0..layout.world).flat_map(own).collect();
        }
        let mut all: Vec<_> = own(rank).collect();
        // A neighbour pushes to one peer after the other, and this rank's turn comes as its distance says; a rank pulls from
        // one neighbour after the other. Both ways, what is nearer comes first.
        let wire = &self.inside[islands.of(rank) as usize];
        let mut turn = 0;
        for source in islands.after(rank) {
            for block in layout.row_blocks(source) {
                let passes = wire.passes(turn, self.block_bytes(source));
                all.push((source, block, When::of(passes, self.slices, wire.latency_ns)));
                turn += 1;
            }
        }
        for feeder in std::iter::once(rank).chain(islands.after(rank)) {
            self.relayed(feeder, rank, &mut all);
        }
        all.sort_by(|(_, a, x), (_, b, y)| x.last.total_cmp(&y.last).then(a.number.cmp(&b.number)));
        all
    }

    /// Appends what `feeder` takes in from other islands and `rank` has from it.
    fn relayed(&self, feeder: u32, rank: u32, all: &mut Vec<(u32, RowBlock, When)>) {
        let (layout, islands) = (self.layout, &self.layout.islands);
        let wire = &self.inside[islands.of(feeder) as usize];
        let peers = layout.fed(feeder).count() as f64;
        let turn = layout.fed(feeder).position(|p| p == rank).unwrap_or(0) as f64;
        // Forwards go out behind the feeder's own rows.
        let own = layout.blocks_of(feeder) as f64 * self.block_bytes(feeder) * wire.ns_per_byte;
        let mut free = own * peers;
        for &Relayed { source, .. } in layout.relayed(feeder) {
            for block in layout.row_blocks(source) {
                let landed = self.landed(source, islands.of(feeder), &block);
                let one = self.bytes(&block) * wire.ns_per_byte;
                let start = free.max(landed.first);
                free = start + one * peers;
                let pushed = When {
                    first: start + one * turn + one / self.slices,
                    last: (start + one * (turn + 1.0)).max(landed.last),
                };
                let there = |x: f64| x + wire.latency_ns;
                let when = match feeder == rank {
                    true => landed,
                    false => When { first: there(pushed.first), last: there(pushed.last) },
                };
                all.push((source, block, when));
            }
        }
    }

    /// When a row block has come from `source` to its relay in `island`.
    fn landed(&self, source: u32, island: u32, block: &RowBlock) -> When {
        let (islands, from) = (&self.layout.islands, self.layout.islands.of(source));
        let distance = (island + islands.count() - from) % islands.count();
        let before = u64::from(distance - 1) * self.layout.blocks_of(source);
        let wire = &self.between[from as usize];
        When::of(wire.passes(before + block.index, self.block_bytes(source)), self.slices, wire.latency_ns)
    }

    /// Time in which the busiest port inside an island of `rank` is held, and that of its way out of it.
    pub(super) fn busy_ns(&self, rank: u32) -> [f64; 2] {
        let (layout, islands) = (self.layout, &self.layout.islands);
        let island = islands.of(rank);
        let rows =
            |r: u32| (layout.rows[r as usize].end - layout.rows[r as usize].start) as f64 * self.row_bytes;
        let all: f64 = (0..layout.world).map(rows).sum();
        let relayed = |r: u32| layout.relayed(r).iter().map(|s| rows(s.source)).sum::<f64>();
        let into = if layout.takes(rank) { all - rows(rank) - relayed(rank) } else { 0.0 };
        let peers = layout.fed(rank).count() as f64;
        let out = (rows(rank) + relayed(rank)) * peers;
        let elsewhere = islands.next(island).filter(|&i| layout.island_takes(i)).count() as f64;
        [
            into.max(out) * self.inside[island as usize].ns_per_byte,
            (rows(rank) * elsewhere).max(relayed(rank)) * self.between[island as usize].ns_per_byte,
        ]
    }
}

fn wire_inside(
    op: &AllGatherGemm,
    layout: &Layout,
    settings: &Settings,
    registry: &Registry,
    island: u32,
) -> Result<Wire, Error> {
    let members = layout.islands.members(island);
    let [Some(&a), Some(&b)] = [members.first(), members.get(1)] else { return Ok(Wire::default()) };
    let route = registry.route(layout.rank(a), layout.rank(b), PUSH)?;
    let with = match settings.gather {
        Gather::Push => CommOp::PutSignal,
        Gather::Pull => CommOp::Get,
    };
    let rows = (op.m / u64::from(layout.world)).clamp(1, TILE[0]);
    let bytes = (rows * op.k * op.dtype.bytes()) as f64 / f64::from(slices(op, settings).count);
    Wire::inside(&route, with, settings.comm_lanes, bytes, &op.hardware)
}

fn wire_between(
    op: &AllGatherGemm,
    layout: &Layout,
    settings: &Settings,
    registry: &Registry,
    island: u32,
) -> Result<Wire, Error> {
    let islands = &layout.islands;
    let Some(next) = islands.next(island).find(|&i| layout.island_takes(i)) else {
        return Ok(Wire::default());
    };
    let mut ports = std::collections::BTreeMap::new();
    let mut first = None;
    for &rank in islands.members(island).iter().filter(|&&r| layout.blocks_of(r) > 0) {
        let route = registry.route(layout.rank(rank), layout.rank(islands.relay(rank, next)), SEND)?;
        *ports.entry(route.link(&op.hardware).egress.id).or_insert(0u32) += 1;
        first.get_or_insert(route);
    }
    let sharing = ports.values().copied().max().unwrap_or(1);
    match first {
        Some(route) => Wire::between(&route, settings.network_lanes, sharing.into(), &op.hardware),
        None => Ok(Wire::default()),
    }
}
