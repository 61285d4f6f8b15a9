//! A run as the race detector sees it: whose tasks they are, what they waited for, what their posts cover.

use super::Log;
use crate::plan::Plan;
use mk_core::{PostAt, Rank, Task, Wait, WaitAt};

/// An epoch of a program, in the order of the run.
#[derive(Clone, Copy)]
pub(crate) struct Epoch {
    pub(crate) plan: usize,
    pub(crate) clocks: [u64; 8],
    pub(crate) first_post: usize,
}

/// Words `0..count` of a strided wait, and where they have to be.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Goal {
    pub(super) first: usize,
    pub(super) stride: usize,
    pub(super) count: u32,
    pub(super) target: u64,
}

impl Goal {
    #[inline]
    pub(super) fn has(&self, word: usize) -> bool {
        word.checked_sub(self.first)
            .is_some_and(|d| d % self.stride == 0 && d / self.stride < self.count as usize)
    }

    pub(super) fn words(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, stride) = (self.first, self.stride);
        (0..self.count as usize).map(move |i| first + i * stride)
    }
}

/// The part of an access that has to be covered: of this task, the reads or writes of so many blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    pub(super) epoch: usize,
    pub(super) task: u32,
    pub(super) reads: bool,
    pub(super) blocks: u32,
}

/// A post that arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    pub(super) word: usize,
    /// What it made the word.
    pub(super) value: u64,
    /// Its place among all that arrived.
    pub(super) order: u32,
}

/// See the module.
pub(super) struct Run<'a> {
    pub(super) plans: &'a [&'a Plan],
    pub(super) epochs: &'a [Epoch],
    pub(super) log: &'a Log,
    /// Of each task, by plan.
    ranks: Vec<Vec<Rank>>,
}

impl<'a> Run<'a> {
    pub(super) fn new(plans: &'a [&'a Plan], epochs: &'a [Epoch], log: &'a Log) -> Run<'a> {
        Run { plans, epochs, log, ranks: plans.iter().map(|p| ranks(p)).collect() }
    }

    /// The epochs of a plan.
    pub(super) fn epochs_of(&self, p: usize) -> Vec<usize> {
        (0..self.epochs.len()).filter(|&e| self.epochs[e].plan == p).collect()
    }

    #[inline]
    pub(super) fn plan(&self, epoch: usize) -> &'a Plan {
        self.plans[self.epochs[epoch].plan]
    }

    #[inline]
    pub(super) fn task(&self, epoch: usize, task: u32) -> &'a Task {
        &self.plan(epoch).program().tasks[task as usize]
    }

    #[inline]
    pub(super) fn rank(&self, epoch: usize, task: u32) -> Rank {
        self.ranks[self.epochs[epoch].plan][task as usize]
    }

    /// The run boundary: all that a rank does in an epoch comes before all that it does in the next.
    #[inline]
    pub(super) fn bounded(&self, epoch: usize, task: u32, later: usize, other: u32) -> bool {
        epoch < later && self.rank(epoch, task) == self.rank(later, other)
    }

    /// The first `count` words of a task's wait; nothing if it waits for nothing.
    #[inline]
    pub(super) fn goal(&self, epoch: usize, task: u32, w: &Wait, count: u32) -> Option<Goal> {
        let target = w.target(self.epochs[epoch].clocks[w.clock as usize & 7]);
        (count > 0 && target > 0).then(|| Goal {
            first: self.plan(epoch).words.at(self.rank(epoch, task), w.word, w.clock),
            stride: usize::from(w.stride.max(1)),
            count,
            target,
        })
    }

    /// Calls `found` with each post that covers `need` and has arrived, until it says that it has seen enough.
    #[inline]
    pub(super) fn any_cover(&self, need: &Need, mut found: impl FnMut(Arrived) -> bool) -> bool {
        let plan = self.plan(need.epoch);
        let info = &plan.tasks[need.task as usize];
        let mut at = self.epochs[need.epoch].first_post + info.log as usize;
        for post in self.task(need.epoch, need.task).posts() {
            let first = plan.words.at(post.to(), post.word, post.clock());
            let count = post.count(info.blocks) as usize;
            // Word `j` follows block `(j + 1) * every - 1`.
            let from = match post.at() {
                PostAt::Block => {
                    (need.blocks.div_ceil(u32::from(post.every.max(1))) as usize).saturating_sub(1)
                }
                _ => 0,
            };
            for j in from..count {
                let log = &self.log.posts[at + j];
                let covered = if need.reads { log.reads } else { log.writes };
                let Some(value) = log.arrived().filter(|_| covered >= need.blocks) else { continue };
                if found(Arrived { word: first + j, value, order: log.order }) {
                    return true;
                }
            }
            at += count;
        }
        false
    }

    /// Whether a post that covers `need` is among those that bring a word of `goal` to its target.
    #[inline]
    pub(super) fn covers(&self, need: &Need, goal: &Goal) -> bool {
        self.any_cover(need, |post| post.value <= goal.target && goal.has(post.word))
    }
}

fn ranks(plan: &Plan) -> Vec<Rank> {
    plan.program().streams.iter().flat_map(|s| std::iter::repeat_n(s.rank, s.len as usize)).collect()
}

/// How many of a wait's words come before word `j` of a post of the same task.
#[inline]
pub(super) fn guards_post(w: &Wait, task: &Task, slot: u8, j: u32, blocks: u32) -> u32 {
    let post = &task.posts[slot as usize];
    match (post.at(), w.at()) {
        (_, WaitAt::Start) | (PostAt::Done, _) | (PostAt::Loaded, WaitAt::Block) => w.count.into(),
        (_, WaitAt::Store) => 0,
        (PostAt::Block, WaitAt::Block) => {
            let last = (j + 1).saturating_mul(u32::from(post.every.max(1))).min(blocks) - 1;
            w.met_before_block(last)
        }
    }
}
