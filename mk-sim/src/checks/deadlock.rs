//! Deadlocks: who waits for whom.

use super::Log;
use crate::plan::Plan;
use crate::unit::Role;
use mk_core::{Rank, TaskId};

/// A task, in an epoch of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskAt {
    pub(crate) job: usize,
    pub(crate) task: u32,
}

/// A task that waits.
pub(crate) struct Stuck {
    pub(crate) task: TaskAt,
    /// Its stream in the program.
    pub(crate) stream: usize,
    /// The word's place in the session, and its name.
    pub(crate) word: usize,
    pub(crate) name: String,
    pub(crate) target: u64,
    pub(crate) seen: u64,
}

/// A run that stands still.
pub(crate) struct Picture<'a> {
    pub(crate) plans: &'a [&'a Plan],
    /// Plan and first post of each epoch.
    pub(crate) jobs: Vec<(usize, usize)>,
    pub(crate) log: &'a Log,
    /// The epoch that each rank is in.
    pub(crate) ranks: Vec<usize>,
    /// The next task of each stream, by plan.
    pub(crate) cursors: &'a [Vec<u32>],
    pub(crate) stuck: Vec<Stuck>,
    /// Unit, slot and role of each.
    pub(crate) roles: Vec<(usize, usize, Role)>,
}

impl Picture<'_> {
    fn plan(&self, t: &TaskAt) -> &Plan {
        self.plans[self.jobs[t.job].0]
    }

    pub(crate) fn name(&self, t: &TaskAt) -> String {
        self.plan(t).program().task_name(TaskId(t.task))
    }

    pub(crate) fn rank(&self, t: &TaskAt) -> Rank {
        self.plan(t).rank_of(t.task)
    }

    /// A task that has still to post to the word, in the epoch that its rank is in.
    pub(crate) fn poster(&self, stuck: &Stuck) -> Option<TaskAt> {
        self.find(stuck.word, |log| !log.made())
    }

    /// A task that has posted to the word in vain.
    pub(crate) fn lost_poster(&self, stuck: &Stuck) -> Option<TaskAt> {
        self.find(stuck.word, |log| log.made() && log.arrived().is_none())
    }

    fn find(&self, word: usize, is: impl Fn(&super::log::PostLog) -> bool) -> Option<TaskAt> {
        for (job, &(plan, first_post)) in self.jobs.iter().enumerate() {
            let plan = self.plans[plan];
            for stream in &plan.program().streams {
                // A rank that is ahead has made its posts, one that is behind makes those of its own epoch first.
                if self.ranks[stream.rank.index()] < job {
                    continue;
                }
                for id in stream.tasks() {
                    let info = &plan.tasks[id.index()];
                    let mut at = first_post + info.log as usize;
                    for post in plan.program().task(id).posts() {
                        for j in 0..post.count(info.blocks) {
                            let here = plan.words.at(post.to(), post.word + j, post.clock()) == word;
                            if here && is(&self.log.posts[at]) {
                                return Some(TaskAt { job, task: id.0 });
                            }
                            at += 1;
                        }
                    }
                }
            }
        }
        None
    }

    /// The waiting task that `t` is, or that it is behind in its stream.
    fn blocker(&self, t: &TaskAt) -> Option<usize> {
        let itself = self.stuck.iter().position(|s| s.task == *t);
        itself.or_else(|| {
            let (plan, _) = self.jobs[t.job];
            let program = self.plans[plan].program();
            let stream = program.streams.iter().position(|s| s.tasks().any(|id| id.0 == t.task))?;
            let ahead = |s: &&(usize, &Stuck)| s.1.task.job == t.job && s.1.stream == stream;
            let mut all = self.stuck.iter().enumerate();
            let started = t.task < self.cursors[plan][stream];
            let same = all.by_ref().filter(|s| ahead(&s)).min_by_key(|s| s.1.task.task).map(|s| s.0);
            // A task that has begun and does not wait itself is behind the first one that does, too.
            same.filter(|&i| !started || self.stuck[i].task.task <= t.task)
        })
    }
}

/// The chain from the first task that waits to where it closes, and the last task of it.
pub(crate) fn chain(picture: &Picture<'_>) -> (Vec<String>, usize) {
    let (mut chain, mut seen, mut at) = (Vec::new(), vec![false; picture.stuck.len()], 0);
    loop {
        let stuck = &picture.stuck[at];
        seen[at] = true;
        let waits = format!(
            "{} waits for {} (expected {}, seen {})",
            picture.name(&stuck.task),
            stuck.name,
            stuck.target,
            stuck.seen
        );
        let Some(poster) = picture.poster(stuck) else {
            chain.push(format!("{waits}, to which nobody has a post to make"));
            return (chain, at);
        };
        let name = picture.name(&poster);
        let Some(next) = picture.blocker(&poster) else {
            chain.push(format!("{waits}, which {name} posts"));
            return (chain, at);
        };
        let behind = picture.stuck[next].task != poster;
        let of = if behind { format!(", behind {}", picture.name(&picture.stuck[next].task)) } else { String::new() };
        let closes = if seen[next] { ": the chain is closed" } else { "" };
        chain.push(format!("{waits}, which {name} posts{of}{closes}"));
        if seen[next] {
            return (chain, next);
        }
        at = next;
    }
}

