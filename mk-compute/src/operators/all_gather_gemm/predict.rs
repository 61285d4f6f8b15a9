//! What a plan is likely to take: one rank's lanes, walked once, with the rows arriving as [`arrivals`](super::arrivals) says.

use super::AllGatherGemm;
use super::arrivals::Arrivals;
use super::layout::{Layout, slices};
use super::settings::{Plan, Settings};
use super::wire::When;
use crate::operators::shard::blocks;
use crate::{Gemm, GemmArgs};
use mk_core::{Cost, Env, Error, Handler, Hardware, Rank, Region, RegionId, Registry, Shape};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// What a plan is likely to take. Times are in nanoseconds, of the rank that takes longest.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prediction {
    /// From the start of the run to the last byte of C.
    pub time_ns: f64,
    /// What its tiles would take if all rows were there at the start.
    pub compute_ns: f64,
    /// When the last row arrives.
    pub gathered_ns: f64,
    /// In which its busiest port inside its NVLink group is held.
    pub nvlink_ns: f64,
    /// In which its port to other groups is held.
    pub network_ns: f64,
}

/// What most of the time goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Tensor cores, and the loads that feed them.
    Compute,
    /// Links inside an NVLink group.
    Nvlink,
    /// Links between NVLink groups.
    Network,
    /// None of them for even half of the time: latencies, and waiting for one another.
    Latency,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::Compute => "compute",
            Limit::Nvlink => "NVLink",
            Limit::Network => "the network",
            Limit::Latency => "latency",
        })
    }
}

impl Prediction {
    /// What most of the time goes to, and the share of the time in which it is at work.
    pub fn limit(&self) -> (Limit, f64) {
        let parts = [
            (Limit::Compute, self.compute_ns),
            (Limit::Nvlink, self.nvlink_ns),
            (Limit::Network, self.network_ns),
        ];
        let most = parts.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((Limit::Compute, 0.0));
        let share = if self.time_ns > 0.0 { (most.1 / self.time_ns).min(1.0) } else { 0.0 };
        if share < 0.5 && self.time_ns > 0.0 { (Limit::Latency, 1.0 - share) } else { (most.0, share) }
    }

    fn worse(self, other: Prediction) -> Prediction {
        let max = |f: fn(&Prediction) -> f64| f(&self).max(f(&other));
        Prediction {
            time_ns: max(|p| p.time_ns),
            compute_ns: max(|p| p.compute_ns),
            gathered_ns: max(|p| p.gathered_ns),
            nvlink_ns: max(|p| p.nvlink_ns),
            network_ns: max(|p| p.network_ns),
        }
    }
}

/// What the plan with these settings is likely to take.
///
/// # Errors
/// Ranks that need each other and that no transport connects.
pub(super) fn predict(
    op: &AllGatherGemm,
    layout: &Layout,
    settings: &Settings,
    registry: &Registry,
) -> Result<Prediction, Error> {
    let arrivals = Arrivals::new(op, layout, settings, registry)?;
    let tiles = Tiles::new(op, settings)?;
    let mut worst = Prediction::default();
    for rank in representatives(layout) {
        worst = worst.worse(tiles.of(layout, &arrivals, rank));
    }
    Ok(worst)
}

/// Ranks whose shards, columns and ways differ most: the first, the last, the one with most columns, the one that relays most,
/// and the first of the largest island.
fn representatives(layout: &Layout) -> Vec<u32> {
    let (islands, all) = (&layout.islands, || 0..layout.world);
    let largest = (0..islands.count()).max_by_key(|&i| (islands.members(i).len(), Reverse(i)));
    let width = |r: u32| layout.cols[r as usize].end - layout.cols[r as usize].start;
    let widest = all().max_by_key(|&r| (width(r), Reverse(r)));
    let relay = all().max_by_key(|&r| (layout.relayed_blocks(r), Reverse(r)));
    let first = largest.map(|i| islands.members(i)[0]);
    let mut ranks: Vec<u32> = [Some(0), all().last(), widest, relay, first].into_iter().flatten().collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

/// Tiles of a plan, and what they cost.
struct Tiles<'a> {
    hardware: &'a Hardware,
    plan: Plan,
    lanes: u16,
    slices: u16,
    /// Blocks of K.
    blocks: f64,
    /// Of tiles of full or partial rows and columns: by (rows, columns).
    regions: [Region; 3],
    m: u64,
    k: u64,
    element_bytes: f64,
}

/// Steps of a walk, about: more make no prediction better.
const STEPS: u64 = 1 << 16;

/// How many of so many row blocks are taken together, each of so many steps.
fn alike(blocks: u64, steps: u64) -> usize {
    (blocks.saturating_mul(steps) / STEPS).clamp(1, blocks.max(1)) as usize
}

/// What one lane is up to, in nanoseconds from the start.
#[derive(Clone, Copy, Default)]
struct Lane {
    loaded: f64,
    computed: f64,
    stored: f64,
    /// When it has read all its rows of other islands that the rank relays.
    read: f64,
}

/// Rows of one tile, when they are there, and whether the rank relays them.
type Rows = (u64, When, bool);

impl<'a> Tiles<'a> {
    fn new(op: &'a AllGatherGemm, settings: &Settings) -> Result<Tiles<'a>, Error> {
        let region = |name: &str, rows, cols| Region::heap(name, op.dtype, Shape::Uniform([rows, cols]));
        Ok(Tiles {
            hardware: &op.hardware,
            plan: settings.plan,
            lanes: settings.lanes,
            slices: slices(op, settings).count,
            blocks: op.k.div_ceil(Gemm::BLOCK_K).max(1) as f64,
            regions: [region("a", op.m, op.k), region("b", op.k, op.n), region("c", op.m, op.n)],
            m: op.m,
            k: op.k,
            element_bytes: op.dtype.bytes() as f64,
        })
    }

    /// What a tile costs, by its handler's spec.
    fn cost(&self, rows: u64, cols: u64) -> Cost {
        let [a, b, c] = [RegionId(0), RegionId(1), RegionId(2)];
        let (rows, cols) = (rows as u16, cols as u16);
        let args = GemmArgs { a, b, c, rows, cols, a_row: 0, c_row: 0, col: 0, k: self.k };
        let env = Env { regions: &self.regions, rank: Rank(0), ranks: 1 };
        let spec = Handler::spec(&Gemm, &args, &env);
        spec.map_or(Cost::default(), |spec| self.hardware.time(Gemm::NAME, &spec, self.lanes.into()))
    }

    /// What it takes to read A and these columns of B from memory, and to write these of C.
    fn memory_ns(&self, cols: &Range<u64>) -> f64 {
        let [m, k, n] = [self.m as f64, self.k as f64, (cols.end - cols.start) as f64];
        if n == 0.0 { 0.0 } else { (m * k + k * n + m * n) * self.element_bytes / self.hardware.hbm_gb_per_s }
    }

    fn of(&self, layout: &Layout, arrivals: &Arrivals<'_>, rank: u32) -> Prediction {
        let rows = arrivals.at(rank);
        let gathered = rows.iter().map(|(_, _, when)| when.last).fold(0.0, f64::max);
        // Unfused, the rows' signals are joined, and the join is waited for.
        let join = gathered + self.hardware.local_signal_ns;
        let relays = |source: u32| source != rank && layout.islands.feeder(source, rank) == rank;
        let (end, now) = match self.plan {
            Plan::Fused => {
                let blocks = rows.iter().map(|(s, b, when)| (b.rows.end - b.rows.start, *when, relays(*s)));
                let now = blocks.clone().map(|(rows, ..)| (rows, When::default(), false));
                (self.walk(layout, rank, blocks), self.walk(layout, rank, now))
            }
            Plan::Unfused => {
                let merged = layout.merged(rank).flat_map(|part| blocks(part, layout.tile_rows));
                let merged =
                    merged.map(|b| (b.end - b.start, When::default(), layout.relayed_blocks(rank) > 0));
                let now = self.walk(layout, rank, merged);
                let later = |x| if x > 0.0 { join + x } else { 0.0 };
                let (loaded, stored, read) = (later(now.loaded), later(now.stored), later(now.read));
                (Lane { loaded, stored, read, ..now }, now)
            }
        };
        // However the tiles share operands, each byte comes from memory once.
        let memory_ns = self.memory_ns(&layout.cols[rank as usize]);
        let compute_ns = now.stored.max(memory_ns);
        let [nvlink_ns, network_ns] = arrivals.busy_ns(rank);
        // A run ends when the credit that it gives has arrived, too.
        let [credit, far] = arrivals.credit_ns(rank);
        let returned = if end.read > 0.0 { end.read + self.hardware.local_signal_ns + far } else { 0.0 };
        // A rank that has no tile is done when it has relayed the last row.
        let ends = [end.stored, memory_ns, end.loaded + credit, returned, nvlink_ns, network_ns];
        let time_ns = ends.into_iter().fold(0.0, f64::max);
        Prediction { time_ns, compute_ns, gathered_ns: gathered, nvlink_ns, network_ns }
    }

    /// When the last tile is stored, if they are dealt to the lanes in this order.
    fn walk(&self, layout: &Layout, rank: u32, blocks: impl Iterator<Item = Rows> + Clone) -> Lane {
        let mut lanes = vec![Lane::default(); self.lanes.into()];
        let mut costs = BTreeMap::new();
        let (mut next, count) = (0, lanes.len() as u64);
        let cols = &layout.cols[rank as usize];
        let (width, tiles) = (cols.end - cols.start, layout.col_tile_count(rank));
        let alike = alike(blocks.clone().count() as u64, tiles.min(count));
        // Of row blocks that are taken together, the last one to come stands for all.
        for (rows, when, relayed) in blocks.skip(alike - 1).step_by(alike) {
            let full = tiles * alike as u64;
            for tile in 0..full.min(count) {
                let cols = layout.tile_cols.min(width - (tile % tiles) * layout.tile_cols);
                let cost = *costs.entry((rows, cols)).or_insert_with(|| self.cost(rows, cols));
                let lane = &mut lanes[((next + tile) % count) as usize];
                // Tiles of one lane and one row block come one after the other, and only the first may have to wait.
                let more = (full - 1 - tile) / count;
                self.step(lane, &cost, &when);
                self.steps(lane, &cost, more as f64);
                if relayed {
                    lane.read = lane.loaded;
                }
            }
            next = (next + full) % count;
        }
        lanes.into_iter().fold(Lane::default(), |a, b| Lane {
            loaded: a.loaded.max(b.loaded),
            stored: a.stored.max(b.stored),
            read: a.read.max(b.read),
            ..a
        })
    }

    /// So many more tiles whose rows are there.
    fn steps(&self, lane: &mut Lane, cost: &Cost, count: f64) {
        let load = cost.load_ns + self.hardware.task_ns;
        let each = load.max(cost.math_ns).max(cost.store_ns);
        lane.loaded += count * load;
        lane.computed += count * each;
        lane.stored += count * each;
    }

    /// One more tile on a lane, which loads it while it multiplies the one before.
    fn step(&self, lane: &mut Lane, cost: &Cost, when: &When) {
        let mut loaded = lane.loaded + self.hardware.task_ns;
        if when.last > loaded {
            let part = cost.load_ns / f64::from(self.slices.max(1));
            for i in 0..self.slices {
                loaded = loaded.max(when.slice(i, self.slices)) + part;
            }
        } else {
            loaded += cost.load_ns;
        }
        lane.computed = (lane.computed + cost.math_ns).max(loaded + cost.math_ns / self.blocks);
        lane.stored = lane.stored.max(lane.computed) + cost.store_ns;
        lane.loaded = loaded;
    }
}
