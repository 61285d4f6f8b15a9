//! Reading a trace, event by event: only what is wanted of it is ever in memory.

use super::trace::{PS_PER_US, Slice, Trace};
use mk_core::Limits;
use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::io::Read;

/// Bytes of a trace that is read: some 60 million events.
pub(crate) const MAX_FILE_BYTES: u64 = 8 << 30;
/// Slices of a trace: 1 GiB in memory.
const MAX_SLICES: usize = 1 << 24;
/// Bytes of memory that they take.
pub(crate) const MAX_BYTES: u64 = (MAX_SLICES * size_of::<Slice>()) as u64;
/// Microseconds from the clock's zero, and of one slice: eleven days. In picoseconds, the sum of two is far from the largest i64.
const MAX_US: f64 = 1e12;

/// Reads a trace as `mk run --trace` writes it.
///
/// # Errors
/// What is wrong, and where, as text that follows a file's name.
pub(crate) fn read(from: impl Read) -> Result<Trace, String> {
    let mut trace = Trace::default();
    let mut file = serde_json::Deserializer::from_reader(from);
    File(&mut trace).deserialize(&mut file).and_then(|()| file.end()).map_err(|e| says(&e))?;
    trace.sort();
    Ok(trace)
}

fn says(e: &serde_json::Error) -> String {
    match e.classify() {
        serde_json::error::Category::Data => format!("is not a trace: {e}"),
        serde_json::error::Category::Eof => format!("is not whole: {e}"),
        serde_json::error::Category::Syntax => format!("is not JSON: {e}"),
        serde_json::error::Category::Io => format!("cannot be read: {e}"),
    }
}

/// The object that a trace is.
struct File<'a>(&'a mut Trace);

impl<'de> DeserializeSeed<'de> for File<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for File<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with an array \"traceEvents\"")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = false;
        while let Some(key) = map.next_key::<String>()? {
            if key != "traceEvents" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if std::mem::replace(&mut seen, true) {
                return Err(de::Error::custom("there are two \"traceEvents\""));
            }
            map.next_value_seed(Events(self.0))?;
        }
        if seen { Ok(()) } else { Err(de::Error::custom("there is no \"traceEvents\"")) }
    }
}

/// Its array of events.
struct Events<'a>(&'a mut Trace);

impl<'de> DeserializeSeed<'de> for Events<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Events<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut events: A) -> Result<(), A::Error> {
        let mut number = 0_u64;
        while let Some(event) = events.next_element::<Event>()? {
            number += 1;
            add(self.0, &event).map_err(|e| de::Error::custom(format!("event {number}: {e}")))?;
        }
        Ok(())
    }
}

/// An event; of a slice, nothing that is an option here may be missing but `args`.
#[derive(Deserialize)]
struct Event {
    ph: String,
    pid: Option<u64>,
    tid: Option<u64>,
    ts: Option<f64>,
    dur: Option<f64>,
    cat: Option<String>,
    name: Option<String>,
    args: Option<Args>,
}

#[derive(Deserialize)]
struct Args {
    program: Option<String>,
    task: Option<u32>,
    epoch: Option<u64>,
}

fn add(trace: &mut Trace, event: &Event) -> Result<(), String> {
    match event.ph.as_str() {
        "X" => {}
        // Names of processes and threads follow from their numbers.
        "M" => return Ok(()),
        _ => {
            trace.left_out += 1;
            return Ok(());
        }
    }
    if trace.slices.len() == MAX_SLICES {
        return Err(format!("more than {MAX_SLICES} slices, the most that are read"));
    }
    let rank = whole("pid", event.pid, Limits::RANKS, "a rank")? as u16;
    let tid = whole("tid", event.tid, 2 * Limits::LANES, "twice the lane, and one more for its comm stream")?;
    let (from, ps) = (picoseconds("ts", event.ts, -MAX_US)?, picoseconds("dur", event.dur, 0.0)?);
    let wait = is_wait(event.cat.as_deref(), tid % 2 == 1)?;
    let name = event.name.as_deref().ok_or("\"name\" is missing: that of the task")?;
    let args = event.args.as_ref();
    let slice = Slice {
        from,
        to: from + ps,
        epoch: args.and_then(|a| a.epoch),
        task: args.and_then(|a| a.task),
        name: trace.names.number(name),
        program: args.and_then(|a| a.program.as_deref()).map(|p| trace.programs.number(p)),
        rank,
        tid: tid as u16,
        wait,
    };
    trace.slices.push(slice);
    Ok(())
}

fn whole(key: &str, value: Option<u64>, end: u64, what: &str) -> Result<u64, String> {
    match value {
        Some(x) if x < end => Ok(x),
        Some(x) => Err(format!("\"{key}\" is {x}; allowed is {what}: 0 to {}", end - 1)),
        None => Err(format!("\"{key}\" is missing: {what}, 0 to {}", end - 1)),
    }
}

fn picoseconds(key: &str, us: Option<f64>, least: f64) -> Result<i64, String> {
    let allowed = format!("microseconds from {least} to {MAX_US}");
    match us {
        // Rounded: a time such as 0.1 us is no binary fraction.
        Some(us) if (least..=MAX_US).contains(&us) => Ok((us * PS_PER_US).round() as i64),
        Some(us) => Err(format!("\"{key}\" is {us}; allowed are {allowed}")),
        None => Err(format!("\"{key}\" is missing: {allowed}")),
    }
}

fn is_wait(cat: Option<&str>, comm: bool) -> Result<bool, String> {
    let stream = if comm { "comm" } else { "compute" };
    match cat {
        Some("wait") => Ok(true),
        Some(cat) if cat == stream => Ok(false),
        Some(cat @ ("compute" | "comm")) => Err(format!(
            "\"cat\" is \"{cat}\", but an {} tid is a {stream} stream",
            ["even", "odd"][usize::from(comm)]
        )),
        Some(cat) => Err(format!("\"cat\" is \"{cat}\"; allowed are compute, comm, wait")),
        None => Err("\"cat\" is missing: compute, comm or wait".into()),
    }
}
