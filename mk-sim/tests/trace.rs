//! Traces: JSON that a viewer accepts, with every task once.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use mk_core::*;
use mk_sim::{Mode, Simulator};
use serde_json::Value;
use std::collections::HashMap;

fn trace(case: &common::Case, program: &Verified, seed: u64) -> (Simulator, Vec<Value>) {
    let mut sim =
        Simulator::builder(&case.registry).mode(Mode::Timing).schedule_seed(seed).trace(true).build();
    sim.run_epochs(program, &[Bindings::new(), Bindings::new()]).unwrap();
    let mut bytes = Vec::new();
    sim.trace().unwrap().to_json(&mut bytes).unwrap();
    let json: Value = serde_json::from_slice(&bytes).unwrap();
    let events = json["traceEvents"].as_array().unwrap().clone();
    (sim, events)
}

#[test]
fn a_trace_shows_every_task_once_and_its_waits_inside() {
    let case = common::Case::new(3, [264, 512, 192], 2);
    let program = case.proved();
    for seed in [0, 1, 2, 3] {
        let (sim, events) = trace(&case, &program, seed);
        let slices: Vec<&Value> = events.iter().filter(|e| e["ph"] == "X").collect();
        let tasks = slices.iter().filter(|e| e["cat"] != "wait").count();
        assert_eq!(tasks, 2 * program.program().tasks.len());
        assert_eq!(sim.trace().unwrap().tasks(), tasks);
        assert!(slices.iter().any(|e| e["cat"] == "wait"), "somebody waits for rows of others");
        let mut ends: HashMap<(u64, u64), Vec<(f64, f64)>> = HashMap::new();
        let last = sim.report().time_ns as f64 / 1000.0;
        for e in slices {
            let (pid, tid) = (e["pid"].as_u64().unwrap(), e["tid"].as_u64().unwrap());
            let (ts, dur) = (e["ts"].as_f64().unwrap(), e["dur"].as_f64().unwrap());
            assert!(pid < 3 && tid < 4 && ts >= 0.0 && dur >= 0.0 && ts + dur <= last + 1e-3);
            let name = e["name"].as_str().unwrap();
            let handler = if tid % 2 == 1 { "nvlink.put_signal" } else { "gemm" };
            assert!(name.ends_with(handler), "'{name}' on thread {tid}");
            assert!(name.contains("tile") || name.contains("push"), "{name}");
            assert_eq!(name.starts_with("wait: "), e["cat"] == "wait");
            ends.entry((pid, tid)).or_default().push((ts, ts + dur));
        }
        for ((pid, tid), mut spans) in ends {
            spans.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
            for pair in spans.windows(2) {
                let nested = pair[1].1 <= pair[0].1 + 1e-6 || pair[1].0 >= pair[0].1 - 1e-6;
                assert!(nested, "slices of rank {pid}, thread {tid} cross: {pair:?}");
            }
        }
    }
}

#[test]
fn processes_and_threads_have_names() {
    let case = common::Case::new(2, [256, 64, 64], 1);
    let (_, events) = trace(&case, &case.proved(), 0);
    let names: Vec<(u64, Option<u64>, String)> = events
        .iter()
        .filter(|e| e["ph"] == "M")
        .map(|e| {
            (e["pid"].as_u64().unwrap(), e["tid"].as_u64(), e["args"]["name"].as_str().unwrap().to_string())
        })
        .collect();
    for rank in 0..2 {
        for (tid, name) in [
            (None, format!("rank {rank}")),
            (Some(0), "lane 0 compute".into()),
            (Some(1), "lane 0 comm".into()),
        ] {
            assert!(names.contains(&(rank, tid, name.clone())), "{name} is not in {names:?}");
        }
    }
}

#[test]
fn no_trace_is_kept_unless_asked_for() {
    let case = common::Case::new(1, [128, 64, 64], 1);
    let mut sim = Simulator::builder(&case.registry).build();
    sim.run(&case.proved(), &case.bindings(0)).unwrap();
    assert!(sim.trace().is_none());
}
