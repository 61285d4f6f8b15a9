//! A trace written by hand, with numbers worked out by hand.
//!
//! ```text
//! us              0    2    4    6    8   10   12   14   16
//! rank 0 lane 0   wwww======ww========                          task 0 to 10, waits 0 to 2 and 5 to 6
//!        comm     ************************                      push 0 to 12
//!        lane 1     w======                                     task 1 to 4, waits 1 to 1.5
//! rank 1 lane 0   ========wwwwwwww================              task 0 to 16, waits 4 to 8
//! ```
//!
//! The run takes 16 us. Rank 0: lane 0 waits 3 and works 7, lane 1 waits 0.5 and works 2.5; the mean is 1.75 and 4.75. Its
//! comm stream is alone from 10 to 12, so 3.75 are exposed, and 16 - 4.75 - 3.75 = 7.5 idle. Rank 1: 4 exposed, 12 busy.
//! All: (3.75 + 4) / 2 = 3.875 exposed, which is 24.21875 % of the run.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) const RUN_US: f64 = 16.0;
pub(crate) const EXPOSED_US: f64 = 3.875;
/// What people are shown.
pub(crate) const EXPOSED_TEXT: &str = "3.88 us";
pub(crate) const EXPOSED_PERCENT: &str = "24.2 %";

/// One event: rank, tid, category, name, from, to in microseconds.
pub(crate) type Event<'a> = (u32, u32, &'a str, &'a str, f64, f64);

pub(crate) const BY_HAND: [Event<'static>; 10] = [
    (0, 0, "compute", "tile local gemm", 0.0, 10.0),
    (0, 0, "wait", "wait: tile local gemm", 0.0, 2.0),
    // Two waits of a task may overlap; a moment counts once.
    (0, 0, "wait", "wait: tile local gemm", 5.0, 6.0),
    (0, 0, "wait", "wait: tile local gemm", 5.5, 6.0),
    (0, 1, "comm", "push to rank 1 put", 0.0, 12.0),
    (0, 2, "compute", "tile from rank 1 gemm", 1.0, 4.0),
    (0, 2, "wait", "wait: tile from rank 1 gemm", 1.0, 1.5),
    (1, 0, "compute", "tile from rank 0 gemm", 0.0, 16.0),
    // As somebody names a wait who knows what for.
    (1, 0, "wait", "rows of rank 0", 4.0, 8.0),
    (1, 0, "wait", "rows of rank 0", 6.0, 7.0),
];

/// The events as a file, `later` microseconds later than they say.
pub(crate) fn file(events: &[Event<'_>], later: f64) -> String {
    let mut text = String::from("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
    for (number, (pid, tid, cat, name, from, to)) in events.iter().enumerate() {
        let event = serde_json::json!({
            "args": {"epoch": 1, "program": "by hand", "task": number},
            "cat": cat, "dur": to - from, "name": name, "ph": "X", "pid": pid, "tid": tid, "ts": from + later,
        });
        text += &format!("{}\n{event}", if number == 0 { "" } else { "," });
    }
    text + "\n]}\n"
}
