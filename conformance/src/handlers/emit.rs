//! The tasks of a program of copies, and what they wait for and post.

use super::copy::{Copy, Plan, UNITS};
use super::style::Tell;
use crate::context::Context;
use mk_core::{
    CommOp, CopyArgs, Error, Lane, PostTo, Program, ProgramBuilder, Queue, Rank, Rect, RegionId, SignalKind,
    SignalRef, SyncArgs, TaskRef, WaitFor,
};

/// A program under construction. Tasks are added in an order in which they could run one after the other, so no chain of
/// them can be a circle, whatever streams they share.
pub(super) struct Emitter<'a> {
    plan: &'a Plan,
    b: ProgramBuilder,
    regions: [RegionId; 3],
    ready: SignalRef,
    done: SignalRef,
    arrived: SignalRef,
    landed: SignalRef,
    joined: SignalRef,
    /// Waits that joins are to make, by rank; and who reads afterwards.
    joins: Vec<(Rank, WaitFor)>,
    readers: Vec<usize>,
}

impl<'a> Emitter<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        mut b: ProgramBuilder,
        regions: [RegionId; 3],
    ) -> Result<Emitter<'a>, Error> {
        let (kind, copies) = (plan.style.kind, plan.copies.len() as u64);
        // A release carries no data.
        let bare = if kind == SignalKind::Packet { SignalKind::Set } else { kind };
        Ok(Emitter {
            plan,
            regions,
            ready: b.signal("ready", bare, copies)?,
            done: b.signal("done", SignalKind::Add, copies)?,
            arrived: b.signal("arrived", kind, plan.words)?,
            landed: b.signal("landed", SignalKind::Add, copies * UNITS)?,
            joined: b.signal("joined", SignalKind::Add, 1)?,
            joins: Vec::new(),
            readers: Vec::new(),
            b,
        })
    }

    pub(super) fn emit(mut self, c: &mut Context) -> Result<Program, Error> {
        for i in 0..self.plan.copies.len() {
            let released = self.release(c, i)?;
            let task = self.copy(c, i, released)?;
            self.tell(c, i, task)?;
            self.notice(c, i, task)?;
        }
        self.join(c)?;
        self.b.finish()
    }

    fn queue(&self, c: &mut Context) -> Queue {
        if self.plan.style.tickets { Queue::Ticket } else { Queue::Lane(Lane(c.random.below(2) as u16)) }
    }

    fn sync(&mut self, c: &mut Context, op: CommOp, at: Rank, peer: Rank) -> Result<TaskRef, Error> {
        let name = self.plan.style.name_of(op);
        let (op, label) = (self.b.op(name)?, self.b.label(format!("{name} for {peer}")));
        let queue = self.queue(c);
        self.b.task(at, queue, op, label, &SyncArgs { peer })
    }

    /// The peer lets go of its memory: when its run has begun, and the copy before has arrived.
    fn release(&mut self, c: &mut Context, i: usize) -> Result<bool, Error> {
        let copy = &self.plan.copies[i];
        if copy.me == copy.peer && copy.after.is_none() {
            return Ok(false);
        }
        let release = self.sync(c, CommOp::Signal, copy.peer, copy.me)?;
        if let Some(before) = copy.after {
            let wait = self.arrival(before);
            self.b.wait(release, wait)?;
        }
        self.b.post(release, PostTo::done(copy.me, self.ready, i as u64))?;
        Ok(true)
    }

    fn copy(&mut self, c: &mut Context, i: usize, released: bool) -> Result<TaskRef, Error> {
        let copy = &self.plan.copies[i];
        let (op, label) = (self.b.op(self.plan.style.handler())?, self.b.label(format!("copy {i}")));
        let [src, dst, _] = self.regions;
        let args = args(copy, [src, dst], [copy.src, copy.dst], copy.peer);
        let queue = if self.plan.style.prefix { Queue::Lane(Lane(0)) } else { self.queue(c) };
        let task = self.b.task(copy.me, queue, op, label, &args)?;
        if released {
            self.b.wait(task, WaitFor::all(self.ready, i as u64))?;
        }
        Ok(task)
    }

    /// Tells the peer, whose memory it is.
    fn tell(&mut self, c: &mut Context, i: usize, task: TaskRef) -> Result<(), Error> {
        let copy = &self.plan.copies[i];
        let (peer, arrived, first) = (copy.peer, self.arrived, copy.first);
        if self.plan.style.relay {
            self.b.post(task, PostTo::done(copy.me, self.done, i as u64))?;
            let relay = self.sync(c, CommOp::Signal, copy.me, peer)?;
            self.b.wait(relay, WaitFor::all(self.done, i as u64))?;
            return self.b.post(relay, PostTo::done(peer, arrived, first));
        }
        let post = match self.plan.style.tell {
            Tell::Done => PostTo::done(peer, arrived, first),
            Tell::Loaded => PostTo::loaded(peer, arrived, first),
            Tell::Units(every) => PostTo::each_block(peer, arrived, first, every),
        };
        self.b.post(task, post)
    }

    /// All words that tell of a copy.
    fn arrival(&self, i: usize) -> WaitFor {
        let copy = &self.plan.copies[i];
        WaitFor::all(self.arrived, copy.first).count(copy.words(self.plan.style.tell))
    }

    /// The peer takes notice, before its run ends; where the data are, they are read.
    fn notice(&mut self, c: &mut Context, i: usize, task: TaskRef) -> Result<(), Error> {
        let (copy, style) = (&self.plan.copies[i], self.plan.style);
        if copy.followed {
            return Ok(());
        }
        let mut wait = self.arrival(i);
        if style.prefix {
            wait = WaitFor::upto(self.arrived, 0, task);
        }
        let here = !Copy::reads_peer(style.op);
        if here && !style.join && copy.seen.is_some() {
            return self.read(c, i, wait, style.tell);
        }
        match style.join {
            true => self.joins.push((copy.peer, wait)),
            false => {
                let notice = self.sync(c, CommOp::Wait, copy.peer, copy.peer)?;
                self.b.wait(notice, wait)?;
            }
        }
        if here {
            self.readers.extend(copy.seen.map(|_| i));
            return Ok(());
        }
        if copy.seen.is_some() {
            // A get lands where it runs: it tells its own rank, too.
            let first = i as u64 * UNITS;
            self.b.post(task, PostTo::each_block(copy.me, self.landed, first, 1))?;
            let landed = WaitFor::all(self.landed, first).count(copy.units.into());
            return self.read(c, i, landed, Tell::Units(1));
        }
        Ok(())
    }

    /// Copies what has arrived into `seen`.
    fn read(&mut self, c: &mut Context, i: usize, wait: WaitFor, tell: Tell) -> Result<(), Error> {
        let copy = &self.plan.copies[i];
        let Some((seen, by_unit)) = copy.seen else { return Ok(()) };
        let [_, at] = copy.ends(self.plan.style.op);
        let (op, label) = (self.b.op("nvlink.put")?, self.b.label(format!("read {i}")));
        let [_, dst, to] = self.regions;
        let queue = self.queue(c);
        let read = self.b.task(at, queue, op, label, &args(copy, [dst, to], [copy.dst, seen], at))?;
        let wait = match tell {
            Tell::Units(every) if by_unit => wait.each_block(every),
            _ => wait,
        };
        self.b.wait(read, wait)
    }

    /// Two waits at a time become one word, for which all readers wait.
    fn join(&mut self, c: &mut Context) -> Result<(), Error> {
        let mut ranks: Vec<Rank> = self.joins.iter().map(|(rank, _)| *rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        for rank in ranks {
            let waits: Vec<WaitFor> =
                self.joins.iter().filter(|(r, _)| *r == rank).map(|(_, w)| *w).collect();
            for two in waits.chunks(2) {
                let join = self.sync(c, CommOp::Wait, rank, rank)?;
                for wait in two {
                    self.b.wait(join, *wait)?;
                }
                self.b.post(join, PostTo::done(rank, self.joined, 0))?;
            }
        }
        for i in std::mem::take(&mut self.readers) {
            self.read(c, i, WaitFor::all(self.joined, 0), Tell::Done)?;
        }
        Ok(())
    }
}

fn args(copy: &Copy, [src, dst]: [RegionId; 2], [from, to]: [Rect; 2], peer: Rank) -> CopyArgs {
    CopyArgs {
        src,
        dst,
        peer,
        units: copy.units,
        src_row: from.row,
        src_col: from.col,
        dst_row: to.row,
        dst_col: to.col,
        rows: from.rows as u32,
        cols: from.cols as u32,
    }
}
