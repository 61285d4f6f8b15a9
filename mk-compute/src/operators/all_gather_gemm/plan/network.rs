//! Between islands: sends to relays, and the credit that comes back.

use super::{Planner, Result};
use crate::operators::all_gather_gemm::islands::SEND;
use crate::operators::all_gather_gemm::layout::RowBlock;
use mk_core::{Caps, CommOp, CopyArgs, PostTo, SyncArgs, WaitFor};

impl Planner<'_> {
    /// The rows of `source` to one relay in each other island, island by island in turn.
    pub(super) fn sends(&mut self, source: u32) -> Result<()> {
        let layout = self.layout;
        if layout.blocks_of(source) == 0 {
            return Ok(());
        }
        for island in layout.islands.next(layout.islands.of(source)).filter(|&i| layout.island_takes(i)) {
            let relay = layout.islands.relay(source, island);
            let place = layout.place_at(relay, source);
            let first = layout.relayed(relay)[place].first;
            for block in layout.row_blocks(source) {
                self.send(source, relay, first, &block)?;
            }
        }
        Ok(())
    }

    fn send(&mut self, source: u32, relay: u32, first: u64, block: &RowBlock) -> Result<()> {
        let (from, to) = (self.rank(source), self.rank(relay));
        let put = self.b.op(self.registry.route(from, to, SEND)?.handler(CommOp::PutSignal)?)?;
        let (x, island) = (self.exchange(), self.layout.islands.of(relay));
        let (label, landed, returned) = (x.labels.send[relay as usize], x.landed, x.returned);
        let (word, args) =
            (x.landed(first, block), self.copy(self.regions[0], block.local_row, relay, block));
        let lane = self.network_lane();
        let task = self.b.task(from, lane, put, label, &args)?;
        self.b.wait(task, WaitFor::all(returned, island.into()).lag(1))?;
        self.b.post(task, PostTo::each_block(to, landed, word, 1))
    }

    /// Tells each source of another island, when its rows have been read, that they may be overwritten.
    pub(super) fn returns(&mut self, relay: u32) -> Result<()> {
        let layout = self.layout;
        for (i, relayed) in layout.relayed(relay).iter().enumerate() {
            if layout.blocks_of(relayed.source) > 0 {
                self.give_back(relay, i as u64, relayed.source)?;
            }
        }
        Ok(())
    }

    fn give_back(&mut self, relay: u32, place: u64, source: u32) -> Result<()> {
        let (from, to) = (self.rank(relay), self.rank(source));
        let signal = self.b.op(self.registry.route(from, to, Caps::SIGNAL)?.handler(CommOp::Signal)?)?;
        let x = self.exchange();
        let (label, freed, consumed, returned) =
            (x.labels.credit[source as usize], x.freed, x.consumed, x.returned);
        let (tiles, forwards) = (self.layout.takes(relay), self.layout.fed(relay).next().is_some());
        let lane = self.network_lane();
        let task = self.b.task(from, lane, signal, label, &SyncArgs { peer: to })?;
        if self.fused() || forwards {
            self.b.wait(task, WaitFor::all(freed, place))?;
        }
        if !self.fused() && tiles {
            self.b.wait(task, WaitFor::all(consumed, 0))?;
        }
        self.b.post(task, PostTo::done(to, returned, self.layout.islands.of(relay).into()))
    }

    /// A row block or a part of one, from a place on this rank to its own place in a peer's `a_gather`.
    pub(super) fn copy(&self, src: mk_core::RegionId, src_row: u64, peer: u32, block: &RowBlock) -> CopyArgs {
        CopyArgs {
            src,
            dst: self.exchange().gather,
            peer: self.rank(peer),
            units: self.slices.count,
            src_row,
            src_col: 0,
            dst_row: block.rows.start,
            dst_col: 0,
            rows: (block.rows.end - block.rows.start) as u32,
            cols: self.op.k as u32,
        }
    }
}
