//! Counting: how many posts each word receives, and from whom.

use super::{ProgramBuilder, TaskRef};
use crate::{Error, Limits, Post, PostAt, Queue, Rank, SignalKind, Task};

/// How many posts each word receives, and from which stream.
pub(super) struct Words {
    words: usize,
    totals: Vec<u32>,
    /// Stream that posts to it and whether when loaded (see `Words::writer`); 0: none yet; `u32::MAX`: several.
    writers: Vec<u32>,
}

impl Words {
    pub(super) fn new(b: &ProgramBuilder) -> Result<Words, Error> {
        let words: usize = b.signals.iter().map(|s| s.words as usize).sum();
        let all = words as u64 * b.ranks as u64;
        if all > Limits::ALL_WORDS {
            return Err(Error::build(
                format!("the signals of all ranks are {all} words"),
                format!("use at most {} in all: larger tiles or chunks need fewer", Limits::ALL_WORDS),
            ));
        }
        Ok(Words { words, totals: vec![0; all as usize], writers: vec![0; all as usize] })
    }

    fn at(&self, rank: Rank, word: u32) -> usize {
        rank.index() * self.words + word as usize
    }

    pub(super) fn total(&self, rank: Rank, word: u32) -> u32 {
        if (word as usize) < self.words { self.totals[self.at(rank, word)] } else { 0 }
    }

    /// A stream's posts when loaded and its others have no order between them, so they count as two writers.
    fn writer(stream: u32, at: PostAt) -> u32 {
        2 * stream + if at == PostAt::Loaded { 2 } else { 1 }
    }

    /// Counts all posts in stream order, and gives `Set` and `Packet` posts their ordinals and totals.
    pub(super) fn count(&mut self, b: &mut ProgramBuilder) -> Result<(), Error> {
        for (s, stream) in b.streams.iter_mut().enumerate() {
            let ordered = matches!(stream.queue, Queue::Lane(_));
            for p in &mut stream.tasks {
                for post in p.task.posts.iter_mut().filter(|p| p.used()) {
                    for j in 0..post.count(p.blocks) {
                        let at = self.at(post.to(), post.word + j);
                        self.totals[at] += 1;
                        let me = if ordered { Words::writer(s as u32, post.at()) } else { u32::MAX };
                        let writer = &mut self.writers[at];
                        *writer = if *writer == 0 || *writer == me { me } else { u32::MAX };
                        if post.kind() != SignalKind::Add {
                            // Words of one strided post have the same history or the post is ambiguous (checked below).
                            post.ordinal = self.totals[at];
                        }
                    }
                }
            }
        }
        self.check_totals(b)
    }

    fn check_totals(&self, b: &mut ProgramBuilder) -> Result<(), Error> {
        for s in 0..b.streams.len() {
            for i in 0..b.streams[s].tasks.len() {
                let blocks = b.streams[s].tasks[i].blocks;
                for slot in 0..Limits::POSTS {
                    let post = b.streams[s].tasks[i].task.posts[slot];
                    if !post.used() {
                        continue;
                    }
                    let total = self.total(post.to(), post.word);
                    let single = post.kind() != SignalKind::Add;
                    for j in 0..post.count(blocks) {
                        let at = self.at(post.to(), post.word + j);
                        if single && (self.writers[at] == u32::MAX || self.totals[at] != total) {
                            return Err(Error::build(
                                format!(
                                    "{} is a {:?} word with more than one writing stream, or with another number of posts than its neighbours",
                                    b.word_name(post.to(), post.word + j),
                                    post.kind()
                                ),
                                "one lane's stream writes it (no ticket queue); use one word for each writer",
                            ));
                        }
                    }
                    b.streams[s].tasks[i].task.posts[slot].total = total;
                }
            }
        }
        Ok(())
    }

    /// How many posts `word` has received when `producer` has posted to it (for the last time).
    pub(super) fn prefix(&self, b: &ProgramBuilder, rank: Rank, word: u32, producer: TaskRef) -> Option<u32> {
        let writer = self.writers[self.at(rank, word)];
        if ![PostAt::Loaded, PostAt::Done].iter().any(|&at| writer == Words::writer(producer.stream, at)) {
            return None;
        }
        let mut seen = 0;
        let tasks = &b.streams[producer.stream as usize].tasks;
        for p in &tasks[..=producer.index as usize] {
            seen += posts_to(&p.task, p.blocks, rank, word);
        }
        let last = &tasks[producer.index as usize];
        (posts_to(&last.task, last.blocks, rank, word) > 0).then_some(seen)
    }
}

/// How often a task posts to a word.
fn posts_to(task: &Task, blocks: u32, rank: Rank, word: u32) -> u32 {
    let hits = |p: &&Post| p.to() == rank && word >= p.word && word - p.word < p.count(blocks);
    task.posts().filter(hits).count() as u32
}
