//! Deadlocks: who waits for whom.

use super::Log;
use crate::plan::Plan;
use crate::unit::Role;
use mk_core::{Rank, TaskId};
use std::collections::HashMap;

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

/// Who has posted, or has not, to a word that somebody waits for.
#[derive(Clone, Copy, Debug, Default)]
struct Posters {
    /// A task that has still to post to it, in the epoch that its rank is in or an earlier one.
    due: Option<TaskAt>,
    /// A task that has posted to it in vain.
    lost: Option<TaskAt>,
}

/// A run that stands still.
pub(crate) struct Picture<'a> {
    pub(crate) plans: &'a [&'a Plan],
    /// Plan and first post of each epoch.
    pub(crate) jobs: Vec<(usize, usize)>,
    /// The next task of each stream, by plan.
    pub(crate) cursors: &'a [Vec<u32>],
    pub(crate) stuck: Vec<Stuck>,
    /// Unit, slot and role of each.
    pub(crate) roles: Vec<(usize, usize, Role)>,
    /// By word.
    posters: HashMap<usize, Posters>,
}

impl<'a> Picture<'a> {
    /// An empty picture.
    pub(crate) fn new(
        plans: &'a [&'a Plan],
        jobs: Vec<(usize, usize)>,
        cursors: &'a [Vec<u32>],
    ) -> Picture<'a> {
        Picture { plans, jobs, cursors, stuck: Vec::new(), roles: Vec::new(), posters: HashMap::new() }
    }

    /// Finds out who posts to the words that the stuck tasks wait for. `ranks` gives the epoch that each rank is in.
    pub(crate) fn find_posters(&mut self, log: &Log, ranks: &[usize]) {
        self.posters = self.stuck.iter().map(|s| (s.word, Posters::default())).collect();
        for (job, &(plan, first_post)) in self.jobs.iter().enumerate() {
            let plan = self.plans[plan];
            // A rank that is behind makes the posts of its own epoch first.
            let streams = plan.program().streams.iter().filter(|s| ranks[s.rank.index()] >= job);
            for id in streams.flat_map(|s| s.tasks()) {
                let info = &plan.tasks[id.index()];
                let mut at = first_post + info.log as usize;
                for post in plan.program().task(id).posts() {
                    let first = plan.words.at(post.to(), post.word, post.clock());
                    for j in 0..post.count(info.blocks) as usize {
                        let (log, task) = (&log.posts[at + j], TaskAt { job, task: id.0 });
                        if let Some(p) = self.posters.get_mut(&(first + j)) {
                            match (log.made(), log.arrived()) {
                                (false, _) => p.due = p.due.or(Some(task)),
                                (true, None) => p.lost = p.lost.or(Some(task)),
                                (true, Some(_)) => {}
                            }
                        }
                    }
                    at += post.count(info.blocks) as usize;
                }
            }
        }
    }

    fn plan(&self, t: &TaskAt) -> &Plan {
        self.plans[self.jobs[t.job].0]
    }

    pub(crate) fn name(&self, t: &TaskAt) -> String {
        self.plan(t).program().task_name(TaskId(t.task))
    }

    pub(crate) fn rank(&self, t: &TaskAt) -> Rank {
        self.plan(t).rank_of(t.task)
    }

    /// A task that has still to post to the word.
    pub(crate) fn poster(&self, stuck: &Stuck) -> Option<TaskAt> {
        self.posters.get(&stuck.word)?.due
    }

    /// A task that has posted to the word in vain.
    pub(crate) fn lost_poster(&self, stuck: &Stuck) -> Option<TaskAt> {
        self.posters.get(&stuck.word)?.lost
    }

    /// The waiting task that `t` is, or that it is behind in its stream.
    fn blocker(&self, t: &TaskAt) -> Option<usize> {
        let itself = self.stuck.iter().position(|s| s.task == *t);
        itself.or_else(|| {
            let plan = self.jobs[t.job].0;
            let streams = &self.plans[plan].program().streams;
            let stream = streams.iter().position(|s| (s.first..s.first + s.len).contains(&t.task))?;
            let ahead = |s: &Stuck| s.task.job == t.job && s.stream == stream;
            let all = self.stuck.iter().enumerate().filter(|(_, s)| ahead(s));
            let first = all.min_by_key(|(_, s)| s.task.task).map(|(i, _)| i);
            // A task that has begun and does not wait itself is behind one that began before it.
            let begun = t.task < self.cursors[plan][stream];
            first.filter(|&i| !begun || self.stuck[i].task.task <= t.task)
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
        let of = if behind {
            format!(", behind {}", picture.name(&picture.stuck[next].task))
        } else {
            String::new()
        };
        let closes = if seen[next] { ": the chain is closed" } else { "" };
        chain.push(format!("{waits}, which {name} posts{of}{closes}"));
        if seen[next] {
            return (chain, next);
        }
        at = next;
    }
}
