//! Who holds what: the shards of every rank, and the row blocks and column tiles that they are cut into.

use super::{AllGatherGemm, TILE};
use crate::operators::shard::{block_count, blocks};
use crate::operators::slices::Slices;
use mk_core::{Error, Limits};
use std::ops::Range;

/// Up to 128 rows of A, all of one rank.
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

/// The shards of every rank.
pub(super) struct Layout {
    pub(super) world: u32,
    /// Rows of A, by rank.
    pub(super) rows: Vec<Range<u64>>,
    /// Columns of B and C, by rank.
    pub(super) cols: Vec<Range<u64>>,
    /// Number of the first row block of each rank; one more for the end.
    pub(super) first_block: Vec<u64>,
    /// Row blocks of the rank that has most.
    pub(super) most_blocks: u64,
    /// How a row block travels.
    pub(super) slices: Slices,
    /// Row blocks that are pushed, counted once for each peer.
    pub(super) pushes: u128,
    /// Tiles of all ranks.
    tiles: u128,
}

impl Layout {
    /// The layout of an operator whose sizes were checked.
    pub(super) fn new(op: &AllGatherGemm, world: u32) -> Layout {
        let rows: Vec<_> = (0..world).map(|r| op.rows(world, r)).collect();
        let cols: Vec<_> = (0..world).map(|r| op.cols(world, r)).collect();
        let row_blocks = |rows: &Range<u64>| block_count(rows, TILE[0]);
        let mut first_block = vec![0];
        let mut next = 0;
        for rows in &rows {
            next += row_blocks(rows);
            first_block.push(next);
        }
        let most_blocks = rows.iter().map(row_blocks).max().unwrap_or(0);
        let col_tiles: u128 = cols.iter().map(|c| u128::from(block_count(c, TILE[1]))).sum();
        let takers = cols.iter().filter(|c| !c.is_empty()).count() as u128;
        let to_peers =
            |r: usize| u128::from(row_blocks(&rows[r])) * (takers - u128::from(!cols[r].is_empty()));
        let pushes = if op.k == 0 { 0 } else { (0..world as usize).map(to_peers).sum() };
        let slices = Slices::new(op.k as u32, op.slices);
        let tiles = u128::from(next) * col_tiles;
        Layout { world, rows, cols, first_block, most_blocks, slices, pushes, tiles }
    }

    /// Signal words of one rank: an arrival for each slice of each row block, a credit for each peer and row block.
    fn words(&self) -> u128 {
        let row_blocks = self.first_block[self.world as usize];
        u128::from(row_blocks) * u128::from(self.slices.count)
            + u128::from(self.most_blocks) * u128::from(self.world)
    }

    /// Refuses what would only fail after hours of planning.
    pub(super) fn check_size(&self) -> Result<(), Error> {
        let tasks = self.tiles + self.pushes;
        if tasks > u128::from(Limits::TASKS) {
            return Err(Error::input(
                "AllGather+GEMM of this size has too many tasks",
                format!("{} tiles and {} pushes", self.tiles, self.pushes),
                format!("at most {} tasks", Limits::TASKS),
                "multiply the matrices in parts",
            ));
        }
        let words = self.words() * u128::from(self.world);
        if self.pushes > 0 && words > u128::from(Limits::ALL_WORDS) {
            return Err(Error::input(
                "AllGather+GEMM of this size has too many signals",
                format!("{words} words for {} ranks", self.world),
                format!("at most {} words", Limits::ALL_WORDS),
                "use fewer ranks, or multiply the matrices in parts",
            ));
        }
        Ok(())
    }

    /// The row blocks of `rank`, in order.
    pub(super) fn row_blocks(&self, rank: u32) -> impl Iterator<Item = RowBlock> + Clone + use<> {
        let (start, first) = (self.rows[rank as usize].start, self.first_block[rank as usize]);
        blocks(self.rows[rank as usize].clone(), TILE[0]).zip(0..).map(move |(rows, index)| RowBlock {
            index,
            number: first + index,
            local_row: rows.start - start,
            rows,
        })
    }

    /// The column tiles of `rank`, counted from its first column.
    pub(super) fn col_tiles(&self, rank: u32) -> impl Iterator<Item = Range<u64>> + Clone + use<> {
        let cols = &self.cols[rank as usize];
        blocks(0..cols.end - cols.start, TILE[1])
    }

    /// The other ranks: the one after `rank` first.
    pub(super) fn after(&self, rank: u32) -> impl Iterator<Item = u32> + use<> {
        let world = self.world;
        (1..world).map(move |d| (rank + d) % world)
    }

    /// The other ranks: the one before `rank` first.
    pub(super) fn before(&self, rank: u32) -> impl Iterator<Item = u32> + use<> {
        let world = self.world;
        (1..world).map(move |d| (rank + world - d) % world)
    }

    /// The other ranks whose rows `rank` multiplies; none if it has no columns.
    pub(super) fn sources(&self, rank: u32) -> Vec<u32> {
        let takes = self.takes_rows(rank);
        self.after(rank).filter(|&s| takes && !self.rows[s as usize].is_empty()).collect()
    }

    /// Whether `rank` multiplies rows of other ranks.
    pub(super) fn takes_rows(&self, rank: u32) -> bool {
        let [all, own] = [self.world as usize, rank as usize].map(|r| self.first_block[r]);
        let own = self.first_block[rank as usize + 1] - own;
        !self.cols[rank as usize].is_empty() && all > own
    }
}
