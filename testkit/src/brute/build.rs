//! From a program to its micro-actions, for a few epochs.

use super::{cells::Cells, legal::Footprint};
use mk_core::{
    Access, Io, Mode, Phase, PostAt, Program, Queue, Rank, RegionId, SignalKind, Task, TaskId, WaitAt, Walk,
};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// How far the tasks of a stream overlap.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Overlap {
    /// A task starts when its predecessor has ended.
    Least,
    /// All tasks of an epoch are ready at once.
    Most,
}

/// What an action does to a word.
#[derive(Clone, Copy)]
pub(super) enum Raise {
    Add,
    Set(u64),
}

/// What an action is, for people.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Enter,
    Exit,
    Wait,
    Read,
    Write,
    Post,
    End,
}

/// One indivisible step.
pub(super) struct Action {
    pub(super) what: What,
    pub(super) rank: Rank,
    pub(super) task: Option<TaskId>,
    pub(super) epoch: u64,
    /// Number of actions that must come before.
    pub(super) needs: u32,
    /// Actions that need this one.
    pub(super) then: Vec<u32>,
    /// Words that must stand at a value or more.
    pub(super) waits: Vec<(u32, u64)>,
    pub(super) post: Option<(u32, Raise)>,
    pub(super) reads: Vec<u32>,
    pub(super) writes: Vec<u32>,
    /// What a written value depends on, besides what was read.
    salt: u64,
    /// The actions whose reads a written value depends on.
    pub(super) inputs: Vec<u32>,
}

/// The micro-actions of a program.
pub(super) struct Graph<'a> {
    pub(super) program: &'a Program,
    pub(super) cells: &'a Cells,
    pub(super) actions: Vec<Action>,
    pub(super) words: usize,
    /// Whether all words only grow, so that nothing that can happen is ever disabled.
    pub(super) monotone: bool,
}

fn hash(value: impl Hash) -> u64 {
    let mut h = DefaultHasher::new();
    value.hash(&mut h);
    h.finish()
}

impl Action {
    /// The value that is written to a cell.
    pub(super) fn value(&self, cell: u32, regs: &[u64]) -> u64 {
        let mut h = DefaultHasher::new();
        (self.salt, cell).hash(&mut h);
        for &i in &self.inputs {
            regs[i as usize].hash(&mut h);
        }
        h.finish()
    }

    /// What is remembered of a read.
    pub(super) fn seen(&self, memory: &[u64]) -> u64 {
        let mut h = DefaultHasher::new();
        for &c in &self.reads {
            memory[c as usize].hash(&mut h);
        }
        h.finish()
    }
}

impl<'a> Graph<'a> {
    pub(super) fn new(
        program: &'a Program,
        tasks: &[Footprint],
        cells: &'a Cells,
        epochs: u64,
        overlap: Overlap,
    ) -> Graph<'a> {
        let words = program.words() as usize * program.ranks as usize;
        let graph = Graph { program, cells, actions: Vec::new(), words, monotone: true };
        let mut builder = Builder { graph, tasks, overlap, last_post: HashMap::new(), posts: HashMap::new() };
        let mut exits: Vec<Option<u32>> = vec![None; program.ranks as usize];
        for epoch in 1..=epochs {
            for rank in 0..program.ranks as u16 {
                let exit = &mut exits[rank as usize];
                *exit = Some(builder.rank(Rank(rank), epoch, *exit));
            }
        }
        let monotone = builder.monotone();
        Graph { monotone, ..builder.graph }
    }

    /// An action, for people.
    pub(super) fn name(&self, action: u32) -> String {
        let a = &self.actions[action as usize];
        match a.task {
            Some(t) => self.program.task_name(t),
            None => format!("the caller of {}", a.rank),
        }
    }

    /// What an action does, for people.
    pub(super) fn verb(&self, action: u32) -> &'static str {
        match self.actions[action as usize].what {
            What::Enter => "binding the inputs",
            What::Exit => "taking the outputs",
            What::Wait => "waiting",
            What::Read => "reading",
            What::Write => "writing",
            What::Post => "posting",
            What::End => "ending",
        }
    }
}

/// What makes posts in an order: a stream, once for `Loaded` posts (the load warp), once for the others.
type Source = (usize, bool);

struct Builder<'a, 'b> {
    graph: Graph<'a>,
    tasks: &'b [Footprint],
    overlap: Overlap,
    /// Last post of a source to a word: one source's posts to one word are made in its order.
    last_post: HashMap<(Source, u32), u32>,
    /// All posts to a word: (source, ordered, value written).
    posts: HashMap<u32, Vec<(Source, bool, Option<u64>)>>,
}

/// What the actions of one task have in common.
struct Frame {
    rank: Rank,
    task: Option<TaskId>,
    epoch: u64,
    salt: u64,
}

/// The actions of one task, by what later ones depend on.
struct Parts {
    /// Per block: its last wait.
    waits: Vec<u32>,
    /// The waits before the first store.
    store_wait: Option<u32>,
    /// (block, walked, action) of everything that `Loaded` covers.
    reads: Vec<(u32, bool, u32)>,
    /// (last block, action) of writes.
    writes: Vec<(u32, u32)>,
}

impl Builder<'_, '_> {
    fn add(&mut self, f: &Frame, what: What, after: &[u32]) -> u32 {
        let id = self.graph.actions.len() as u32;
        let mut after = after.to_vec();
        after.sort_unstable();
        after.dedup();
        for &a in &after {
            self.graph.actions[a as usize].then.push(id);
        }
        self.graph.actions.push(Action {
            what,
            rank: f.rank,
            task: f.task,
            epoch: f.epoch,
            needs: after.len() as u32,
            then: Vec::new(),
            waits: Vec::new(),
            post: None,
            reads: Vec::new(),
            writes: Vec::new(),
            salt: f.salt,
            inputs: Vec::new(),
        });
        id
    }

    fn last(&mut self, id: u32) -> &mut Action {
        &mut self.graph.actions[id as usize]
    }

    fn word(&self, rank: Rank, word: u32) -> u32 {
        (rank.index() as u64 * self.graph.program.words()) as u32 + word
    }

    /// One epoch of one rank: the caller binds, the tasks run, the caller takes.
    fn rank(&mut self, rank: Rank, epoch: u64, previous: Option<u32>) -> u32 {
        let frame = Frame { rank, task: None, epoch, salt: hash(("caller", epoch)) };
        let enter = self.add(&frame, What::Enter, previous.as_slice());
        self.last(enter).writes = self.caller_cells(rank, epoch, &[Io::Input, Io::InOut]);
        let mut ends = vec![enter];
        let program = self.graph.program;
        for (s, stream) in program.streams.iter().enumerate().filter(|(_, s)| s.rank == rank) {
            let mut before = enter;
            for id in stream.tasks() {
                let end = self.task(s, id, epoch, before);
                ends.push(end);
                if self.overlap == Overlap::Least {
                    before = end;
                }
            }
        }
        let exit = self.add(&frame, What::Exit, &ends);
        self.last(exit).reads = self.caller_cells(rank, epoch, &[Io::Output, Io::InOut]);
        exit
    }

    fn caller_cells(&self, rank: Rank, epoch: u64, io: &[Io]) -> Vec<u32> {
        let (program, cells) = (self.graph.program, self.graph.cells);
        let regions = program.regions.iter().enumerate().filter(|(_, r)| io.contains(&r.io));
        regions.flat_map(|(i, r)| cells.of(RegionId(i as u16), rank, &r.whole(rank), epoch)).collect()
    }

    fn task(&mut self, stream: usize, id: TaskId, epoch: u64, before: u32) -> u32 {
        let program = self.graph.program;
        let task = program.task(id);
        let handler = &program.handlers[task.op.index()];
        let tasks = self.tasks;
        let foot = &tasks[id.index()];
        let salt = hash((&handler.name, task.args, foot.rank.0));
        let frame = Frame { rank: foot.rank, task: Some(id), epoch, salt };
        let mut parts = self.waits(&frame, task, foot.spec.blocks, before);
        if foot.comm {
            self.comm(&frame, foot, &mut parts);
        } else {
            self.compute(&frame, foot, &mut parts);
        }
        self.posts(&frame, stream, task, foot, &parts)
    }

    fn waits(&mut self, frame: &Frame, task: &Task, blocks: u32, before: u32) -> Parts {
        let mut waits: Vec<u32> = Vec::new();
        for block in 0..blocks {
            let mut met = Vec::new();
            for w in task.waits().filter(|w| w.at() != WaitAt::Store) {
                let from = if block == 0 { 0 } else { w.met_before_block(block - 1) };
                let words = w.words().take(w.met_before_block(block) as usize).skip(from as usize);
                met.extend(words.map(|x| (self.word(frame.rank, x), w.target(frame.epoch))));
            }
            let previous = waits.last().copied().unwrap_or(before);
            let action = if block == 0 || !met.is_empty() {
                let action = self.add(frame, What::Wait, &[previous]);
                self.last(action).waits = met;
                action
            } else {
                previous
            };
            waits.push(action);
        }
        let mut met = Vec::new();
        for w in task.waits().filter(|w| w.at() == WaitAt::Store) {
            met.extend(w.words().map(|x| (self.word(frame.rank, x), w.target(frame.epoch))));
        }
        let store_wait = (!met.is_empty()).then(|| {
            let action = self.add(frame, What::Wait, &[waits[0]]);
            self.last(action).waits = met;
            action
        });
        Parts { waits, store_wait, reads: Vec::new(), writes: Vec::new() }
    }

    fn touch(
        &mut self,
        frame: &Frame,
        access: &Access,
        rect: &mk_core::Rect,
        what: What,
        after: &[u32],
    ) -> u32 {
        let action = self.add(frame, what, after);
        let cells = self.graph.cells.of(access.region, access.rank, rect, frame.epoch);
        let a = self.last(action);
        *(if what == What::Read { &mut a.reads } else { &mut a.writes }) = cells;
        action
    }

    /// A write, or an update: reading and writing are two steps.
    fn write(
        &mut self,
        frame: &Frame,
        access: &Access,
        rect: &mk_core::Rect,
        salt: (usize, u32),
        after: &[u32],
        inputs: &[u32],
    ) -> u32 {
        let (mut after, mut inputs) = (after.to_vec(), inputs.to_vec());
        if access.mode == Mode::Update {
            let read = self.touch(frame, access, rect, What::Read, &after);
            after.push(read);
            inputs.push(read);
        }
        let write = self.touch(frame, access, rect, What::Write, &after);
        let a = self.last(write);
        a.salt = hash((a.salt, salt));
        a.inputs = inputs;
        write
    }

    fn compute(&mut self, frame: &Frame, foot: &Footprint, parts: &mut Parts) {
        let (blocks, accesses) = (foot.spec.blocks, &foot.spec.accesses);
        let loads = |a: &&Access| a.mode == Mode::Read && a.at != Phase::Store;
        for a in accesses.iter().filter(loads) {
            for block in 0..blocks {
                let (rect, walked) = (a.block_rect(block), a.walk != Walk::Whole);
                if !rect.is_empty() && (walked || block == 0) {
                    let read = self.touch(frame, a, &rect, What::Read, &[parts.waits[block as usize]]);
                    parts.reads.push((block, walked, read));
                }
            }
        }
        let loaded = parts.reads.clone();
        for (i, a) in accesses.iter().enumerate().filter(|(_, a)| !loads(a)) {
            for block in 0..blocks {
                let (rect, walked) = (a.block_rect(block), a.walk != Walk::Whole);
                if rect.is_empty() || !(walked || block == 0) {
                    continue;
                }
                let mine = |&&(b, w, _): &&(u32, bool, u32)| !walked || !w || b == block;
                let inputs: Vec<u32> = loaded.iter().filter(mine).map(|r| r.2).collect();
                let wait = parts.waits[if walked { block } else { blocks - 1 } as usize];
                let mut after = inputs.clone();
                after.push(wait);
                after.extend(parts.store_wait);
                if a.mode == Mode::Read {
                    let read = self.touch(frame, a, &rect, What::Read, &after);
                    parts.writes.push((block, read));
                } else {
                    let tag = (i, if walked { block } else { u32::MAX });
                    let write = self.write(frame, a, &rect, tag, &after, &inputs);
                    parts.writes.push((block, write));
                }
            }
        }
    }

    fn comm(&mut self, frame: &Frame, foot: &Footprint, parts: &mut Parts) {
        for block in 0..foot.spec.blocks {
            let wait = parts.waits[block as usize];
            let mut inputs = Vec::new();
            for a in foot.spec.accesses.iter().filter(|a| a.mode == Mode::Read) {
                let rect = a.block_rect(block);
                if !rect.is_empty() {
                    let read = self.touch(frame, a, &rect, What::Read, &[wait]);
                    inputs.push(read);
                    parts.reads.push((block, true, read));
                }
            }
            let mut after = inputs.clone();
            after.push(wait);
            after.extend(parts.store_wait);
            for (i, a) in foot.spec.accesses.iter().enumerate().filter(|(_, a)| a.mode.writes()) {
                let rect = a.block_rect(block);
                if !rect.is_empty() {
                    let write = self.write(frame, a, &rect, (i, block), &after, &inputs);
                    parts.writes.push((block, write));
                }
            }
        }
    }

    /// The posts, each after what it covers; then the end.
    fn posts(&mut self, frame: &Frame, stream: usize, task: &Task, foot: &Footprint, parts: &Parts) -> u32 {
        let blocks = foot.spec.blocks;
        let last_wait = parts.waits[blocks as usize - 1];
        let mut all: Vec<u32> =
            parts.reads.iter().map(|r| r.2).chain(parts.writes.iter().map(|w| w.1)).collect();
        all.push(last_wait);
        all.extend(parts.store_wait);
        let mut end = all.clone();
        for p in task.posts() {
            for j in 0..p.count(blocks) {
                let mut after = match p.at() {
                    PostAt::Loaded => parts.reads.iter().map(|r| r.2).chain([last_wait]).collect(),
                    PostAt::Done => all.clone(),
                    PostAt::Block => {
                        let last = ((j + 1).saturating_mul(p.every.max(1) as u32) - 1).min(blocks - 1);
                        let reads = parts.reads.iter().filter(|r| r.0 <= last).map(|r| r.2);
                        let writes = parts.writes.iter().filter(|w| w.0 <= last).map(|w| w.1);
                        reads.chain(writes).chain([parts.waits[last as usize]]).collect::<Vec<_>>()
                    }
                };
                let word = self.word(p.to(), p.word + j);
                let source = (stream, p.at() == PostAt::Loaded);
                let ordered = self.graph.program.streams[stream].queue != Queue::Ticket;
                if ordered {
                    after.extend(self.last_post.get(&(source, word)));
                }
                let raise = match p.kind() {
                    SignalKind::Add => Raise::Add,
                    _ => Raise::Set(p.value(frame.epoch)),
                };
                let action = self.add(frame, What::Post, &after);
                self.last(action).post = Some((word, raise));
                self.last_post.insert((source, word), action);
                let value = if let Raise::Set(v) = raise { Some(v) } else { None };
                self.posts.entry(word).or_default().push((source, ordered, value));
                end.push(action);
            }
        }
        self.add(frame, What::End, &end)
    }

    /// Whether every word that is set is set by one stream in order, to values that do not fall.
    fn monotone(&self) -> bool {
        self.posts.values().all(|posts| {
            posts.iter().all(|p| p.2.is_none())
                || (posts.iter().all(|p| p.0 == posts[0].0 && p.1 && p.2.is_some())
                    && posts.windows(2).all(|w| w[0].2 <= w[1].2))
        })
    }
}
