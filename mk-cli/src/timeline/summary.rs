//! What a run spent its time on, and how much of it was communication that nothing hid.
//!
//! Of a *run* (from the first start to the last end of any slice of the trace) a compute lane is at every moment one of
//!
//! - *waiting*: it stands in a task and waits for a signal;
//! - *busy*: in a task, not waiting;
//! - *comm alone*: no compute lane of its rank is in a task, but a comm stream of the rank still is: the run goes on for
//!   communication alone;
//! - *idle*: anything else. It has no task yet, none at the moment, or none any more.
//!
//! **Exposed communication** is waiting + comm alone: the mean of a rank's compute lanes, and of those the mean over all
//! ranks. It is what could be saved at most if communication took no time. A lane that has no task left while others still
//! work is idle, not exposed: there, faster communication does not help, an even split of the work would.
//!
//! Lanes of a rank are those with a compute stream in the trace. A rank without one has only comm alone and idle.

use super::spans::Spans;
use super::text::percent;
use super::trace::{PS_PER_US, Slice, Trace};
use crate::console::count;
use serde::Serialize;

/// How the compute lanes of a rank, or of all, spend a run on average. The four parts make the whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Shares {
    /// Microseconds in tasks, not waiting.
    pub(crate) busy_us: f64,
    /// Microseconds in tasks, waiting for signals.
    pub(crate) waiting_us: f64,
    /// Microseconds in which the rank only communicates.
    pub(crate) comm_alone_us: f64,
    /// Microseconds without a task.
    pub(crate) idle_us: f64,
    /// Waiting and communicating alone, in microseconds.
    pub(crate) exposed_us: f64,
    /// The same as a part of the run, 0 to 1.
    pub(crate) exposed: f64,
}

impl Shares {
    fn of(busy_us: f64, waiting_us: f64, comm_alone_us: f64, run_us: f64) -> Shares {
        let exposed_us = waiting_us + comm_alone_us;
        // Sums of rounded numbers: what is left over may be a hair below nothing.
        let idle_us = (run_us - busy_us - exposed_us).max(0.0);
        let exposed = if run_us > 0.0 { exposed_us / run_us } else { 0.0 };
        Shares { busy_us, waiting_us, comm_alone_us, idle_us, exposed_us, exposed }
    }
}

/// One rank's part of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct RankShares {
    pub(crate) rank: u16,
    /// Lanes with a compute stream.
    pub(crate) lanes: u32,
    #[serde(flatten)]
    pub(crate) shares: Shares,
}

/// What the trace comes to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// From the first start to the last end.
    pub(crate) run_us: f64,
    pub(crate) tasks: u64,
    pub(crate) waits: u64,
    /// Lanes with a compute stream, of all ranks.
    pub(crate) lanes: u64,
    #[serde(flatten)]
    pub(crate) all: Shares,
    pub(crate) ranks: Vec<RankShares>,
}

impl Summary {
    /// How large it is, for people.
    pub(crate) fn size_text(&self) -> String {
        let ranks = count(self.ranks.len() as u64, "rank");
        format!("{ranks}, {}, {}", count(self.lanes, "compute lane"), count(self.tasks, "task"))
    }

    /// What compute lanes did on average, for people.
    pub(crate) fn shares_text(&self, shares: &Shares) -> String {
        let part = |us: f64| percent(self.part(us));
        let Shares { busy_us, waiting_us, comm_alone_us, idle_us, .. } = *shares;
        let (alone, idle) = (part(comm_alone_us), part(idle_us));
        format!(
            "busy {}, waiting {}, communication alone {alone}, idle {idle}",
            part(busy_us),
            part(waiting_us)
        )
    }

    /// Microseconds as a part of the run.
    pub(crate) fn part(&self, us: f64) -> f64 {
        if self.run_us > 0.0 { us / self.run_us } else { 0.0 }
    }

    pub(crate) fn of(trace: &Trace) -> Summary {
        let (from, to) = trace.span();
        let run_us = us(to.abs_diff(from));
        let ranks: Vec<RankShares> = trace.ranks().map(|rank| of_rank(rank, run_us)).collect();
        let mean = |part: fn(&Shares) -> f64| mean(ranks.iter().map(|r| part(&r.shares)));
        let all = Shares::of(mean(|s| s.busy_us), mean(|s| s.waiting_us), mean(|s| s.comm_alone_us), run_us);
        let waits = trace.slices.iter().filter(|s| s.wait).count() as u64;
        Summary {
            run_us,
            tasks: trace.slices.len() as u64 - waits,
            waits,
            lanes: ranks.iter().map(|r| u64::from(r.lanes)).sum(),
            all,
            ranks,
        }
    }
}

fn of_rank(slices: &[Slice], run_us: f64) -> RankShares {
    let (mut busy, mut waiting) = (Vec::new(), Vec::new());
    let (mut compute, mut comm) = (Vec::new(), Vec::new());
    for track in slices.chunk_by(|a, b| a.tid == b.tid) {
        let all = Spans::of(track.iter().map(|s| (s.from, s.to)));
        if track[0].comm() {
            comm.push(all);
            continue;
        }
        let waits = Spans::of(track.iter().filter(|s| s.wait).map(|s| (s.from, s.to)));
        busy.push(us(all.minus(&waits).ps()));
        waiting.push(us(waits.ps()));
        compute.push(all);
    }
    let lanes = compute.len() as u32;
    let alone = us(Spans::union(comm).minus(&Spans::union(compute)).ps());
    let shares = Shares::of(mean(busy.into_iter()), mean(waiting.into_iter()), alone, run_us);
    RankShares { rank: slices[0].rank, lanes, shares }
}

fn us(ps: u64) -> f64 {
    ps as f64 / PS_PER_US
}

/// 0 of nothing.
fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let number = values.len().max(1) as f64;
    // A sum of nothing would be -0.
    values.fold(0.0, |a, b| a + b) / number
}
