//! What roles did for tasks, as slices of a trace.

use crate::abi::{Role, TraceEvent};
use mk_core::{Lane, Program, Rank, Slice, Stream, TaskId, TaskNames, Trace};
use std::collections::BTreeMap;
use std::sync::Arc;

/// One role's part in a task. Times are those of the GPU's global timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleEvent {
    /// Whose task it is.
    pub rank: Rank,
    /// The lane that ran it.
    pub lane: Lane,
    /// Which of its roles.
    pub role: Role,
    /// The task.
    pub task: TaskId,
    /// When the role took it up.
    pub start_ns: u64,
    /// When it was through with it.
    pub end_ns: u64,
    /// How long it waited for signals in between.
    pub waited_ns: u64,
}

impl RoleEvent {
    /// What a role of this rank wrote, whose tasks are these in the order of their records.
    pub(super) fn of(
        event: &TraceEvent,
        rank: Rank,
        lane: Lane,
        role: Role,
        tasks: &[TaskId],
    ) -> Option<RoleEvent> {
        let &TraceEvent { start_ns, end_ns, waited_ns, .. } = event;
        let task = *tasks.get(event.task as usize)?;
        Some(RoleEvent { rank, lane, role, task, start_ns, end_ns, waited_ns })
    }
}

/// Time of one GPU, from the first of its events on.
struct Clock {
    zero_ns: u64,
}

impl Clock {
    fn ps(&self, ns: u64) -> u64 {
        ns.saturating_sub(self.zero_ns) * 1000
    }

    /// The part of a task that one event tells of.
    fn slice(&self, run: u32, e: &RoleEvent) -> Slice {
        Slice {
            run,
            task: e.task,
            rank: e.rank,
            lane: e.lane,
            stream: if e.role == Role::Comm { Stream::Comm } else { Stream::Compute },
            from_ps: self.ps(e.start_ns),
            to_ps: self.ps(e.end_ns),
            wait: false,
        }
    }

    /// Where in the event its waits were is not known: they are shown as one, at its beginning.
    fn wait(&self, run: u32, e: &RoleEvent) -> Option<Slice> {
        let to_ps = self.ps(e.start_ns.saturating_add(e.waited_ns).min(e.end_ns));
        (e.waited_ns > 0).then(|| Slice { to_ps, wait: true, ..self.slice(run, e) })
    }
}

/// The trace of one run: a slice for each task, from the start of its first role to the end of its last. `gpus`: the events of
/// each GPU, whose clocks differ.
pub(super) fn trace(program: &Program, epoch: u64, gpus: &[Vec<RoleEvent>]) -> Trace {
    let mut trace = Trace::default();
    let run = trace.begin_run(&Arc::new(TaskNames::of(program)), epoch);
    for events in gpus {
        let clock = Clock { zero_ns: events.iter().map(|e| e.start_ns).min().unwrap_or(0) };
        let slices = events.iter().map(|e| clock.slice(run, e));
        whole(slices).into_values().for_each(|task| trace.add(task));
        events.iter().filter_map(|e| clock.wait(run, e)).for_each(|wait| trace.add(wait));
    }
    trace
}

/// The parts of each task, put together.
fn whole(parts: impl Iterator<Item = Slice>) -> BTreeMap<TaskId, Slice> {
    let mut tasks: BTreeMap<TaskId, Slice> = BTreeMap::new();
    for part in parts {
        let task = tasks.entry(part.task).or_insert(part);
        task.from_ps = task.from_ps.min(part.from_ps);
        task.to_ps = task.to_ps.max(part.to_ps);
    }
    tasks
}
