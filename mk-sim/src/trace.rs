//! Traces: who did what when, for Perfetto and `chrome://tracing`.

use crate::unit::Unit;
use mk_core::{Program, TaskId};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::sync::Arc;

/// Something that took its time, in picoseconds.
#[derive(Clone, Copy, Debug)]
struct Slice {
    rank: u16,
    tid: u32,
    job: u32,
    task: u32,
    from: u64,
    to: u64,
    wait: bool,
}

/// What a run did, task by task. Made by a simulator with [`trace`](crate::SimulatorBuilder::trace) switched on.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    slices: Vec<Slice>,
    /// The program of each epoch, and its number there.
    programs: Vec<(Arc<Names>, u64)>,
}

/// What tasks are called.
#[derive(Debug)]
pub(crate) struct Names {
    program: String,
    /// Label and handler, by task.
    tasks: Vec<(u32, u16)>,
    labels: Vec<String>,
    handlers: Vec<String>,
}

impl Names {
    pub(crate) fn new(program: &Program) -> Names {
        Names {
            program: program.name.clone(),
            tasks: program.tasks.iter().map(|t| (t.label, t.op.0)).collect(),
            labels: program.labels.clone(),
            handlers: program.handlers.iter().map(|h| h.name.clone()).collect(),
        }
    }

    fn of(&self, task: TaskId) -> String {
        let (label, handler) = self.tasks[task.index()];
        let label = self.labels.get(label as usize).map_or("", String::as_str);
        let handler = self.handlers.get(handler as usize).map_or("", String::as_str);
        format!("{label} {handler}").trim_start().to_string()
    }
}

impl Trace {
    fn push(&mut self, unit: &Unit, job: usize, task: u32, from: u64, to: u64, wait: bool) {
        let tid = 2 * u32::from(unit.lane) + u32::from(unit.comm);
        self.slices.push(Slice { rank: unit.rank, tid, job: job as u32, task, from, to, wait });
    }

    pub(crate) fn task(&mut self, unit: &Unit, job: usize, task: u32, from: u64, to: u64) {
        self.push(unit, job, task, from, to, false);
    }

    pub(crate) fn wait(&mut self, unit: &Unit, job: usize, task: u32, from: u64, to: u64) {
        self.push(unit, job, task, from, to, true);
    }

    pub(crate) fn names(&mut self, programs: Vec<(Arc<Names>, u64)>) {
        self.programs = programs;
    }

    /// Number of tasks that it shows.
    pub fn tasks(&self) -> usize {
        self.slices.iter().filter(|s| !s.wait).count()
    }

    /// Writes it as Chrome JSON: one process a rank, two threads a lane (compute, comm), microseconds.
    ///
    /// Tasks of one stream overlap: a lane loads the next one while it stores this one. On one track slices cannot, so a
    /// task is shown from the end of the one before it on. Waits (category `wait`) lie inside their task's slice.
    ///
    /// # Errors
    /// What the writer says.
    pub fn to_json(&self, writer: impl Write) -> io::Result<()> {
        let mut w = io::BufWriter::new(writer);
        write!(w, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        let mut first = true;
        for event in self.metadata() {
            write_event(&mut w, &mut first, &event)?;
        }
        for slice in self.shown() {
            write_event(&mut w, &mut first, &self.event(&slice))?;
        }
        writeln!(w, "\n]}}")?;
        w.flush()
    }

    fn event(&self, s: &Slice) -> serde_json::Value {
        let (names, epoch) = &self.programs[s.job as usize];
        let name = names.of(TaskId(s.task));
        let us = |ps: u64| ps as f64 / 1e6;
        json!({
            "ph": "X",
            "pid": s.rank,
            "tid": s.tid,
            "ts": us(s.from),
            "dur": us(s.to - s.from),
            "cat": if s.wait { "wait" } else if s.tid % 2 == 1 { "comm" } else { "compute" },
            "name": if s.wait { format!("wait: {name}") } else { name },
            "args": { "program": names.program, "task": s.task, "epoch": epoch },
        })
    }

    fn metadata(&self) -> Vec<serde_json::Value> {
        let tracks: BTreeSet<(u16, u32)> = self.slices.iter().map(|s| (s.rank, s.tid)).collect();
        let ranks: BTreeSet<u16> = tracks.iter().map(|t| t.0).collect();
        let process = |r: &u16| json!({ "ph": "M", "pid": r, "name": "process_name", "args": { "name": format!("rank {r}") } });
        let thread = |(rank, tid): &(u16, u32)| {
            let stream = if tid % 2 == 1 { "comm" } else { "compute" };
            let name = format!("lane {} {stream}", tid / 2);
            json!({ "ph": "M", "pid": rank, "tid": tid, "name": "thread_name", "args": { "name": name } })
        };
        ranks.iter().map(process).chain(tracks.iter().map(thread)).collect()
    }

    /// The slices, cut so that those of one track nest.
    fn shown(&self) -> Vec<Slice> {
        let mut tasks: Vec<Slice> = self.slices.iter().filter(|s| !s.wait).copied().collect();
        tasks.sort_by_key(|s| (s.rank, s.tid, s.from, s.to));
        let mut ends: BTreeMap<(u16, u32), u64> = BTreeMap::new();
        let mut spans = BTreeMap::new();
        for s in &mut tasks {
            let end = ends.entry((s.rank, s.tid)).or_insert(0);
            s.from = s.from.max(*end).min(s.to);
            *end = s.to.max(*end);
            spans.insert((s.job, s.task), (s.from, s.to));
        }
        let mut shown = tasks;
        // A task that did not end, in a run that failed, has waits and no slice of its own.
        for wait in self.slices.iter().filter(|s| s.wait) {
            let (from, to) = spans.get(&(wait.job, wait.task)).copied().unwrap_or((wait.from, wait.to));
            let cut = Slice { from: wait.from.max(from), to: wait.to.min(to), ..*wait };
            if cut.from < cut.to {
                shown.push(cut);
            }
        }
        shown.sort_by_key(|s| (s.rank, s.tid, s.from, s.wait));
        shown
    }
}

fn write_event(w: &mut impl Write, first: &mut bool, event: &serde_json::Value) -> io::Result<()> {
    let comma = if std::mem::replace(first, false) { "" } else { "," };
    writeln!(w, "{comma}")?;
    serde_json::to_writer(w, event).map_err(io::Error::from)
}
