//! Traces: who did what when, for Perfetto and `chrome://tracing`. The same form for the simulator and for GPUs, so that the
//! two can be laid over each other.
//!
//! ```
//! use mk_core::{Lane, Program, Rank, Slice, Stream, TaskId, TaskNames, Trace};
//! use std::sync::Arc;
//!
//! # fn example(program: &Program) -> std::io::Result<()> {
//! let mut trace = Trace::default();
//! let run = trace.begin_run(&Arc::new(TaskNames::of(program)), 1);
//! let task = Slice {
//!     run,
//!     task: TaskId(0),
//!     rank: Rank(0),
//!     lane: Lane(0),
//!     stream: Stream::Compute,
//!     from_ps: 0,
//!     to_ps: 2_000_000,
//!     wait: false,
//! };
//! trace.add(task);
//! // For the first half of it, it waited.
//! trace.add(Slice { to_ps: 1_000_000, wait: true, ..task });
//! trace.to_json(std::io::stdout())
//! # }
//! ```

use crate::{Lane, Program, Rank, Stream, TaskId};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::sync::Arc;

/// Something that took its time: a task, or a wait of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Whose run it belongs to: see [`Trace::begin_run`].
    pub run: u32,
    /// The task.
    pub task: TaskId,
    /// Where it ran.
    pub rank: Rank,
    /// The lane of that rank.
    pub lane: Lane,
    /// Its stream.
    pub stream: Stream,
    /// When it began, in picoseconds.
    pub from_ps: u64,
    /// When it ended; not before it began.
    pub to_ps: u64,
    /// It is a wait of the task for a signal, not the task itself.
    pub wait: bool,
}

impl Slice {
    /// The thread that it is shown on.
    fn tid(&self) -> u32 {
        2 * u32::from(self.lane.0) + self.stream as u32
    }
}

/// What runs did, task by task.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    slices: Vec<Slice>,
    /// The program of each run, and the epoch.
    runs: Vec<(Arc<TaskNames>, u64)>,
}

/// What the tasks of a program are called.
#[derive(Debug)]
pub struct TaskNames {
    program: String,
    /// Label and handler, by task.
    tasks: Vec<(u32, u16)>,
    labels: Vec<String>,
    handlers: Vec<String>,
}

impl TaskNames {
    /// Those of this program.
    pub fn of(program: &Program) -> TaskNames {
        TaskNames {
            program: program.name.clone(),
            tasks: program.tasks.iter().map(|t| (t.label, t.op.0)).collect(),
            labels: program.labels.clone(),
            handlers: program.handlers.iter().map(|h| h.name.clone()).collect(),
        }
    }

    fn name(&self, task: TaskId) -> String {
        let (label, handler) = self.tasks[task.index()];
        let label = self.labels.get(label as usize).map_or("", String::as_str);
        let handler = self.handlers.get(handler as usize).map_or("", String::as_str);
        format!("{label} {handler}").trim_start().to_string()
    }
}

impl Trace {
    /// Begins a run of a program in this epoch. Gives its number, for the slices of it.
    pub fn begin_run(&mut self, names: &Arc<TaskNames>, epoch: u64) -> u32 {
        self.runs.push((names.clone(), epoch));
        self.runs.len() as u32 - 1
    }

    /// Adds a slice, in any order.
    ///
    /// # Panics
    /// If the run was not begun, or its program has no such task.
    pub fn add(&mut self, slice: Slice) {
        let known =
            self.runs.get(slice.run as usize).is_some_and(|(n, _)| slice.task.index() < n.tasks.len());
        assert!(known, "a slice of a run and a task that there are: {slice:?}");
        self.slices.push(slice);
    }

    /// What was added, as it was added: slices of one stream may overlap.
    pub fn slices(&self) -> &[Slice] {
        &self.slices
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
        let (names, epoch) = &self.runs[s.run as usize];
        let name = names.name(s.task);
        let us = |ps: u64| ps as f64 / 1e6;
        json!({
            "ph": "X",
            "pid": s.rank.0,
            "tid": s.tid(),
            "ts": us(s.from_ps),
            "dur": us(s.to_ps - s.from_ps),
            "cat": if s.wait { "wait" } else { stream_name(s.stream) },
            "name": if s.wait { format!("wait: {name}") } else { name },
            "args": { "program": names.program, "task": s.task.0, "epoch": epoch },
        })
    }

    fn metadata(&self) -> Vec<serde_json::Value> {
        let tracks: BTreeSet<_> = self.slices.iter().map(|s| (s.rank.0, s.lane.0, s.stream)).collect();
        let ranks: BTreeSet<u16> = tracks.iter().map(|t| t.0).collect();
        let process = |r: &u16| json!({ "ph": "M", "pid": r, "name": "process_name", "args": { "name": format!("rank {r}") } });
        let thread = |&(rank, lane, stream): &(u16, u16, Stream)| {
            let name = format!("lane {lane} {}", stream_name(stream));
            let tid = 2 * u32::from(lane) + stream as u32;
            json!({ "ph": "M", "pid": rank, "tid": tid, "name": "thread_name", "args": { "name": name } })
        };
        ranks.iter().map(process).chain(tracks.iter().map(thread)).collect()
    }

    /// The slices, cut so that those of one track nest.
    fn shown(&self) -> Vec<Slice> {
        let mut tasks: Vec<Slice> = self.slices.iter().filter(|s| !s.wait).copied().collect();
        tasks.sort_by_key(|s| (s.rank, s.tid(), s.from_ps, s.to_ps));
        let mut ends: BTreeMap<(Rank, u32), u64> = BTreeMap::new();
        let mut spans = BTreeMap::new();
        for s in &mut tasks {
            let end = ends.entry((s.rank, s.tid())).or_insert(0);
            s.from_ps = s.from_ps.max(*end).min(s.to_ps);
            *end = s.to_ps.max(*end);
            spans.insert((s.run, s.task), (s.from_ps, s.to_ps));
        }
        let mut shown = tasks;
        // A task that did not end, in a run that failed, has waits and no slice of its own.
        for wait in self.slices.iter().filter(|s| s.wait) {
            let whole = (wait.from_ps, wait.to_ps);
            let (from, to) = spans.get(&(wait.run, wait.task)).copied().unwrap_or(whole);
            let cut = Slice { from_ps: wait.from_ps.max(from), to_ps: wait.to_ps.min(to), ..*wait };
            if cut.from_ps < cut.to_ps {
                shown.push(cut);
            }
        }
        shown.sort_by_key(|s| (s.rank, s.tid(), s.from_ps, s.wait));
        shown
    }
}

fn stream_name(stream: Stream) -> &'static str {
    match stream {
        Stream::Compute => "compute",
        Stream::Comm => "comm",
    }
}

fn write_event(w: &mut impl Write, first: &mut bool, event: &serde_json::Value) -> io::Result<()> {
    let comma = if std::mem::replace(first, false) { "" } else { "," };
    writeln!(w, "{comma}")?;
    serde_json::to_writer(w, event).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// A run of two tasks without labels.
    fn begun() -> (Trace, Slice) {
        let names = TaskNames {
            program: "p".into(),
            tasks: vec![(0, 0), (1, 0)],
            labels: vec!["first".into()],
            handlers: vec!["gemm".into()],
        };
        let mut trace = Trace::default();
        let run = trace.begin_run(&Arc::new(names), 7);
        let slice = Slice {
            run,
            task: TaskId(0),
            rank: Rank(1),
            lane: Lane(3),
            stream: Stream::Compute,
            from_ps: 1_000_000,
            to_ps: 3_000_000,
            wait: false,
        };
        (trace, slice)
    }

    fn events(trace: &Trace) -> Vec<Value> {
        let mut bytes = Vec::new();
        trace.to_json(&mut bytes).unwrap();
        let json: Value = serde_json::from_slice(&bytes).unwrap();
        json["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X").cloned().collect()
    }

    fn spans(events: &[Value]) -> Vec<(u64, f64, f64)> {
        let number = |v: &Value| v.as_f64().unwrap();
        events
            .iter()
            .map(|e| (e["args"]["task"].as_u64().unwrap(), number(&e["ts"]), number(&e["dur"])))
            .collect()
    }

    #[test]
    fn a_slice_is_an_event_with_its_names() {
        let (mut trace, slice) = begun();
        trace.add(slice);
        trace.add(Slice { task: TaskId(1), stream: Stream::Comm, ..slice });
        let events = events(&trace);
        assert_eq!(events[0]["name"], "first gemm");
        assert_eq!(
            (&events[0]["pid"], &events[0]["tid"], &events[0]["cat"]),
            (&1.into(), &6.into(), &"compute".into())
        );
        assert_eq!((&events[0]["args"]["program"], &events[0]["args"]["epoch"]), (&"p".into(), &7.into()));
        assert_eq!(
            (&events[1]["name"], &events[1]["tid"], &events[1]["cat"]),
            (&"gemm".into(), &7.into(), &"comm".into())
        );
    }

    /// The second task was loaded while the first was stored, and waited meanwhile.
    #[test]
    fn a_task_is_shown_from_the_end_of_the_one_before_it() {
        let (mut trace, slice) = begun();
        let second = Slice { task: TaskId(1), from_ps: 1_500_000, to_ps: 5_000_000, ..slice };
        for slice in [Slice { to_ps: 4_000_000, wait: true, ..second }, second, slice] {
            trace.add(slice);
        }
        let events = events(&trace);
        assert_eq!(spans(&events), [(0, 1.0, 2.0), (1, 3.0, 2.0), (1, 3.0, 1.0)]);
        assert_eq!(events[2]["name"], "wait: gemm");
        assert_eq!((trace.tasks(), trace.slices().len()), (2, 3));
    }

    #[test]
    fn what_is_nothing_once_it_is_cut_is_no_wait_but_a_task_all_the_same() {
        let (mut trace, slice) = begun();
        let inside = Slice { task: TaskId(1), from_ps: 1_200_000, to_ps: 2_000_000, ..slice };
        for slice in [slice, inside, Slice { wait: true, ..inside }] {
            trace.add(slice);
        }
        assert_eq!(spans(&events(&trace)), [(0, 1.0, 2.0), (1, 2.0, 0.0)]);
    }

    #[test]
    fn a_wait_of_a_task_that_did_not_end_is_shown_as_it_is() {
        let (mut trace, slice) = begun();
        trace.add(Slice { wait: true, ..slice });
        assert_eq!(spans(&events(&trace)), [(0, 1.0, 2.0)]);
        assert_eq!(trace.tasks(), 0);
    }

    #[test]
    #[should_panic(expected = "a slice of a run and a task that there are")]
    fn a_task_that_there_is_not_is_refused() {
        let (mut trace, slice) = begun();
        trace.add(Slice { task: TaskId(2), ..slice });
    }
}
