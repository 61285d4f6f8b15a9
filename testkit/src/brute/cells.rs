//! Memory as cells: the pieces into which the rectangles of all accesses cut a region.

use super::legal::Footprint;
use mk_core::{Program, Rank, Rect, RegionId};

/// The cuts of one region on one rank.
#[derive(Clone, Default)]
struct Grid {
    rows: Vec<u64>,
    cols: Vec<u64>,
    /// Index of the first cell of the first copy.
    base: usize,
    copies: u64,
}

impl Grid {
    fn cells(&self) -> usize {
        (self.rows.len() - 1) * (self.cols.len() - 1)
    }
}

/// All cells of a program.
pub(super) struct Cells {
    ranks: usize,
    grids: Vec<Grid>,
    total: usize,
}

impl Cells {
    pub(super) fn new(program: &Program) -> Cells {
        let ranks = program.ranks as usize;
        let mut grids = Vec::new();
        for region in &program.regions {
            for rank in 0..ranks {
                let [rows, cols] = region.extent(Rank(rank as u16));
                let copies = region.depth as u64;
                grids.push(Grid { rows: vec![0, rows], cols: vec![0, cols], base: 0, copies });
            }
        }
        Cells { ranks, grids, total: 0 }
    }

    /// Cuts along the rectangles of these tasks, block by block.
    pub(super) fn cut(&mut self, tasks: &[Footprint]) {
        for task in tasks {
            for access in &task.spec.accesses {
                for block in 0..task.spec.blocks {
                    let r = access.block_rect(block);
                    if !r.is_empty() {
                        let grid = &mut self.grids[access.region.index() * self.ranks + access.rank.index()];
                        grid.rows.extend([r.row, r.row_end()]);
                        grid.cols.extend([r.col, r.col_end()]);
                    }
                }
            }
        }
    }

    pub(super) fn finish(mut self) -> Cells {
        for grid in &mut self.grids {
            for cuts in [&mut grid.rows, &mut grid.cols] {
                cuts.sort_unstable();
                cuts.dedup();
            }
            grid.base = self.total;
            self.total += grid.cells() * grid.copies as usize;
        }
        self
    }

    /// Number of cells.
    pub(super) fn len(&self) -> usize {
        self.total
    }

    /// The cells of a rectangle in the copy that `epoch` uses. The rectangle lies along the cuts.
    pub(super) fn of(&self, region: RegionId, rank: Rank, rect: &Rect, epoch: u64) -> Vec<u32> {
        let grid = &self.grids[region.index() * self.ranks + rank.index()];
        let copy = (epoch % grid.copies) as usize;
        let across = grid.cols.len() - 1;
        let span = |cuts: &[u64], from: u64, to: u64| {
            let at = |x: u64| cuts.partition_point(|&c| c < x);
            at(from)..at(to)
        };
        let cols = span(&grid.cols, rect.col, rect.col_end());
        let base = grid.base + copy * grid.cells();
        span(&grid.rows, rect.row, rect.row_end())
            .flat_map(|r| cols.clone().map(move |c| (base + r * across + c) as u32))
            .collect()
    }

    /// A cell, for people.
    pub(super) fn name(&self, program: &Program, cell: u32) -> String {
        let at = self.grids.partition_point(|g| g.base <= cell as usize);
        // Grids without cells share their base with the next: take the last one that holds the cell.
        let holds = |g: &Grid| (cell as usize) < g.base + g.cells() * g.copies as usize;
        let Some(i) = (0..at).rev().find(|&i| holds(&self.grids[i])) else { return format!("cell {cell}") };
        let grid = &self.grids[i];
        let (place, across) = ((cell as usize - grid.base) % grid.cells(), grid.cols.len() - 1);
        let (r, c) = (place / across, place % across);
        let rect = Rect::new(
            grid.rows[r],
            grid.cols[c],
            grid.rows[r + 1] - grid.rows[r],
            grid.cols[c + 1] - grid.cols[c],
        );
        format!("'{}' of rank {}, {rect}", program.regions[i / self.ranks].name, i % self.ranks)
    }
}
