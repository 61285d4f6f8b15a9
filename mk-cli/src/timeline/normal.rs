//! A trace written again: sorted, and with the known fields only.

use super::trace::{PS_PER_US, Slice, Trace};
use serde::Serialize;
use serde_json::json;
use std::io::{self, Write};

/// An event as Perfetto reads it; the keys in the order in which a reader looks for them.
#[derive(Serialize)]
struct Event<'a> {
    ph: &'static str,
    pid: u16,
    tid: u16,
    ts: f64,
    dur: f64,
    cat: &'static str,
    name: &'a str,
    args: Args<'a>,
}

#[derive(Serialize)]
struct Args<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<u64>,
}

/// Writes `trace` as Chrome JSON: equal traces give equal bytes, however their files were ordered.
///
/// # Errors
/// What the writer says.
pub(crate) fn normal(trace: &Trace, to: &mut dyn Write) -> io::Result<()> {
    write!(to, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    let mut comma = "";
    for name in track_names(trace) {
        write!(to, "{comma}\n{name}")?;
        comma = ",";
    }
    for slice in &trace.slices {
        writeln!(to, "{comma}")?;
        serde_json::to_writer(&mut *to, &event(trace, slice)).map_err(io::Error::from)?;
        comma = ",";
    }
    writeln!(to, "\n]}}")
}

fn event<'a>(trace: &'a Trace, s: &Slice) -> Event<'a> {
    Event {
        ph: "X",
        pid: s.rank,
        tid: s.tid,
        ts: s.from as f64 / PS_PER_US,
        dur: s.ps() as f64 / PS_PER_US,
        cat: if s.wait { "wait" } else { stream(s) },
        name: trace.names.get(s.name),
        args: Args { program: s.program.map(|p| trace.programs.get(p)), task: s.task, epoch: s.epoch },
    }
}

fn stream(s: &Slice) -> &'static str {
    if s.comm() { "comm" } else { "compute" }
}

/// What Perfetto calls ranks and lanes.
fn track_names(trace: &Trace) -> impl Iterator<Item = serde_json::Value> + '_ {
    trace.ranks().flat_map(|rank| {
        let pid = rank[0].rank;
        let process =
            json!({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": format!("rank {pid}")}});
        let threads = rank.chunk_by(|a, b| a.tid == b.tid).map(move |track| {
            let name = format!("lane {} {}", track[0].lane(), stream(&track[0]));
            json!({"ph": "M", "pid": pid, "tid": track[0].tid, "name": "thread_name", "args": {"name": name}})
        });
        std::iter::once(process).chain(threads)
    })
}
