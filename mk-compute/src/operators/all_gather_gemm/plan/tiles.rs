//! Tiles, what they wait for, and the credit that they give.

use super::{Planner, Result};
use crate::GemmArgs;
use crate::operators::all_gather_gemm::arrivals::Arrivals;
use crate::operators::all_gather_gemm::layout::RowBlock;
use crate::operators::shard::blocks;
use crate::operators::slices::Slices;
use mk_core::{Label, PostTo, RegionId, TaskRef, WaitFor, deal};
use std::ops::Range;

/// Column tiles that are multiplied with all rows before the next ones are: what all lanes read at a time is then about as
/// many rows as columns, and fits into the L2.
const GROUP: usize = 8;

/// Tiles of rows that are all there, group by group of columns. Two that follow each other, and go to neighbouring lanes, are above
/// each other and have B in common; in the last row, A.
fn grouped(rows: &[Range<u64>], cols: &[Range<u64>]) -> impl Iterator<Item = (Range<u64>, Range<u64>)> {
    let of_group = move |group: &[Range<u64>]| {
        let of_col = |pair: &[Range<u64>], c: &Range<u64>| {
            pair.iter().map(|r| (r.clone(), c.clone())).collect::<Vec<_>>()
        };
        let of_pair = |pair: &[Range<u64>]| group.iter().flat_map(|c| of_col(pair, c)).collect::<Vec<_>>();
        rows.chunks(2).flat_map(of_pair).collect::<Vec<_>>()
    };
    cols.chunks(GROUP).flat_map(of_group)
}

impl Planner<'_> {
    /// Own rows first, then the others in the order in which they arrive.
    pub(super) fn fused_tiles(&mut self, me: u32, arrivals: &Arrivals<'_>) -> Result<()> {
        let layout = self.layout;
        if layout.cols[me as usize].is_empty() {
            return Ok(());
        }
        let own: Vec<Range<u64>> = layout.row_blocks(me).map(|b| b.rows).collect();
        let mut i = 0;
        for (rows, cols) in grouped(&own, &layout.col_tiles(me).collect::<Vec<_>>()) {
            let operand = self.operand(me, me, &rows);
            self.tile(me, operand, &rows, cols, i)?;
            i += 1;
        }
        for (source, block, _) in arrivals.at(me).into_iter().filter(|(source, ..)| *source != me) {
            let operand = self.operand(me, source, &block.rows);
            for cols in layout.col_tiles(me) {
                let task = self.tile(me, operand, &block.rows, cols, i)?;
                if self.exchange.is_some() {
                    self.guard(task, me, source, &block)?;
                }
                i += 1;
            }
        }
        Ok(())
    }

    /// The same, but rows that are neighbours in `a_gather` are cut as if they were of one rank, and all tiles start when all
    /// rows are there.
    pub(super) fn unfused_tiles(&mut self, me: u32) -> Result<()> {
        let layout = self.layout;
        let credit = layout.relayed_blocks(me) > 0 || self.feeders(me).next().is_some();
        let cols: Vec<Range<u64>> = layout.col_tiles(me).collect();
        let mut i = 0;
        for part in layout.merged(me) {
            let own = part == layout.rows[me as usize];
            let part: Vec<Range<u64>> = blocks(part, layout.tile_rows).collect();
            for (rows, cols) in grouped(&part, &cols) {
                // Which of the other ranks it is does not matter.
                let operand = if own { self.operand(me, me, &rows) } else { self.merged_operand(&rows) };
                let task = self.tile(me, operand, &rows, cols, i)?;
                self.guard_merged(task, me, credit && !own)?;
                i += 1;
            }
        }
        Ok(())
    }

    /// Where rows of A are on `me`, and what a tile of them is called.
    fn operand(&self, me: u32, source: u32, rows: &Range<u64>) -> (RegionId, u64, Label) {
        match &self.exchange {
            Some(x) if source != me => (x.gather, rows.start, x.labels.tile[source as usize]),
            _ => (self.regions[0], rows.start - self.layout.rows[source as usize].start, self.tile),
        }
    }

    fn merged_operand(&self, rows: &Range<u64>) -> (RegionId, u64, Label) {
        match &self.exchange {
            Some(x) => (x.gather, rows.start, x.labels.gathered),
            None => (self.regions[0], 0, self.tile),
        }
    }

    fn tile(
        &mut self,
        me: u32,
        (a, a_row, label): (RegionId, u64, Label),
        rows: &Range<u64>,
        cols: Range<u64>,
        i: u64,
    ) -> Result<TaskRef> {
        let [_, b, c] = self.regions;
        let args = GemmArgs {
            a,
            b,
            c,
            rows: (rows.end - rows.start) as u16,
            cols: (cols.end - cols.start) as u16,
            a_row,
            c_row: rows.start,
            col: cols.start,
            k: self.op.k,
        };
        self.b.task(self.rank(me), deal(i, self.settings.lanes), self.gemm, label, &args)
    }

    /// Slice by slice; and when it has loaded its rows, the rank that they came from may overwrite them in the next epoch.
    fn guard(&mut self, task: TaskRef, me: u32, source: u32, block: &RowBlock) -> Result<()> {
        let Slices { count, every } = self.slices;
        let (layout, x) = (self.layout, self.exchange());
        let feeder = layout.islands.feeder(source, me);
        if feeder == me {
            let place = layout.place_at(me, source);
            let word = x.landed(layout.relayed(me)[place].first, block);
            let (landed, freed) = (x.landed, x.freed);
            self.b.wait(task, WaitFor::all(landed, word).count(count.into()).each_block(every))?;
            return self.b.post(task, PostTo::loaded(self.rank(me), freed, place as u64));
        }
        let (arrival, credit, word) = (x.arrival, x.credit, x.arrival(source, block));
        self.b.wait(task, WaitFor::all(arrival, word).count(count.into()).each_block(every))?;
        let number = match feeder == source {
            // Whoever pulled it needs no credit: its own run of the last epoch has ended.
            true if self.own_pushed(source) == 0 => return Ok(()),
            true => block.index,
            false => {
                let place = layout.place_at(feeder, source);
                self.own_pushed(feeder) + layout.relayed(feeder)[place].first + block.index
            }
        };
        let word = self.exchange().credit(layout.islands.place(me), number);
        self.b.post(task, PostTo::loaded(self.rank(feeder), credit, word))
    }

    fn guard_merged(&mut self, task: TaskRef, me: u32, credit: bool) -> Result<()> {
        if !self.layout.takes_others(me) {
            return Ok(());
        }
        let (gathered, consumed) = (self.exchange().gathered, self.exchange().consumed);
        self.b.wait(task, WaitFor::all(gathered, 0))?;
        if credit { self.b.post(task, PostTo::loaded(self.rank(me), consumed, 0)) } else { Ok(()) }
    }
}
