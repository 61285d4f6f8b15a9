//! Lost and surplus posts: where every word stands, and where it should.

use crate::plan::Plan;
use crate::words::Words;
use mk_core::{Fault, Rank, Reason, SignalKind, TaskId};

/// More than this many wrong words help nobody.
const KEPT: usize = 16;

/// Words before a run.
pub(crate) struct Before(Vec<u64>);

/// What an epoch of a program posts.
pub(crate) struct Epoch<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) clocks: [u64; 8],
}

impl Before {
    pub(crate) fn new(words: &Words) -> Before {
        Before(words.values.clone())
    }

    /// Words that do not stand where these epochs should have brought them.
    pub(crate) fn check(self, epochs: &[Epoch<'_>], words: &Words) -> Vec<Fault> {
        let mut expected = self.0;
        for epoch in epochs {
            each_word(epoch.plan, |rank, word, clock, kind, local| {
                let at = epoch.plan.words.at(rank, word, clock);
                let count = u64::from(epoch.plan.totals.counts[local]);
                if kind == SignalKind::Add {
                    expected[at] += count;
                } else if count > 0 {
                    let total = u64::from(epoch.plan.totals.claimed[local]);
                    expected[at] = (epoch.clocks[clock as usize] - 1) * total + count;
                }
            });
        }
        let mut faults = Vec::new();
        let wrong = (0..expected.len()).filter(|&i| expected[i] != words.values[i]).take(KEPT);
        for at in wrong {
            faults.extend(epochs.last().map(|e| explain(epochs, e, at, expected[at], words.values[at])));
        }
        faults
    }
}

/// All words of a program: rank, word, clock, kind, and place in [`Plan::totals`].
fn each_word(plan: &Plan, mut f: impl FnMut(Rank, u32, u8, SignalKind, usize)) {
    let (program, mut shared) = (plan.program(), 0);
    for s in &program.signals {
        shared += u8::from(s.shared);
        let clock = if s.shared { shared } else { 0 };
        for rank in 0..program.ranks {
            let first = rank as usize * plan.words.words;
            for word in s.first..s.first + s.words {
                f(Rank(rank as u16), word, clock, s.kind, first + word as usize);
            }
        }
    }
}

/// The fault of a word that stood too high before its writer wrote it.
pub(crate) fn surplus(epochs: &[Epoch<'_>], (at, expected, seen): (usize, u64, u64)) -> Option<Fault> {
    epochs.last().map(|last| explain(epochs, last, at, expected, seen))
}

fn explain(epochs: &[Epoch<'_>], last: &Epoch<'_>, at: usize, expected: u64, seen: u64) -> Fault {
    let mut fault = Fault {
        rank: Rank(0),
        task: String::new(),
        signal: String::new(),
        expected,
        seen,
        epoch: last.clocks[0],
        reason: if seen < expected { Reason::LostPost } else { Reason::SurplusPost },
    };
    for epoch in epochs {
        let plan = epoch.plan;
        let mut found = None;
        each_word(plan, |rank, word, clock, _, _| {
            if plan.words.at(rank, word, clock) == at {
                found = Some((rank, word, clock));
            }
        });
        let Some((rank, word, clock)) = found else { continue };
        (fault.rank, fault.epoch) = (rank, epoch.clocks[0]);
        fault.signal = plan.program().word_name(rank, word);
        let posts_here = |i: &usize| {
            let blocks = plan.tasks[*i].blocks;
            let mut posts = plan.program().tasks[*i].posts();
            posts.any(|p| {
                p.to() == rank && p.clock() == clock && word >= p.word && word - p.word < p.count(blocks)
            })
        };
        if let Some(i) = (0..plan.tasks.len()).find(posts_here) {
            fault.task = plan.program().task_name(TaskId(i as u32));
        }
    }
    fault
}
