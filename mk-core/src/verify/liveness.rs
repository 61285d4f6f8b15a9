//! Can every wait be met? The program is run once with the least overlap: one task of a stream at a time, each ticket
//! queue as one chain. Waits only ever get easier, so if this run ends, every run does.

use super::facts::Facts;
use super::report::{Findings, refuted};
use super::{Finding, FindingKind as Kind};
use crate::{Post, PostAt, Rank, Stream, Task, TaskId, Wait, WaitAt};

/// Where a stream is.
#[derive(Clone, Copy)]
struct Place {
    /// The task that it is at.
    task: u32,
    /// Blocks of it that are done; all of them once its `Loaded` posts are made.
    block: u32,
    loaded: bool,
    /// The next stream that waits for the same word.
    next: u32,
}

const NONE: u32 = u32::MAX;

struct Run<'f, 'p> {
    facts: &'f Facts<'p>,
    counts: Vec<u32>,
    /// The first stream that waits for a word.
    waiters: Vec<u32>,
    places: Vec<Place>,
    ready: Vec<u32>,
}

/// Runs the program; what does not end is a finding.
pub(super) fn check(facts: &Facts<'_>, findings: &mut Findings) {
    let streams = &facts.program.streams;
    let place = |s: &crate::StreamTasks| Place { task: s.first, block: 0, loaded: false, next: NONE };
    let mut run = Run {
        facts,
        counts: vec![0; facts.totals.len()],
        waiters: vec![NONE; facts.totals.len()],
        places: streams.iter().map(place).collect(),
        ready: (0..streams.len() as u32).rev().collect(),
    };
    while let Some(stream) = run.ready.pop() {
        run.advance(stream);
    }
    if let Some(finding) = run.stuck() {
        findings.push(finding);
    }
}

impl Run<'_, '_> {
    /// Runs a stream until it ends or waits.
    fn advance(&mut self, stream: u32) {
        let s = self.facts.program.streams[stream as usize];
        while self.places[stream as usize].task < s.first + s.len {
            let id = TaskId(self.places[stream as usize].task);
            if let Some(word) = self.run_task(id, stream, s.rank, s.stream) {
                self.places[stream as usize].next = self.waiters[word];
                self.waiters[word] = stream;
                return;
            }
            self.places[stream as usize] = Place { task: id.0 + 1, block: 0, loaded: false, next: NONE };
        }
    }

    /// Runs a task from where it is; returns the word that it has to wait for.
    fn run_task(&mut self, id: TaskId, stream: u32, rank: Rank, kind: Stream) -> Option<usize> {
        let task = *self.facts.program.task(id);
        if !self.places[stream as usize].loaded {
            let by_block = kind == Stream::Comm
                && (task.posts().any(|p| p.at() == PostAt::Block)
                    || task.waits().any(|w| w.at() == WaitAt::Block));
            let unmet = if by_block {
                self.run_blocks(id, &task, stream, rank)
            } else {
                task.waits()
                    .filter(|w| w.at() != WaitAt::Store)
                    .find_map(|w| self.unmet(rank, w, 0, w.count as u32))
            };
            if unmet.is_some() {
                return unmet;
            }
            self.post_all(&task, PostAt::Loaded);
            self.places[stream as usize].loaded = true;
        }
        let mut store = task.waits().filter(|w| w.at() == WaitAt::Store);
        if let Some(word) = store.find_map(|w| self.unmet(rank, w, 0, w.count as u32)) {
            return Some(word);
        }
        self.post_all(&task, PostAt::Done);
        None
    }

    fn run_blocks(&mut self, id: TaskId, task: &Task, stream: u32, rank: Rank) -> Option<usize> {
        let blocks = self.facts.blocks[id.index()];
        for block in self.places[stream as usize].block..blocks {
            self.places[stream as usize].block = block;
            let mut waits = task.waits().filter(|w| w.at() != WaitAt::Store);
            let unmet = waits.find_map(|w| {
                let before = if block == 0 { 0 } else { w.met_before_block(block - 1) };
                self.unmet(rank, w, before, w.met_before_block(block))
            });
            if unmet.is_some() {
                return unmet;
            }
            for p in task.posts().filter(|p| p.at() == PostAt::Block) {
                let every = p.every.max(1) as u32;
                if (block + 1) % every == 0 || block + 1 == blocks {
                    self.post(p, block / every);
                }
            }
        }
        self.places[stream as usize].block = blocks;
        None
    }

    /// The first of a wait's words `from..to` that is not met. What an earlier epoch posted is there.
    fn unmet(&self, rank: Rank, w: &Wait, from: u32, to: u32) -> Option<usize> {
        if w.lag() > 0 {
            return None;
        }
        (from..to)
            .map(|j| self.facts.at(rank, w.word + j * w.stride as u32))
            .find(|&at| self.counts[at] < w.upto)
    }

    fn post_all(&mut self, task: &Task, at: PostAt) {
        for p in task.posts().filter(|p| p.at() == at) {
            self.post(p, 0);
        }
    }

    fn post(&mut self, p: &Post, word: u32) {
        let at = self.facts.at(p.to(), p.word + word);
        self.counts[at] += 1;
        let mut waiter = std::mem::replace(&mut self.waiters[at], NONE);
        while waiter != NONE {
            self.ready.push(waiter);
            waiter = std::mem::replace(&mut self.places[waiter as usize].next, NONE);
        }
    }

    /// What the first stream that has not ended waits for, as a chain of tasks.
    fn stuck(&self) -> Option<Finding> {
        let program = self.facts.program;
        let unfinished = |s: usize| self.places[s].task < program.streams[s].first + program.streams[s].len;
        let mut stream = (0..program.streams.len()).find(|&s| unfinished(s))?;
        let (mut seen, mut chain) = (vec![usize::MAX; program.streams.len()], Vec::new());
        let mut names = Vec::new();
        // Longer chains than this nobody reads, and each step looks through all tasks.
        while seen[stream] == usize::MAX && chain.len() < 64 {
            seen[stream] = names.len();
            let id = TaskId(self.places[stream].task);
            let name = program.task_name(id);
            let (word, rank, upto) = self.blocked_on(id, stream)?;
            let at = self.facts.at(rank, word);
            let mut step =
                format!("{name} waits for {} ({} of {upto})", program.word_name(rank, word), self.counts[at]);
            names.push(name);
            let Some((poster, next)) = self.poster(rank, word) else {
                step.push_str(", to which nobody else will post");
                chain.push(step);
                break;
            };
            if TaskId(self.places[next].task) == poster {
                step.push_str(&format!(", which {} posts later", program.task_name(poster)));
            } else {
                step.push_str(&format!(
                    ", which {} posts, behind {}",
                    program.task_name(poster),
                    program.task_name(TaskId(self.places[next].task))
                ));
            }
            names.push(program.task_name(poster));
            chain.push(step);
            stream = next;
        }
        let circle = Some(seen[stream]).filter(|&s| s != usize::MAX);
        if circle.is_some() {
            chain.push("there the chain is closed".into());
        }
        let from = circle.unwrap_or(0);
        names.drain(..from.min(names.len()));
        let mut unique = Vec::new();
        for n in names {
            if !unique.contains(&n) {
                unique.push(n);
            }
        }
        Some(refuted(Kind::Deadlock, unique, format!("deadlock: {}", chain.join("; "))))
    }

    fn blocked_on(&self, id: TaskId, stream: usize) -> Option<(u32, Rank, u32)> {
        let rank = self.facts.rank_of[id.index()];
        let place = self.places[stream];
        let find = |w: &Wait| {
            let to = if place.loaded || self.facts.program.streams[stream].stream == Stream::Compute {
                w.count as u32
            } else {
                w.met_before_block(place.block)
            };
            let at = self.unmet(rank, w, 0, to)?;
            Some(((at - rank.index() * self.facts.words) as u32, rank, w.upto))
        };
        let early = |w: &&Wait| w.at() != WaitAt::Store || place.loaded;
        self.facts.program.task(id).waits().filter(early).find_map(find)
    }

    /// A task that has still to post to a word, and its stream.
    fn poster(&self, rank: Rank, word: u32) -> Option<(TaskId, usize)> {
        for (s, stream) in self.facts.program.streams.iter().enumerate() {
            let place = self.places[s];
            for id in (place.task..stream.first + stream.len).map(TaskId) {
                let (task, blocks) = (self.facts.program.task(id), self.facts.blocks[id.index()]);
                let current = id.0 == place.task;
                let pending = |p: &&Post| {
                    let hits = p.to() == rank && word >= p.word && word - p.word < p.count(blocks);
                    let made = current
                        && match p.at() {
                            PostAt::Loaded => place.loaded,
                            PostAt::Done => false,
                            PostAt::Block => {
                                (word - p.word.min(word)) * (p.every as u32) + p.every as u32 <= place.block
                            }
                        };
                    hits && !made
                };
                if task.posts().any(|p| pending(&p)) {
                    return Some((id, s));
                }
            }
        }
        None
    }
}
