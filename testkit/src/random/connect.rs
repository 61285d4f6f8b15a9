//! Arrivals and credits of a random program, as waits and posts.

use super::plan::{Planner, Reader};
use mk_core::{Error, PostTo, Rank, SignalKind, SignalRef, TaskRef, WaitFor};

/// A word that several tasks may wait for.
#[derive(Clone, Copy)]
struct Read {
    task: TaskRef,
    index: u64,
}

fn rank(r: usize) -> Rank {
    Rank(r as u16)
}

impl Planner {
    /// Connects all writers with their readers, and readers with the next writers.
    pub(super) fn connect(&mut self) -> Result<(), Error> {
        for t in 1..self.tensors.len() {
            self.arrivals(t)?;
        }
        // A task that reads two tensors says once that it has read.
        let mut reads: Vec<Read> = Vec::new();
        let words = self
            .tensors
            .iter()
            .flat_map(|t| t.chunks.iter().flatten())
            .map(|c| c.readers.len())
            .sum::<usize>();
        let read = self.b.signal("read", SignalKind::Add, words as u64)?;
        for t in 1..self.tensors.len() {
            self.credits(t, read, &mut reads)?;
        }
        Ok(())
    }

    /// Kind of words that are written by all sorts of tasks, one each.
    fn kind(&mut self) -> SignalKind {
        if self.params.nodes.len() > 1 || self.rng.chance(40) { SignalKind::Set } else { SignalKind::Add }
    }

    fn arrivals(&mut self, t: usize) -> Result<(), Error> {
        let chunks = self.chunks();
        let units = self.tensors[t].chunks.iter().flatten().map(|c| c.units).max().unwrap_or(1);
        let any = self.tensors[t].chunks.iter().flatten().any(|c| !c.readers.is_empty());
        if !any {
            return Ok(());
        }
        if self.tensors[t].one_stream && self.rng.chance(50) {
            return self.prefix_arrivals(t);
        }
        // A ticket queue keeps no order, so it writes no Set words.
        let kind = if self.tensors[t].far {
            SignalKind::Set
        } else if self.params.ticket || self.rng.chance(50) {
            SignalKind::Add
        } else {
            SignalKind::Set
        };
        let signal = self.b.signal(&format!("arrival{t}"), kind, chunks as u64 * u64::from(units))?;
        let notice = self.notices(t)?;
        for r in 0..self.ranks {
            for c in 0..chunks {
                let chunk = &self.tensors[t].chunks[r][c];
                let (last, readers) = (chunk.last, chunk.readers.clone());
                if readers.is_empty() {
                    continue;
                }
                let single =
                    readers.len() == 1 && readers[0].notice.is_none() && units == 1 && !self.tensors[t].far;
                if single && self.rng.chance(40) {
                    self.b.edge(&[last], readers[0].task)?;
                    continue;
                }
                let index = c as u64 * u64::from(units);
                if units > 1 {
                    self.b.post(last, PostTo::each_block(rank(r), signal, index, 1))?;
                } else {
                    self.b.post(last, PostTo::done(rank(r), signal, index))?;
                }
                for reader in readers {
                    let wait = WaitFor::all(signal, index).count(units.into());
                    let wait = if reader.by_unit { wait.each_block(1) } else { wait };
                    self.arrive(t, (r, c), reader, wait, notice)?;
                }
            }
        }
        Ok(())
    }

    /// Words for ranks that get: one a reader that does not wait on the spot.
    fn notices(&mut self, t: usize) -> Result<Option<(SignalRef, u64)>, Error> {
        let chunks = self.tensors[t].chunks.iter().flatten();
        let most = chunks.map(|c| c.readers.iter().filter(|r| r.notice.is_some()).count()).max().unwrap_or(0);
        if most == 0 {
            return Ok(None);
        }
        let (kind, words) = (self.kind(), (self.ranks * self.chunks() * most) as u64);
        Ok(Some((self.b.signal(&format!("notice{t}"), kind, words)?, most as u64)))
    }

    /// A reader waits for an arrival, or for the word of the task on the chunk's rank that waits for it.
    fn arrive(
        &mut self,
        t: usize,
        (r, c): (usize, usize),
        reader: Reader,
        wait: WaitFor,
        notice: Option<(SignalRef, u64)>,
    ) -> Result<(), Error> {
        let (Some(task), Some((signal, most))) = (reader.notice, notice) else {
            return self.b.wait(reader.task, wait);
        };
        let all = &self.tensors[t].chunks[r][c].readers;
        let place = all.iter().filter(|x| x.notice.is_some()).position(|x| x.task == reader.task);
        let index = (r * self.chunks() + c) as u64 * most + place.unwrap_or(0) as u64;
        self.b.wait(task, wait)?;
        self.b.post(task, PostTo::done(rank(reader.rank), signal, index))?;
        self.b.wait(reader.task, WaitFor::all(signal, index))
    }

    /// One word a rank, and waits for a prefix of its posts.
    fn prefix_arrivals(&mut self, t: usize) -> Result<(), Error> {
        let signal = self.b.signal(&format!("prefix{t}"), SignalKind::Add, 1)?;
        let notice = self.notices(t)?;
        for r in 0..self.ranks {
            for c in 0..self.chunks() {
                let chunk = &self.tensors[t].chunks[r][c];
                let (last, readers) = (chunk.last, chunk.readers.clone());
                self.b.post(last, PostTo::done(rank(r), signal, 0))?;
                for reader in readers {
                    let wait = WaitFor::upto(signal, 0, last);
                    self.arrive(t, (r, c), reader, wait, notice)?;
                }
            }
        }
        Ok(())
    }

    /// A chunk is written again only when all that read it on other ranks than the writer's have said so.
    fn credits(&mut self, t: usize, read: SignalRef, reads: &mut Vec<Read>) -> Result<(), Error> {
        let chunks = self.tensors[t].chunks.iter().flatten();
        let most =
            chunks.map(|c| c.readers.iter().filter(|r| r.rank != c.first_rank).count()).max().unwrap_or(0);
        if most == 0 {
            return Ok(());
        }
        let (kind, depth) = (self.kind(), self.tensors[t].depth);
        let words = (self.ranks * self.chunks() * most) as u64;
        let credit = self.b.signal(&format!("credit{t}"), kind, words)?;
        for r in 0..self.ranks {
            for c in 0..self.chunks() {
                let chunk = &self.tensors[t].chunks[r][c];
                let (first, writer) = (chunk.first, chunk.first_rank);
                let readers: Vec<Reader> =
                    chunk.readers.iter().copied().filter(|x| x.rank != writer).collect();
                if readers.is_empty() {
                    continue;
                }
                let base = ((r * self.chunks() + c) * most) as u64;
                let count = readers.len() as u64;
                self.b.wait(first, WaitFor::all(credit, base).count(count).lag(depth))?;
                for (i, reader) in readers.into_iter().enumerate() {
                    self.credit(t, reader, writer, (credit, base + i as u64), kind, read, reads)?;
                }
            }
        }
        Ok(())
    }

    /// `reader` tells rank `writer` that it has read: by itself, or through a task that waits for it.
    #[allow(clippy::too_many_arguments, reason = "all of it differs from call to call")]
    fn credit(
        &mut self,
        t: usize,
        reader: Reader,
        writer: usize,
        (credit, index): (SignalRef, u64),
        kind: SignalKind,
        read: SignalRef,
        reads: &mut Vec<Read>,
    ) -> Result<(), Error> {
        let known = reads.iter().find(|x| x.task == reader.task).map(|x| x.index);
        let near = self.mapped(reader.rank, writer);
        // A ticket queue writes no Set words; a task that reads two tensors has only one post left.
        let direct =
            near && !reader.far && kind == SignalKind::Add && known.is_none() && self.reads_once(reader.task);
        if direct && self.rng.chance(50) {
            return self.b.post(reader.task, PostTo::loaded(rank(writer), credit, index));
        }
        let word = match known {
            Some(word) => word,
            None => {
                let word = reads.len() as u64;
                reads.push(Read { task: reader.task, index: word });
                self.b.post(reader.task, PostTo::loaded(rank(reader.rank), read, word))?;
                word
            }
        };
        let op = if near { "nvlink.signal" } else { "rdma.signal" };
        let task = self.sync(reader.rank, op, format!("credit t{t} to {writer}"), writer)?;
        self.b.wait(task, WaitFor::all(read, word))?;
        self.b.post(task, PostTo::done(rank(writer), credit, index))
    }

    fn reads_once(&self, task: TaskRef) -> bool {
        let chunks = self.tensors.iter().flat_map(|t| t.chunks.iter().flatten());
        chunks.flat_map(|c| &c.readers).filter(|r| r.task == task).count() == 1
    }
}
