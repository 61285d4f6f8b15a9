//! Inside an island: pushes or pulls of own rows, forwards of what relays take in, joins.

use super::{Planner, Result};
use crate::operators::all_gather_gemm::Gather;
use crate::operators::all_gather_gemm::islands::{PULL, PUSH};
use crate::operators::all_gather_gemm::layout::{Relayed, RowBlock};
use mk_core::{CommOp, Limits, Op, PostTo, Rank, SyncArgs, TaskRef, WaitFor};

impl Planner<'_> {
    /// Everything that `me` moves inside its island.
    pub(super) fn neighbours(&mut self, me: u32) -> Result<()> {
        match self.settings.gather {
            Gather::Push => self.pushes(me)?,
            Gather::Pull => {
                self.announce(me)?;
                self.pulls(me)?;
            }
        }
        self.forwards(me)?;
        match self.settings.gather {
            Gather::Push => Ok(()),
            Gather::Pull => self.finish_reads(me),
        }
    }

    /// The handler that pushes from one neighbour to another. The pushes go one way, the credits the other.
    fn push_op(&mut self, from: u32, to: u32) -> Result<Op> {
        let (from, to) = (self.rank(from), self.rank(to));
        self.registry.route(to, from, PUSH)?;
        self.b.op(self.registry.route(from, to, PUSH)?.handler(CommOp::PutSignal)?)
    }

    /// Peers in turn, each from another source: rank `r` sends to `r - 1` first, so `p` receives from `p + 1` first,
    /// and no ingress serves two sources while another is idle.
    fn pushes(&mut self, me: u32) -> Result<()> {
        let layout = self.layout;
        for peer in layout.fed(me).filter(|_| layout.blocks_of(me) > 0) {
            let put = self.push_op(me, peer)?;
            for part in layout.row_blocks(me).flat_map(|block| layout.parts(&block)) {
                let args = self.copy(self.regions[0], part.local_row, peer, &part);
                let (lane, label) = (self.comm_lane(), self.exchange().labels.push[peer as usize]);
                let task = self.b.task(self.rank(me), lane, put, label, &args)?;
                self.pushed(task, [me, peer], me, &part, part.index)?;
            }
        }
        Ok(())
    }

    /// What a push of the pusher's `number`th row block, or of a part of it, waits for and posts.
    fn pushed(
        &mut self,
        task: TaskRef,
        [me, peer]: [u32; 2],
        source: u32,
        block: &RowBlock,
        number: u64,
    ) -> Result<()> {
        let x = self.exchange();
        let (credit, arrival) = (x.credit, x.arrival);
        let (from, to) = (x.credit(self.layout.islands.place(peer), number), x.arrival(source, block));
        debug_assert_ne!(me, peer, "nothing is pushed to oneself");
        self.b.wait(task, WaitFor::all(credit, from).lag(1))?;
        let post = match self.fused() {
            true => PostTo::each_block(self.rank(peer), arrival, to, 1),
            false => PostTo::done(self.rank(peer), arrival, to),
        };
        self.b.post(task, post)
    }

    /// Tells those who pull that A is there, as many of them at a time as a task can post to.
    fn announce(&mut self, me: u32) -> Result<()> {
        let layout = self.layout;
        let peers: Vec<u32> = layout.fed(me).filter(|_| layout.blocks_of(me) > 0).collect();
        for peers in peers.chunks(Limits::POSTS) {
            let signal =
                self.registry.route(self.rank(me), self.rank(peers[0]), PULL)?.handler(CommOp::Signal)?;
            let (signal, x) = (self.b.op(signal)?, self.exchange());
            let (ready, label, lane) = (x.ready, x.labels.ready, self.comm_lane());
            let task =
                self.b.task(self.rank(me), lane, signal, label, &SyncArgs { peer: self.rank(peers[0]) })?;
            for &peer in peers {
                self.b.post(task, PostTo::done(self.rank(peer), ready, layout.islands.place(me).into()))?;
            }
        }
        Ok(())
    }

    /// The rows of each neighbour. Its own tiles have read those of the epoch before, since its run of it has ended.
    fn pulls(&mut self, me: u32) -> Result<()> {
        let layout = self.layout;
        if !layout.takes(me) {
            return Ok(());
        }
        for owner in layout.islands.after(me).filter(|&o| layout.blocks_of(o) > 0) {
            self.registry.route(self.rank(owner), self.rank(me), PULL)?;
            let get = self.registry.route(self.rank(me), self.rank(owner), PULL)?.handler(CommOp::Get)?;
            let get = self.b.op(get)?;
            for part in layout.row_blocks(owner).flat_map(|block| layout.parts(&block)) {
                self.pull(get, [me, owner], &part)?;
            }
        }
        Ok(())
    }

    fn pull(&mut self, get: Op, [me, owner]: [u32; 2], part: &RowBlock) -> Result<()> {
        let args = self.copy(self.regions[0], part.local_row, owner, part);
        let (lane, x) = (self.comm_lane(), self.exchange());
        let (ready, read, arrival, label) = (x.ready, x.read, x.arrival, x.labels.pull[owner as usize]);
        let word = x.arrival(owner, part);
        let task = self.b.task(self.rank(me), lane, get, label, &args)?;
        self.b.wait(task, WaitFor::all(ready, self.layout.islands.place(owner).into()))?;
        let post = match self.fused() {
            true => PostTo::each_block(self.rank(me), arrival, word, 1),
            false => PostTo::done(self.rank(me), arrival, word),
        };
        self.b.post(task, post)?;
        self.b.post(task, PostTo::loaded(self.rank(owner), read, self.turn(owner, me)))
    }

    /// The place of `peer` among those that read from `me`.
    fn turn(&self, me: u32, peer: u32) -> u64 {
        self.layout.fed(me).take_while(|&p| p != peer).count() as u64
    }

    /// A run ends when the neighbours have read the rows: then they are the caller's again.
    fn finish_reads(&mut self, me: u32) -> Result<()> {
        let layout = self.layout;
        let Some(peer) = layout.fed(me).next().filter(|_| layout.blocks_of(me) > 0) else { return Ok(()) };
        let wait =
            self.b.op(self.registry.route(self.rank(me), self.rank(peer), PULL)?.handler(CommOp::Wait)?)?;
        let (lane, x) = (self.comm_lane(), self.exchange());
        let (read, label) = (x.read, x.labels.read);
        let task = self.b.task(self.rank(me), lane, wait, label, &SyncArgs { peer: self.rank(me) })?;
        self.b.wait(task, WaitFor::all(read, 0).count(layout.fed(me).count() as u64))
    }

    /// What this rank takes in for its island, as it lands.
    fn forwards(&mut self, me: u32) -> Result<()> {
        let layout = self.layout;
        let peers: Vec<u32> = layout.fed(me).collect();
        for (place, relayed) in layout.relayed(me).iter().enumerate() {
            for block in layout.row_blocks(relayed.source) {
                for &peer in &peers {
                    for part in layout.parts(&block) {
                        self.forward([me, peer], place as u64, *relayed, &part)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn forward(&mut self, [me, peer]: [u32; 2], place: u64, relayed: Relayed, part: &RowBlock) -> Result<()> {
        let put = self.push_op(me, peer)?;
        let (lane, x) = (self.comm_lane(), self.exchange());
        let (landed, freed, label) = (x.landed, x.freed, x.labels.forward[peer as usize]);
        let word = x.landed(relayed.first, part);
        let args = self.copy(x.gather, part.rows.start, peer, part);
        let task = self.b.task(self.rank(me), lane, put, label, &args)?;
        self.b.wait(task, WaitFor::all(landed, word).count(self.slices.count.into()).each_block(1))?;
        let number = self.own_pushed(me) + relayed.first + part.index;
        self.pushed(task, [me, peer], relayed.source, part, number)?;
        self.b.post(task, PostTo::loaded(self.rank(me), freed, place))
    }

    /// Row blocks of its own that `me` pushes: they are numbered before those that it forwards.
    pub(super) fn own_pushed(&self, me: u32) -> u64 {
        match self.settings.gather {
            Gather::Push => self.layout.blocks_of(me),
            Gather::Pull => 0,
        }
    }

    /// Unfused: waits for all rows, as many words at a time as a task can wait for; and returns credit when all tiles have
    /// read them.
    pub(super) fn joins(&mut self, me: u32) -> Result<()> {
        if self.fused() || !self.layout.takes_others(me) {
            return Ok(());
        }
        let (arrival, landed) = (self.exchange().arrival, self.exchange().landed);
        let mut waits: Vec<WaitFor> = Vec::new();
        for source in (0..self.layout.world).filter(|&s| s != me && self.layout.blocks_of(s) > 0) {
            if self.layout.islands.feeder(source, me) != me {
                waits.push(WaitFor::all(arrival, source.into()));
            }
        }
        let words = self.layout.relayed_blocks(me) * u64::from(self.slices.count);
        for first in (0..words).step_by(Limits::SPAN as usize) {
            waits.push(WaitFor::all(landed, first).count(Limits::SPAN.min(words - first)));
        }
        self.join(me, &waits)?;
        self.unfused_credits(me)
    }

    /// Any handler that only waits; every transport that a rank has rows from has one.
    fn wait_op(&mut self, me: u32) -> Result<Op> {
        let layout = self.layout;
        let other = layout.islands.after(me).next().or_else(|| layout.relayed(me).first().map(|r| r.source));
        let other: Rank = self.rank(other.unwrap_or(me));
        let name = self.registry.route(other, self.rank(me), mk_core::Caps::SIGNAL)?.handler(CommOp::Wait)?;
        self.b.op(name)
    }

    fn join(&mut self, me: u32, waits: &[WaitFor]) -> Result<()> {
        let (wait, gathered, label) =
            (self.wait_op(me)?, self.exchange().gathered, self.exchange().labels.join);
        for waits in waits.chunks(Limits::WAITS) {
            let lane = self.comm_lane();
            let task = self.b.task(self.rank(me), lane, wait, label, &SyncArgs { peer: self.rank(me) })?;
            for &w in waits {
                self.b.wait(task, w)?;
            }
            self.b.post(task, PostTo::done(self.rank(me), gathered, 0))?;
        }
        Ok(())
    }

    /// Neighbours that push to `me`.
    pub(super) fn feeders(&self, me: u32) -> impl Iterator<Item = u32> + use<'_> {
        let pushes = |&f: &u32| self.own_pushed(f) + self.layout.relayed_blocks(f) > 0;
        self.layout.islands.after(me).filter(pushes)
    }

    fn unfused_credits(&mut self, me: u32) -> Result<()> {
        let layout = self.layout;
        let feeders: Vec<u32> = self.feeders(me).collect();
        for feeders in feeders.chunks(Limits::POSTS) {
            let signal =
                self.registry.route(self.rank(me), self.rank(feeders[0]), PUSH)?.handler(CommOp::Signal)?;
            let (signal, lane, x) = (self.b.op(signal)?, self.comm_lane(), self.exchange());
            let (consumed, credit, label) = (x.consumed, x.credit, x.labels.credit[feeders[0] as usize]);
            let word = x.credit(layout.islands.place(me), 0);
            let task =
                self.b.task(self.rank(me), lane, signal, label, &SyncArgs { peer: self.rank(feeders[0]) })?;
            self.b.wait(task, WaitFor::all(consumed, 0))?;
            for &feeder in feeders {
                self.b.post(task, PostTo::done(self.rank(feeder), credit, word))?;
            }
        }
        Ok(())
    }
}
