//! Who holds what, and how it travels: the shards of every rank, the row blocks and column tiles that they are cut into,
//! and the relays of each island.

use super::AllGatherGemm;
use super::islands::Islands;
use super::settings::{Gather, Plan, Settings};
use crate::Gemm;
use crate::operators::shard::{block_count, blocks};
use crate::operators::slices::Slices;
use mk_core::{Error, Limits, Rank, Registry};
use std::ops::Range;

/// Up to as many rows of A as a tile has, all of one rank.
#[derive(Clone, Debug)]
pub(super) struct RowBlock {
    /// Place among its rank's row blocks.
    pub(super) index: u64,
    /// Place among all row blocks.
    pub(super) number: u64,
    /// Its rows in A.
    pub(super) rows: Range<u64>,
    /// Its first row in its rank's shard.
    pub(super) local_row: u64,
}

/// Rows of another island that a relay takes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Relayed {
    pub(super) source: u32,
    /// Row blocks that the relay takes in before those of this source.
    pub(super) first: u64,
}

/// The shards of every rank, and their ways. A rank is its place among those that take part.
pub(super) struct Layout {
    /// Ranks that take part.
    pub(super) world: u32,
    ranks: Vec<Rank>,
    /// Rows of A, by rank.
    pub(super) rows: Vec<Range<u64>>,
    /// Columns of B and C, by rank.
    pub(super) cols: Vec<Range<u64>>,
    /// Number of the first row block of each rank; one more for the end.
    pub(super) first_block: Vec<u64>,
    /// Row blocks of the rank that has most.
    pub(super) most_blocks: u64,
    /// Rows of a tile, and columns.
    pub(super) tile_rows: u64,
    pub(super) tile_cols: u64,
    /// Rows of a part of a row block, which one task moves inside an island.
    pub(super) part_rows: u64,
    pub(super) islands: Islands,
    /// Ranks that have columns, by island; none where A has no columns.
    takers: Vec<u32>,
    /// What each rank takes in for its island, in the order in which it arrives; made by [`Layout::relays`].
    relayed: Vec<Vec<Relayed>>,
    /// Place in `relayed` of what comes from each distance.
    from_distance: Vec<Vec<u32>>,
}

/// Rows and columns of a tile. Small ones read operands more often, but where there are few tiles, or a few more than fill the
/// lanes, they share the work better. Of those that take about as long, the largest.
fn tile(op: &AllGatherGemm, shards: &[Range<u64>], cols: u64) -> [u64; 2] {
    let (hardware, lanes) = (&op.hardware, u64::from(op.lane_count()));
    let tallest = shards.iter().map(|r| r.end - r.start).max().unwrap_or(0);
    // Of a lane, all of its tiles one after the other, an element of K: bytes and operations take so long.
    let time = |[rows, width]: [u64; 2]| {
        let row_blocks: u64 = shards.iter().map(|r| block_count(r, rows)).sum();
        let turns = row_blocks.saturating_mul(cols.div_ceil(width)).div_ceil(lanes) as f64;
        let read = rows.min(tallest) + width.min(cols);
        let load_ns = (read * op.dtype.bytes()) as f64 / hardware.sm_gb_per_s;
        let math_ns = (2 * rows * width * u64::from(hardware.sms)) as f64 / (hardware.tensor_tflops * 1000.0);
        turns * load_ns.max(math_ns)
    };
    let smaller = |best, tile| if time(tile) < 0.99 * time(best) { tile } else { best };
    let sizes = [Gemm::ROWS, Gemm::ROW_STEP].into_iter();
    let widths = [Gemm::COLS, Gemm::COLS / 2, Gemm::COLS / 4];
    sizes.flat_map(|rows| widths.map(|width| [rows, width])).fold([Gemm::ROWS, Gemm::COLS], smaller)
}

/// Rows of some ranks, by what moves them: tasks that take row blocks, and tasks that take parts of them.
#[derive(Clone, Copy, Default)]
struct Moved {
    blocks: u64,
    parts: u64,
}

/// What a task moves, at least: with less, its beginning and its end cost more than its bytes.
const LEAST_BYTES: u64 = 16 << 10;
/// Tasks by which a lane moves its share, at most: with more of them, rows would hardly come in a better order.
const TURNS: u64 = 8;

/// Rows that one task moves. All lanes together move about as many at a time as the tiles need that they multiply at a time: so rows
/// come in the order of the tiles, and the K slices of those that are needed at the same time come slice by slice.
fn part_rows(op: &AllGatherGemm, tile_rows: u64, tiles: u64) -> u64 {
    let (row_bytes, lanes) = ((op.k * op.dtype.bytes()).max(1), u64::from(op.lane_count()).max(1));
    let of_lane = op.m.saturating_mul(row_bytes) / lanes;
    let bytes = (of_lane / tiles.div_ceil(lanes).clamp(1, TURNS)).max(LEAST_BYTES);
    // The power of two that is next to it, so that a row block has a whole number of parts.
    let rows = (bytes as f64 / row_bytes as f64).clamp(1.0, tile_rows as f64);
    1 << rows.log2().round() as u32
}

impl Layout {
    /// The layout of an operator whose sizes were checked.
    pub(super) fn new(op: &AllGatherGemm, registry: &Registry) -> Layout {
        let ranks = op.members(registry);
        let world = ranks.len() as u32;
        let rows: Vec<_> = (0..world).map(|r| op.rows(world, r)).collect();
        let cols: Vec<_> = (0..world).map(|r| op.cols(world, r)).collect();
        let widest = cols.iter().map(|c| c.end - c.start).max().unwrap_or(0);
        let [tile_rows, tile_cols] = tile(op, &rows, widest);
        let row_blocks = |rows: &Range<u64>| block_count(rows, tile_rows);
        let mut first_block = vec![0];
        let mut next = 0;
        for rows in &rows {
            next += row_blocks(rows);
            first_block.push(next);
        }
        let part_rows = part_rows(op, tile_rows, next.saturating_mul(widest.div_ceil(tile_cols)));
        let most_blocks = rows.iter().map(row_blocks).max().unwrap_or(0);
        let islands = Islands::new(registry, &ranks);
        let mut takers = vec![0; islands.count() as usize];
        for (r, _) in cols.iter().enumerate().filter(|(_, c)| op.k > 0 && !c.is_empty()) {
            takers[islands.of(r as u32) as usize] += 1;
        }
        let (relayed, from_distance) = (Vec::new(), Vec::new());
        Layout {
            world,
            ranks,
            rows,
            cols,
            first_block,
            most_blocks,
            tile_rows,
            tile_cols,
            part_rows,
            islands,
            takers,
            relayed,
            from_distance,
        }
    }

    /// The rank in this place.
    pub(super) fn rank(&self, place: u32) -> Rank {
        self.ranks[place as usize]
    }

    /// All ranks that take part, with their places.
    pub(super) fn places(&self) -> impl Iterator<Item = (Rank, usize)> + use<'_> {
        self.ranks.iter().copied().zip(0..)
    }

    /// Row blocks of all ranks.
    pub(super) fn row_block_count(&self) -> u64 {
        self.first_block[self.world as usize]
    }

    /// Row blocks of `rank`.
    pub(super) fn blocks_of(&self, rank: u32) -> u64 {
        self.first_block[rank as usize + 1] - self.first_block[rank as usize]
    }

    /// Parts of a row block, each moved by a task of its own.
    pub(super) fn parts(&self, block: &RowBlock) -> impl Iterator<Item = RowBlock> + use<> {
        let (block, start) = (block.clone(), block.rows.start);
        blocks(block.rows.clone(), self.part_rows).map(move |rows| RowBlock {
            local_row: block.local_row + (rows.start - start),
            rows,
            ..block
        })
    }

    /// Parts of all row blocks of `rank`.
    pub(super) fn parts_of(&self, rank: u32) -> u64 {
        self.parts_before(rank, self.blocks_of(rank))
    }

    /// Parts of its first `blocks` row blocks.
    pub(super) fn parts_before(&self, rank: u32, blocks: u64) -> u64 {
        let rows = &self.rows[rank as usize];
        (blocks * self.tile_rows).min(rows.end - rows.start).div_ceil(self.part_rows)
    }

    /// Column tiles of `rank`.
    pub(super) fn col_tile_count(&self, rank: u32) -> u64 {
        block_count(&self.cols[rank as usize], self.tile_cols)
    }

    /// Whether `rank` multiplies rows of A at all.
    pub(super) fn takes(&self, rank: u32) -> bool {
        self.takers[self.islands.of(rank) as usize] > 0 && !self.cols[rank as usize].is_empty()
    }

    /// Whether an island needs the rows of others.
    pub(super) fn island_takes(&self, island: u32) -> bool {
        self.takers[island as usize] > 0
    }

    /// Whether `rank` multiplies rows of other ranks.
    pub(super) fn takes_others(&self, rank: u32) -> bool {
        self.takes(rank) && self.row_block_count() > self.blocks_of(rank)
    }

    /// Whether any row moves at all.
    pub(super) fn exchanges(&self) -> bool {
        (0..self.world).any(|r| self.takes_others(r))
    }

    /// Whether rows move from one island to another.
    pub(super) fn crosses(&self) -> bool {
        self.sends().next().is_some()
    }

    /// Pairs of ranks of which one sends to the other in another island.
    pub(super) fn sends(&self) -> impl Iterator<Item = [u32; 2]> + use<'_> {
        let sources = (0..self.world).filter(|&s| self.blocks_of(s) > 0);
        sources.flat_map(move |s| {
            let islands = self.islands.next(self.islands.of(s)).filter(|&i| self.island_takes(i));
            islands.map(move |i| [s, self.islands.relay(s, i)])
        })
    }

    /// Finds out who relays what. Only for a layout whose size was checked.
    pub(super) fn relays(&mut self) {
        for rank in 0..self.world {
            let island = self.islands.of(rank);
            let (mut relayed, mut starts, mut first) = (Vec::new(), Vec::new(), 0);
            for from in self.islands.previous(island) {
                starts.push(relayed.len() as u32);
                if !self.island_takes(island) {
                    continue;
                }
                for &source in self.islands.members(from) {
                    if self.islands.relay(source, island) == rank {
                        relayed.push(Relayed { source, first });
                        first += self.blocks_of(source);
                    }
                }
            }
            self.relayed.push(relayed);
            self.from_distance.push(starts);
        }
    }

    /// What `rank` takes in for its island, in the order in which it arrives.
    pub(super) fn relayed(&self, rank: u32) -> &[Relayed] {
        &self.relayed[rank as usize]
    }

    /// Row blocks that `rank` takes in for its island.
    pub(super) fn relayed_blocks(&self, rank: u32) -> u64 {
        self.relayed(rank).last().map_or(0, |r| r.first + self.blocks_of(r.source))
    }

    /// The place of a source of another island among those that `relay` takes in.
    pub(super) fn place_at(&self, relay: u32, source: u32) -> usize {
        let (from, to, count) = (self.islands.of(source), self.islands.of(relay), self.islands.count());
        let distance = (to + count - from) % count;
        let start = self.from_distance[relay as usize][distance as usize - 1] as usize;
        // Sources of one relay are neighbours, and there are few.
        let found = self.relayed(relay)[start..].iter().position(|r| r.source == source);
        start + found.expect("a relay takes in the sources that it is asked for")
    }

    /// Refuses what would only fail after hours of planning.
    pub(super) fn check_size(&self, plan: Plan) -> Result<(), Error> {
        let tasks = self.task_count(plan, Gather::Push);
        if tasks > u128::from(Limits::TASKS) {
            return Err(Error::input(
                "AllGather+GEMM of this size has too many tasks",
                format!("{tasks} tasks, {} of them tiles", self.tile_count(plan)),
                format!("at most {} tasks", Limits::TASKS),
                "multiply the matrices in parts",
            ));
        }
        let words = self.words(plan) * u128::from(self.world);
        if self.exchanges() && words > u128::from(Limits::ALL_WORDS) {
            return Err(Error::input(
                "AllGather+GEMM of this size has too many signals",
                format!("{words} words for {} ranks", self.world),
                format!("at most {} words", Limits::ALL_WORDS),
                "use fewer ranks, or multiply the matrices in parts",
            ));
        }
        Ok(())
    }

    /// Tiles of all ranks.
    pub(super) fn tile_count(&self, plan: Plan) -> u128 {
        let tiles = |r: u32| {
            let rows = match plan {
                Plan::Unfused => self.merged(r).map(|rows| block_count(&rows, self.tile_rows)).sum(),
                Plan::Fused => self.row_block_count(),
            };
            u128::from(rows) * u128::from(self.col_tile_count(r))
        };
        (0..self.world).map(tiles).sum()
    }

    /// Tasks of a plan. What only relays know is counted when [`Layout::relays`] has found them.
    pub(super) fn task_count(&self, plan: Plan, gather: Gather) -> u128 {
        let ranks = || 0..self.world;
        let known = !self.relayed.is_empty();
        let all = self.moved(ranks());
        let inside: Vec<Moved> =
            (0..self.islands.count()).map(|i| self.moved(self.islands.members(i).iter().copied())).collect();
        let moves = ranks().map(|r| self.move_count(r, all, inside[self.islands.of(r) as usize]));
        let returns =
            (0..self.islands.count()).filter(|&i| self.island_takes(i)).map(|i| self.sources_outside(i));
        let signals = ranks().map(|r| match gather {
            Gather::Push => 0,
            Gather::Pull => self.read_signals(r),
        });
        let joins = ranks().map(|r| match plan {
            Plan::Fused => 0,
            Plan::Unfused => self.join_count(r, gather, known),
        });
        let besides: u128 = moves.chain(returns).chain(signals).chain(joins).map(u128::from).sum();
        self.tile_count(plan) + besides
    }

    /// Transfers to `rank`: row blocks of other islands that it takes in, also if it does not need them; and part by part, of
    /// all that there are, what it has from neighbours.
    fn move_count(&self, rank: u32, all: Moved, inside: Moved) -> u64 {
        let island = self.islands.of(rank);
        let taken_in = match self.relayed.get(rank as usize) {
            Some(relayed) => self.moved(relayed.iter().map(|r| r.source)),
            None if !self.island_takes(island) => Moved::default(),
            // Nobody knows it before `relays`: an even share.
            None => {
                let members = self.islands.members(island).len() as u64;
                Moved {
                    blocks: (all.blocks - inside.blocks) / members,
                    parts: (all.parts - inside.parts) / members,
                }
            }
        };
        let from_neighbours =
            if self.takes(rank) { all.parts - self.parts_of(rank) - taken_in.parts } else { 0 };
        taken_in.blocks + from_neighbours
    }

    /// What these ranks have.
    fn moved(&self, ranks: impl Iterator<Item = u32>) -> Moved {
        ranks.fold(Moved::default(), |sum, r| Moved {
            blocks: sum.blocks + self.blocks_of(r),
            parts: sum.parts + self.parts_of(r),
        })
    }

    /// Ranks of other islands that have rows: each gets its credit back from an island by itself.
    fn sources_outside(&self, island: u32) -> u64 {
        let inside = self.islands.members(island).iter().filter(|&&r| self.blocks_of(r) > 0).count() as u64;
        self.sources() - inside
    }

    /// Ranks that have rows.
    fn sources(&self) -> u64 {
        (0..self.world).filter(|&r| self.blocks_of(r) > 0).count() as u64
    }

    /// Where rows are pulled: tasks by which their rank announces them, and waits until they are read.
    fn read_signals(&self, rank: u32) -> u64 {
        let peers = if self.blocks_of(rank) > 0 { self.peers(rank) } else { 0 };
        peers.div_ceil(Limits::POSTS as u64) + u64::from(peers > 0)
    }

    /// Unfused: tasks by which `rank` waits for all rows, and gives credit for them.
    fn join_count(&self, rank: u32, gather: Gather, known: bool) -> u64 {
        if !self.takes_others(rank) {
            return 0;
        }
        let own = u64::from(self.blocks_of(rank) > 0);
        let relayed = if known {
            self.relayed(rank).iter().filter(|r| self.blocks_of(r.source) > 0).count() as u64
        } else {
            0
        };
        let waits = self.sources() - own - relayed + u64::from(known && self.relayed_blocks(rank) > 0);
        let feeders = match known {
            true => self.islands.after(rank).filter(|&f| self.pushed_blocks(f, gather) > 0).count() as u64,
            false => self.islands.members(self.islands.of(rank)).len() as u64 - 1,
        };
        waits.div_ceil(Limits::WAITS as u64) + feeders.div_ceil(Limits::POSTS as u64)
    }

    /// Signal words of one rank, at least: for each slice of what arrives, and for credit. [`ProgramBuilder`] counts exactly.
    ///
    /// [`ProgramBuilder`]: mk_core::ProgramBuilder
    fn words(&self, plan: Plan) -> u128 {
        let [all, most, largest] =
            [self.row_block_count(), self.most_blocks, self.islands.largest()].map(u128::from);
        match plan {
            Plan::Fused => all + most * largest,
            Plan::Unfused => u128::from(self.world),
        }
    }

    /// The row blocks of `rank`, in order.
    pub(super) fn row_blocks(&self, rank: u32) -> impl Iterator<Item = RowBlock> + Clone + use<> {
        let (start, first) = (self.rows[rank as usize].start, self.first_block[rank as usize]);
        blocks(self.rows[rank as usize].clone(), self.tile_rows).zip(0..).map(move |(rows, index)| RowBlock {
            index,
            number: first + index,
            local_row: rows.start - start,
            rows,
        })
    }

    /// All rows in three parts: those before the own ones of `rank`, the own ones, those after them.
    pub(super) fn merged(&self, rank: u32) -> impl Iterator<Item = Range<u64>> + Clone + use<> {
        let (own, end) = (self.rows[rank as usize].clone(), self.rows[self.world as usize - 1].end);
        [own.clone(), 0..own.start, own.end..end].into_iter()
    }

    /// The column tiles of `rank`, counted from its first column.
    pub(super) fn col_tiles(&self, rank: u32) -> impl Iterator<Item = Range<u64>> + Clone + use<> {
        let cols = &self.cols[rank as usize];
        blocks(0..cols.end - cols.start, self.tile_cols)
    }

    /// The ranks of `rank`'s island that need its rows or what it relays: the one before it first, so that the peers of one
    /// round differ.
    pub(super) fn fed(&self, rank: u32) -> impl Iterator<Item = u32> + use<'_> {
        self.islands.before(rank).filter(|&p| self.takes(p))
    }

    /// How many they are.
    pub(super) fn peers(&self, rank: u32) -> u64 {
        u64::from(self.takers[self.islands.of(rank) as usize] - u32::from(self.takes(rank)))
    }

    /// Row blocks that `rank` gives to its neighbours by pushing.
    pub(super) fn pushed_blocks(&self, rank: u32, gather: Gather) -> u64 {
        let own = if gather == Gather::Push { self.blocks_of(rank) } else { 0 };
        own + self.relayed_blocks(rank)
    }
}

/// How a row block travels.
pub(super) fn slices(op: &AllGatherGemm, settings: &Settings) -> Slices {
    Slices::new(op.k as u32, settings.slices)
}
