//! The tasks of AllGather + GEMM, and what they wait for.
//!
//! ```text
//! source r     push of a row block: waits for `credit` (the peer's tiles have read the block of the last epoch),
//!              posts `arrival` at the peer, a word for each K slice
//! peer p       tile: waits for `arrival` slice by slice, posts `credit` at r when it has loaded its operands
//! ```
//!
//! Unfused, all pushes from one source to one peer post one word when they are done; joins wait for the words of all
//! sources and post `gathered`, for which every tile waits. One word for all sources would need no joins, but its
//! epochs would be kept apart by nothing that is easy to see.

use super::layout::{Layout, RowBlock};
use super::{AllGatherGemm, Plan};
use crate::operators::slices::Slices;
use crate::{Gemm, GemmArgs};
use mk_core::{
    Caps, CommOp, CopyArgs, Error, Handler, Label, Limits, Op, PostTo, Program, ProgramBuilder, Rank, Region,
    RegionId, Registry, Shape, SignalKind, SignalRef, SyncArgs, TaskRef, WaitFor, deal,
};
use std::ops::Range;

/// What a push into a peer needs; and the peer's tiles, to give credit back.
const NEED: Caps = Caps::PUT.union(Caps::SIGNAL).union(Caps::ATOMIC_ADD);

/// What only a plan that pushes has.
struct Exchange {
    gather: RegionId,
    arrival: SignalRef,
    credit: SignalRef,
    /// Unfused: all rows have arrived.
    gathered: Option<SignalRef>,
    /// `all rows gathered`.
    join: Label,
    /// `push to rank p`.
    push: Vec<Label>,
    /// `tile from rank s`.
    tile: Vec<Label>,
}

/// A program under construction.
pub(super) struct Planner<'a> {
    op: &'a AllGatherGemm,
    layout: &'a Layout,
    registry: &'a Registry,
    b: ProgramBuilder,
    lanes: u16,
    comm_lanes: u16,
    gemm: Op,
    regions: [RegionId; 3],
    tile: Label,
    exchange: Option<Exchange>,
}

impl<'a> Planner<'a> {
    /// Declares handlers, regions, signals and labels.
    pub(super) fn new(
        op: &'a AllGatherGemm,
        layout: &'a Layout,
        registry: &'a Registry,
    ) -> Result<Planner<'a>, Error> {
        let mut b = ProgramBuilder::new(&op.to_string(), registry);
        let len = |r: &Range<u64>| r.end - r.start;
        let per_rank = |extent: &dyn Fn(usize) -> [u64; 2]| {
            Shape::PerRank((0..layout.world as usize).map(extent).collect())
        };
        let a = per_rank(&|r| [len(&layout.rows[r]), op.k]);
        let of_b = per_rank(&|r| [op.k, len(&layout.cols[r])]);
        let c = per_rank(&|r| [op.m, len(&layout.cols[r])]);
        let regions = [
            b.region(Region::input(AllGatherGemm::A, op.dtype, a))?,
            b.region(Region::input(AllGatherGemm::B, op.dtype, of_b))?,
            b.region(Region::output(AllGatherGemm::C, op.dtype, c))?,
        ];
        let gemm = b.op(Gemm::NAME)?;
        let tile = b.label("tile local");
        let exchange = match layout.pushes {
            0 => None,
            _ => Some(Exchange::new(op, layout, &mut b)?),
        };
        let (lanes, comm_lanes) = (op.lane_count(), op.comm_lane_count());
        Ok(Planner { op, layout, registry, b, lanes, comm_lanes, gemm, regions, tile, exchange })
    }

    pub(super) fn plan(mut self) -> Result<Program, Error> {
        for rank in 0..self.layout.world {
            self.pushes(rank)?;
            self.joins(rank)?;
            self.tiles(rank)?;
        }
        self.b.finish()
    }

    /// Peers in turn, each from another source: rank `r` sends to `r - 1` first, so `p` receives from `p + 1` first,
    /// and no ingress serves two sources while another is idle.
    fn pushes(&mut self, rank: u32) -> Result<(), Error> {
        if self.exchange.is_none() || self.layout.rows[rank as usize].is_empty() {
            return Ok(());
        }
        let layout = self.layout;
        let mut i = 0;
        for peer in layout.before(rank).filter(|&p| !layout.cols[p as usize].is_empty()) {
            let (from, to) = (Rank(rank as u16), Rank(peer as u16));
            // The pushes go one way, the credits the other.
            self.registry.route(to, from, NEED)?;
            let put = self.b.op(self.registry.route(from, to, NEED)?.handler(CommOp::PutSignal)?)?;
            for block in layout.row_blocks(rank) {
                self.push(put, from, to, &block, i)?;
                i += 1;
            }
        }
        Ok(())
    }

    fn push(&mut self, put: Op, from: Rank, to: Rank, block: &RowBlock, i: u64) -> Result<(), Error> {
        let Some(x) = &self.exchange else { return Ok(()) };
        let args = CopyArgs {
            src: self.regions[0],
            dst: x.gather,
            peer: to,
            units: self.layout.slices.count,
            src_row: block.local_row,
            src_col: 0,
            dst_row: block.rows.start,
            dst_col: 0,
            rows: (block.rows.end - block.rows.start) as u32,
            cols: self.op.k as u32,
        };
        let task = self.b.task(from, deal(i, self.comm_lanes), put, x.push[to.index()], &args)?;
        self.b.wait(task, WaitFor::all(x.credit, self.layout.credit(to, block)).lag(1))?;
        let post = match self.op.plan {
            Plan::Fused => PostTo::each_block(to, x.arrival, self.layout.arrival(block), 1),
            Plan::Unfused => PostTo::done(to, x.arrival, from.0.into()),
        };
        self.b.post(task, post)
    }

    /// Unfused: waits for the rows of all sources, as many of them at a time as a task can wait for.
    fn joins(&mut self, rank: u32) -> Result<(), Error> {
        let Some(Exchange { arrival, gathered: Some(gathered), join, .. }) = self.exchange else {
            return Ok(());
        };
        let sources = self.layout.sources(rank);
        let Some(&first) = sources.first() else { return Ok(()) };
        let me = Rank(rank as u16);
        let route = self.registry.route(me, Rank(first as u16), NEED)?;
        let wait = self.b.op(route.handler(CommOp::Wait)?)?;
        for (i, sources) in sources.chunks(Limits::WAITS).enumerate() {
            let task =
                self.b.task(me, deal(i as u64, self.comm_lanes), wait, join, &SyncArgs { peer: me })?;
            for &source in sources {
                self.b.wait(task, WaitFor::all(arrival, source.into()))?;
            }
            self.b.post(task, PostTo::done(me, gathered, 0))?;
        }
        Ok(())
    }

    /// Own rows first, then the sources in the order in which they arrive: `rank + 1` sends to `rank` first.
    fn tiles(&mut self, rank: u32) -> Result<(), Error> {
        let layout = self.layout;
        let mut i = 0;
        for source in std::iter::once(rank).chain(layout.after(rank)) {
            for block in layout.row_blocks(source) {
                for cols in layout.col_tiles(rank) {
                    let task = self.tile([rank, source], &block, cols, i)?;
                    self.guard_tile(task, [rank, source], &block)?;
                    self.give_credit(task, [rank, source], &block)?;
                    i += 1;
                }
            }
        }
        Ok(())
    }

    fn tile(
        &mut self,
        [rank, source]: [u32; 2],
        block: &RowBlock,
        cols: Range<u64>,
        i: u64,
    ) -> Result<TaskRef, Error> {
        let [a, b, c] = self.regions;
        let (a, a_row, label) = match &self.exchange {
            Some(x) if source != rank => (x.gather, block.rows.start, x.tile[source as usize]),
            _ => (a, block.local_row, self.tile),
        };
        let args = GemmArgs {
            a,
            b,
            c,
            rows: (block.rows.end - block.rows.start) as u16,
            cols: (cols.end - cols.start) as u16,
            a_row,
            c_row: block.rows.start,
            col: cols.start,
            k: self.op.k,
        };
        self.b.task(Rank(rank as u16), deal(i, self.lanes), self.gemm, label, &args)
    }

    /// Fused: slice by slice, and only for rows that come from elsewhere. Unfused: for everything.
    fn guard_tile(&mut self, task: TaskRef, [rank, source]: [u32; 2], block: &RowBlock) -> Result<(), Error> {
        let wait = match &self.exchange {
            Some(Exchange { gathered: Some(word), .. }) if self.layout.takes_rows(rank) => {
                WaitFor::all(*word, 0)
            }
            Some(Exchange { gathered: None, arrival, .. }) if source != rank => {
                let Slices { count, every } = self.layout.slices;
                WaitFor::all(*arrival, self.layout.arrival(block)).count(count.into()).each_block(every)
            }
            _ => return Ok(()),
        };
        self.b.wait(task, wait)
    }

    /// The source may overwrite the row block in the next epoch once all tiles have loaded it.
    fn give_credit(
        &mut self,
        task: TaskRef,
        [rank, source]: [u32; 2],
        block: &RowBlock,
    ) -> Result<(), Error> {
        match &self.exchange {
            Some(x) if source != rank => {
                let word = self.layout.credit(Rank(rank as u16), block);
                self.b.post(task, PostTo::loaded(Rank(source as u16), x.credit, word))
            }
            _ => Ok(()),
        }
    }
}

impl Exchange {
    fn new(op: &AllGatherGemm, layout: &Layout, b: &mut ProgramBuilder) -> Result<Exchange, Error> {
        let gather = Region::heap(AllGatherGemm::GATHER, op.dtype, Shape::Uniform([op.m, op.k]));
        let row_blocks = layout.first_block[layout.world as usize];
        let ranks = 0..layout.world;
        let (arrivals, gathered) = match op.plan {
            Plan::Fused => (row_blocks.saturating_mul(layout.slices.count.into()), None),
            Plan::Unfused => (layout.world.into(), Some(b.signal("gathered", SignalKind::Add, 1)?)),
        };
        Ok(Exchange {
            gather: b.region(gather)?,
            arrival: b.signal("arrival", SignalKind::Add, arrivals)?,
            credit: b.signal(
                "credit",
                SignalKind::Add,
                layout.most_blocks.saturating_mul(layout.world.into()),
            )?,
            gathered,
            join: b.label("all rows gathered"),
            push: ranks.clone().map(|p| b.label(format!("push to rank {p}"))).collect(),
            tile: ranks.map(|s| b.label(format!("tile from rank {s}"))).collect(),
        })
    }
}

impl Layout {
    /// The first word of `arrival` for a row block (fused); one more for each further slice.
    fn arrival(&self, block: &RowBlock) -> u64 {
        block.number * u64::from(self.slices.count)
    }

    /// The word of `credit`, at the row block's own rank, that `peer`'s tiles post to.
    fn credit(&self, peer: Rank, block: &RowBlock) -> u64 {
        u64::from(peer.0) * self.most_blocks + block.index
    }
}
