//! What the engine tells a [`Trace`].

use crate::unit::Unit;
use mk_core::{Lane, Rank, Slice, Stream, TaskId, Trace};

/// Picoseconds, from a time to another.
pub(crate) type Span = (u64, u64);

pub(crate) fn add_task(trace: &mut Trace, unit: &Unit, job: usize, task: u32, span: Span) {
    trace.add(slice(unit, job, task, span));
}

pub(crate) fn add_wait(trace: &mut Trace, unit: &Unit, job: usize, task: u32, span: Span) {
    trace.add(Slice { wait: true, ..slice(unit, job, task, span) });
}

/// A job is a run of the trace.
fn slice(unit: &Unit, job: usize, task: u32, (from_ps, to_ps): Span) -> Slice {
    Slice {
        run: job as u32,
        task: TaskId(task),
        rank: Rank(unit.rank),
        lane: Lane(unit.lane),
        stream: if unit.comm { Stream::Comm } else { Stream::Compute },
        from_ps,
        to_ps,
        wait: false,
    }
}
