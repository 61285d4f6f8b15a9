//! `mk trace`: its numbers, its pictures, and what it refuses.

#![allow(clippy::unwrap_used)]

#[path = "common/trace.rs"]
mod by_hand;
mod common;

use by_hand::{BY_HAND, EXPOSED_PERCENT, EXPOSED_TEXT, EXPOSED_US, RUN_US, file};
use common::mk;
use mk_core::{DType, Lane, Rank, Registry, Slice, Stream, TaskNames, Trace};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::sync::Arc;

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

fn json(args: &[&str]) -> Value {
    let done = mk(&[&["trace", "--json"], args].concat());
    assert_eq!(done.code, Some(0), "{done:?}");
    serde_json::from_str(&done.out).unwrap()
}

#[track_caller]
fn near(value: &Value, expected: f64) {
    let value = value.as_f64().unwrap();
    assert!((value - expected).abs() < 1e-9, "{value} is not {expected}");
}

/// In any order, at any time: the same numbers.
#[test]
fn exposed_communication_is_what_was_worked_out_by_hand() {
    let d = tempfile::tempdir().unwrap();
    let mut reversed = BY_HAND;
    reversed.reverse();
    for (events, later) in [(BY_HAND, 0.0), (reversed, 0.0), (BY_HAND, 1000.0), (BY_HAND, -7.5)] {
        let said = json(&[&write(d.path(), "t.json", &file(&events, later))]);
        near(&said["run_us"], RUN_US);
        near(&said["exposed_us"], EXPOSED_US);
        near(&said["exposed"], 0.2421875);
        for (part, us) in
            [("busy_us", 8.375), ("waiting_us", 2.875), ("comm_alone_us", 1.0), ("idle_us", 3.75)]
        {
            near(&said[part], us);
        }
        let expected = [[2.0, 4.75, 1.75, 2.0, 7.5, 3.75], [1.0, 12.0, 4.0, 0.0, 0.0, 4.0]];
        let parts = ["lanes", "busy_us", "waiting_us", "comm_alone_us", "idle_us", "exposed_us"];
        for (rank, expected) in expected.iter().enumerate() {
            assert_eq!(said["ranks"][rank]["rank"], rank);
            parts.iter().zip(expected).for_each(|(part, us)| near(&said["ranks"][rank][part], *us));
        }
        assert_eq!([&said["tasks"], &said["waits"], &said["lanes"]], [4, 6, 3]);
        assert_eq!(said["program"], "by hand");
    }
}

#[test]
fn people_are_told_the_same_numbers() {
    let d = tempfile::tempdir().unwrap();
    let done = mk(&["trace", &write(d.path(), "t.json", &file(&BY_HAND, 0.0))]);
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{done:?}");
    insta::assert_snapshot!(done.out);
    assert!(done.out.contains(EXPOSED_TEXT) && done.out.contains(EXPOSED_PERCENT));
}

/// Hidden communication is not exposed, a lane that has finished is idle, and one that never came is no lane.
#[test]
fn what_is_not_exposed() {
    let d = tempfile::tempdir().unwrap();
    for (events, exposed_us, idle_us) in [
        // A push behind a task.
        (&[(0, 0, "compute", "t", 0.0, 8.0), (0, 1, "comm", "p", 1.0, 7.0)][..], 0.0, 0.0),
        // A lane ends early: half of the lanes' time is idle for 6 of 8 us.
        (&[(0, 0, "compute", "t", 0.0, 8.0), (0, 2, "compute", "t", 0.0, 2.0)], 0.0, 3.0),
        // Between two tasks, while nothing is communicated.
        (&[(0, 0, "compute", "t", 0.0, 2.0), (0, 0, "compute", "t", 6.0, 8.0)], 0.0, 4.0),
        // The same gap, with communication from 3 to 5 in it.
        (
            &[
                (0, 0, "compute", "t", 0.0, 2.0),
                (0, 1, "comm", "p", 3.0, 5.0),
                (0, 0, "compute", "t", 6.0, 8.0),
            ],
            2.0,
            2.0,
        ),
        // A wait of a comm stream holds up no compute lane.
        (
            &[(0, 0, "compute", "t", 0.0, 8.0), (0, 1, "comm", "p", 0.0, 4.0), (0, 1, "wait", "w", 0.0, 3.0)],
            0.0,
            0.0,
        ),
        // A collective has no compute lane: all of it is communication alone.
        (&[(0, 1, "comm", "p", 0.0, 4.0), (0, 3, "comm", "p", 3.0, 8.0)], 8.0, 0.0),
        // A task that never ended leaves its waits.
        (&[(0, 0, "wait", "w", 0.0, 4.0), (0, 0, "wait", "w", 4.0, 8.0)], 8.0, 0.0),
        // Nothing ran.
        (&[], 0.0, 0.0),
    ] {
        let said = json(&[&write(d.path(), "t.json", &file(events, 0.0))]);
        near(&said["exposed_us"], exposed_us);
        near(&said["idle_us"], idle_us);
    }
}

#[test]
fn a_trace_that_is_written_again_is_the_same() {
    let d = tempfile::tempdir().unwrap();
    let mut mixed = BY_HAND;
    mixed.swap(0, 7);
    mixed.swap(3, 9);
    let [one, two] = [("one.json", &BY_HAND), ("two.json", &mixed)].map(|(name, events)| {
        let text = file(events, 3.25).replace("\"epoch\":1,", "").replace("\"task\":", "\"unknown\":");
        let from = write(d.path(), name, &text.replace("{\"args\"", "{\"id\":7,\"args\""));
        let to = format!("{from}.json");
        json(&[&from, "--out", &to]);
        fs::read_to_string(to).unwrap()
    });
    assert_eq!(one, two, "the order of the file does not matter");
    let again = write(d.path(), "again.json", &one);
    json(&[&again, "--out", &format!("{again}.json")]);
    assert_eq!(fs::read_to_string(format!("{again}.json")).unwrap(), one);

    let all: Value = serde_json::from_str(&one).unwrap();
    let events = all["traceEvents"].as_array().unwrap();
    let slices: Vec<_> = events.iter().filter(|e| e["ph"] == "X").collect();
    assert_eq!(slices.len(), BY_HAND.len());
    for (pid, tid, cat, name, from, to) in BY_HAND {
        let same = |e: &&&Value| {
            e["pid"] == pid
                && e["tid"] == tid
                && e["cat"] == cat
                && e["name"] == name
                && e["ts"] == from + 3.25
                && e["dur"] == to - from
        };
        assert_eq!(slices.iter().filter(same).count(), 1, "{name} {from}");
    }
    assert!(!one.contains("unknown") && !one.contains("\"id\""), "only known fields");
    let order: Vec<_> =
        slices.iter().map(|e| (e["pid"].as_u64(), e["tid"].as_u64(), e["ts"].as_f64())).collect();
    assert!(order.is_sorted(), "{order:?}");
}

#[test]
fn what_is_no_trace_is_refused_by_what_is_wrong() {
    let d = tempfile::tempdir().unwrap();
    let event = |rest: &str| format!("{{\"traceEvents\":[{{\"ph\":\"M\"}},\n{{\"ph\":\"X\"{rest}}}]}}");
    let start = ",\"pid\":0,\"tid\":0,\"ts\":0";
    let whole = event(",\"pid\":0,\"tid\":0,\"ts\":0,\"dur\":1,\"cat\":\"wait\",\"name\":\"w\"");
    assert_eq!(mk(&["trace", &write(d.path(), "t.json", &whole)]).code, Some(0), "{whole}");
    for (text, words) in [
        (String::new(), &["is empty"][..]),
        ("[]".into(), &["is not a trace", "traceEvents", "line 1"]),
        ("{}".into(), &["no \"traceEvents\""]),
        ("{\"traceEvents\":[],\"traceEvents\":[]}".into(), &["two \"traceEvents\""]),
        ("{\"traceEvents\":{}}".into(), &["an array of events"]),
        ("{\"traceEvents\":[1]}".into(), &["integer `1`"]),
        ("{\"traceEvents\":[]} x".into(), &["is not JSON", "trailing"]),
        (whole[..whole.len() - 3].into(), &["is not whole", "line 2"]),
        ("\u{7f}ELF".into(), &["is not JSON"]),
        (event(""), &["event 2", "\"pid\" is missing", "line 2"]),
        (event(",\"pid\":65536"), &["\"pid\" is 65536", "0 to 65535"]),
        (event(",\"pid\":-1"), &["-1"]),
        (event(",\"pid\":0,\"tid\":2048"), &["\"tid\" is 2048", "0 to 2047"]),
        (event(",\"pid\":0,\"tid\":0"), &["\"ts\" is missing", "microseconds"]),
        (event(",\"pid\":0,\"tid\":0,\"ts\":1e13"), &["\"ts\" is 10000000000000"]),
        (event(",\"pid\":0,\"tid\":0,\"ts\":1e999"), &["number out of range"]),
        (event(",\"pid\":0,\"tid\":0,\"ts\":\"soon\""), &["\"soon\""]),
        (event(&format!("{start},\"dur\":-1")), &["\"dur\" is -1", "from 0 to"]),
        (event(&format!("{start},\"dur\":1")), &["\"cat\" is missing", "compute, comm or wait"]),
        (event(&format!("{start},\"dur\":1,\"cat\":\"tea\"")), &["\"tea\"", "compute, comm, wait"]),
        (
            event(&format!("{start},\"dur\":1,\"cat\":\"comm\"")),
            &["\"comm\"", "even tid is a compute stream"],
        ),
        (event(&format!("{start},\"dur\":1,\"cat\":\"wait\"")), &["\"name\" is missing"]),
        (event(&format!("{start},\"ts\":0")), &["duplicate field `ts`"]),
    ] {
        let path = write(d.path(), "t.json", &text);
        let done = mk(&["trace", &path]);
        assert_eq!((done.code, done.out.as_str()), (Some(2), ""), "{text}: {done:?}");
        assert!(done.err.contains("t.json"), "{}", done.err);
        words.iter().for_each(|w| assert!(done.err.contains(w), "{text}: '{w}' is not in\n{}", done.err));
        let said: Value = serde_json::from_str(&mk(&["trace", &path, "--json"]).out).unwrap();
        assert_eq!((&said["ok"], &said["kind"]), (&Value::Bool(false), &Value::from("file")));
    }
}

#[test]
fn options_are_checked_before_anything_is_read() {
    let d = tempfile::tempdir().unwrap();
    let trace = write(d.path(), "t.json", &file(&BY_HAND, 0.0));
    let at = |name: &str| d.path().join(name).display().to_string();
    let missing = at("missing.json");
    for (args, words) in [
        (&["--out", &at("t.png")][..], &[".html", ".svg", ".json", "t.png"][..]),
        (&["--out", &at("t")], &[".html", ".svg", ".json"]),
        (&["--ranks", "0"], &["--ranks", ".html", ".svg"]),
        (&["--ranks", "0", "--out", &at("o.json")], &["--ranks", ".html", ".svg"]),
        (&["--ranks", "3-1", "--out", &at("o.svg")], &["--ranks", "lower"]),
        (&["--ranks", "a", "--out", &at("o.svg")], &["--ranks", "0-3,8"]),
        (&["--ranks", "", "--out", &at("o.svg")], &["--ranks", "0-3,8"]),
    ] {
        let done = mk(&[&["trace", &missing], args].concat());
        assert_eq!(done.code, Some(2), "{done:?}");
        words.iter().for_each(|w| assert!(done.err.contains(w), "'{w}' is not in\n{}", done.err));
        assert!(!done.err.contains("missing.json"), "{}", done.err);
    }
    for (args, words) in [
        (&["--out", &trace][..], &["same file"][..]),
        (&["--out", &at("no/o.svg")], &["no folder"]),
        (&["--ranks", "1-2", "--out", &at("o.svg")], &["no such rank", "rank 2", "ranks 0-1"]),
    ] {
        let done = mk(&[&["trace", &trace], args].concat());
        assert_eq!(done.code, Some(2), "{done:?}");
        words.iter().for_each(|w| assert!(done.err.contains(w), "'{w}' is not in\n{}", done.err));
    }
    assert_eq!(mk(&["trace", &missing]).code, Some(2));
    assert_eq!(fs::read_dir(d.path()).unwrap().count(), 1, "nothing was written");
}

/// As a session on a GPU writes it: nanoseconds, tasks that overlap on their lane, and waits that begin with their task. The
/// second tile is loaded while the first one is computed, and waits until 6 us; the run takes 9.25 us.
fn of_a_gpu() -> String {
    let world = mk_core::World::local(2).unwrap();
    let builder = Registry::builder().transport(mk_nvlink::NvLink::new()).handlers(mk_compute::handlers());
    let registry = builder.build(&world).unwrap();
    let op = mk_compute::AllGatherGemm::new(512, 512, 256, DType::Bf16).lanes(1);
    let program = op.plan(&registry).unwrap();
    let of_rank_0 = |stream| {
        let of = program.streams.iter().find(|s| (s.rank, s.stream) == (Rank(0), stream)).unwrap();
        of.tasks().collect::<Vec<_>>()
    };
    let (tiles, pushes) = (of_rank_0(Stream::Compute), of_rank_0(Stream::Comm));
    let mut trace = Trace::default();
    let run = trace.begin_run(&Arc::new(TaskNames::of(&program)), 3);
    let (rank, lane) = (Rank(0), Lane(0));
    for (stream, task, from_ns, to_ns, wait) in [
        (Stream::Compute, tiles[0], 32, 4_000, false),
        (Stream::Compute, tiles[1], 3_008, 9_250, false),
        (Stream::Compute, tiles[1], 3_008, 6_000, true),
        (Stream::Comm, pushes[0], 0, 6_016, false),
    ] {
        let (from_ps, to_ps) = (from_ns * 1000, to_ns * 1000);
        trace.add(Slice { run, task, rank, lane, stream, from_ps, to_ps, wait });
    }
    let mut bytes = Vec::new();
    trace.to_json(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn a_trace_of_a_gpu_is_read_and_drawn_as_the_simulators() {
    let d = tempfile::tempdir().unwrap();
    let trace = write(d.path(), "t.json", &of_a_gpu());
    let said = json(&[&trace]);
    near(&said["run_us"], 9.25);
    near(&said["waiting_us"], 2.0);
    near(&said["busy_us"], 7.218);
    near(&said["exposed_us"], 2.032);
    assert_eq!([&said["tasks"], &said["waits"], &said["lanes"]], [3, 1, 1]);
    for name in ["t.html", "t.svg", "again.json"] {
        let out = d.path().join(name).display().to_string();
        json(&[&trace, "--out", &out]);
        let text = fs::read_to_string(out).unwrap();
        assert!(text.contains("tile") && text.contains("push"), "{name}");
    }
}

fn picture(args: &[&str], events: &[by_hand::Event<'_>], name: &str) -> String {
    let d = tempfile::tempdir().unwrap();
    let trace = write(d.path(), "t.json", &file(events, 0.0));
    let out = d.path().join(name).display().to_string();
    json(&[&[trace.as_str(), "--out", &out], args].concat());
    fs::read_to_string(out).unwrap()
}

#[test]
fn a_small_picture() {
    insta::assert_snapshot!(picture(&[], &BY_HAND, "t.svg"));
}

#[test]
fn chosen_ranks_are_shown_and_the_others_named() {
    let svg = picture(&["--ranks", "1"], &BY_HAND, "t.svg");
    assert!(svg.contains(">rank 1<") && !svg.contains(">rank 0<"), "{svg}");
    assert!(svg.contains("shown: rank 1 of 2; --ranks chooses others"));
    assert!(svg.contains(EXPOSED_TEXT), "the number is still that of all ranks");
}

/// 100 ranks of 4 lanes and a million pixels' worth of slices: still a picture of a bounded size.
#[test]
fn a_picture_stays_small_and_says_what_it_leaves_out() {
    let names: Vec<String> = (0..40).map(|n| format!("task {} of kind{n}", n * 7)).collect();
    let mut events = Vec::new();
    for rank in 0..100 {
        for tid in 0..8 {
            let cat = if tid % 2 == 0 { "compute" } else { "comm" };
            for n in 0..250_u32 {
                let (from, name) = (f64::from(n * 4 + tid % 3), &names[(n + tid) as usize % names.len()]);
                events.push((rank, tid, cat, name.as_str(), from, from + 3.0));
            }
        }
    }
    let svg = picture(&[], &events, "t.svg");
    assert!(svg.len() <= 300_000, "{} bytes", svg.len());
    assert!(svg.contains("shown: ranks 0-39 of 100"), "160 rows");
    assert!(
        svg.contains("33 other kinds of tasks") && svg.contains("36 other kinds of tasks"),
        "colours are few"
    );
    let html = picture(&[], &events, "t.html");
    assert!(html.len() < 8_000_000, "{} bytes", html.len());
}

#[test]
fn hostile_labels_stay_text() {
    let hostile = "</script><script>alert(1)</script><b onclick='x'>\"&{{data}}\u{0}\u{202e}\u{2028}]]>";
    let d = tempfile::tempdir().unwrap();
    let events = [
        (0, 0, "compute", hostile, 0.0, 4.0),
        (0, 0, "wait", hostile, 1.0, 2.0),
        (0, 1, "comm", hostile, 0.0, 4.0),
    ];
    let text = file(&events, 0.0).replace("by hand", "</title><script>alert(2)</script>{{script}}");
    let trace = write(d.path(), "t.json", &text);
    for name in ["t.svg", "t.html"] {
        let out = d.path().join(name).display().to_string();
        json(&[&trace, "--out", &out]);
        let text = fs::read_to_string(out).unwrap();
        let scripts = if name == "t.html" { 2 } else { 0 };
        assert_eq!(text.matches("<script").count(), scripts, "only our own in {name}");
        assert_eq!(text.matches("</script").count(), scripts);
        assert!(!text.contains("<b onclick"), "{name}");
        assert!(!text.contains(['\u{0}', '\u{202e}', '\u{2028}']), "{name}");
        assert_eq!(text.matches("'use strict'").count(), scripts / 2, "a label is no part of the template");
    }
}

#[test]
fn pages_and_pictures_load_nothing() {
    for name in ["t.svg", "t.html"] {
        let text = picture(&[], &BY_HAND, name).replace("http://www.w3.org/2000/svg", "");
        for word in ["http:", "https:", "src=", "href=", "@import", "url(\"", "fetch(", "XMLHttpRequest"] {
            assert!(!text.contains(word), "{word} in {name}");
        }
    }
}
