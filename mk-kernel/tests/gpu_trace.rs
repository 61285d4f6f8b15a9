//! What a traced run on a GPU says of its tasks: each of them once, in order, in the simulator's form.
//!
//! Without a GPU these tests say that they are skipped.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "common/product.rs"]
mod product;

use mk_compute::{Scale, ScaleArgs};
use mk_core::*;
use mk_kernel::abi::Role;
use mk_kernel::driver::Device;
use mk_kernel::{Gpu, GpuBuilder, Limits, RoleEvent, Sabotage};
use product::{Product, device, registry};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A launch a run, and resident.
fn sessions<'a>(registry: &'a Registry, device: &Device) -> [GpuBuilder<'a>; 2] {
    let builder = || Gpu::builder(registry).all(device).trace(true);
    [builder(), builder().resident()]
}

const RANKS: u32 = 2;

// ------------------------------------------------------------------------------------------------- checks

/// All that must be so of the trace of a run that has ended well.
fn check(gpu: &Gpu, verified: &Verified, epoch: u64) -> Trace {
    check_roles(verified.program(), &gpu.role_events(verified).unwrap());
    let trace = gpu.trace(verified).unwrap();
    check_slices(verified.program(), &trace);
    check_json(verified.program(), &trace, epoch);
    trace
}

/// Each role has each of its tasks once, one after the other, in the order of the lane's stream.
fn check_roles(program: &Program, events: &[RoleEvent]) {
    let mut by_role: BTreeMap<(Rank, Lane, u32), Vec<&RoleEvent>> = BTreeMap::new();
    for e in events {
        assert!(e.end_ns >= e.start_ns && e.waited_ns <= e.end_ns - e.start_ns, "{e:?}");
        by_role.entry((e.rank, e.lane, e.role as u32)).or_default().push(e);
    }
    for of_role in by_role.values() {
        for pair in of_role.windows(2) {
            assert!(pair[0].task < pair[1].task && pair[0].end_ns <= pair[1].start_ns, "{pair:?}");
        }
    }
    for role in [Role::Load, Role::Math, Role::Store, Role::Comm] {
        let seen: Vec<TaskId> = events.iter().filter(|e| e.role == role).map(|e| e.task).collect();
        let comm = role == Role::Comm;
        let streams = program.streams.iter().filter(|s| (s.stream == Stream::Comm) == comm);
        let all: BTreeSet<TaskId> = streams.flat_map(StreamTasks::tasks).collect();
        assert_eq!(seen.len(), all.len(), "{role:?}");
        assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), all, "{role:?}");
    }
}

/// Each task is there once, where it belongs, and its waits lie in it.
fn check_slices(program: &Program, trace: &Trace) {
    assert_eq!(trace.tasks(), program.tasks.len());
    let tasks: BTreeMap<TaskId, &Slice> =
        trace.slices().iter().filter(|s| !s.wait).map(|s| (s.task, s)).collect();
    assert_eq!(tasks.len(), program.tasks.len());
    assert_eq!(tasks.values().map(|s| s.from_ps).min(), Some(0));
    for s in trace.slices() {
        let (task, stream) = (tasks[&s.task], program.stream_of(s.task));
        assert!(task.from_ps <= s.from_ps && s.from_ps <= s.to_ps && s.to_ps <= task.to_ps, "{s:?}");
        assert_eq!((s.rank, s.stream), (stream.rank, stream.stream), "{s:?}");
        match stream.queue {
            Queue::Lane(lane) => assert_eq!(s.lane, lane, "{s:?}"),
            Queue::Ticket => assert!(s.lane.0 < program.lanes[s.rank.index()], "{s:?}"),
        }
    }
}

/// What the simulator's traces must be.
fn check_json(program: &Program, trace: &Trace, epoch: u64) {
    let mut bytes = Vec::new();
    trace.to_json(&mut bytes).unwrap();
    let json: Value = serde_json::from_slice(&bytes).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let slices: Vec<&Value> = events.iter().filter(|e| e["ph"] == "X").collect();
    assert_eq!(slices.iter().filter(|e| e["cat"] != "wait").count(), program.tasks.len());
    let mut tracks: BTreeMap<(u64, u64), Vec<(f64, f64)>> = BTreeMap::new();
    for e in slices {
        let (pid, tid) = (e["pid"].as_u64().unwrap(), e["tid"].as_u64().unwrap());
        let (ts, dur) = (e["ts"].as_f64().unwrap(), e["dur"].as_f64().unwrap());
        assert!(pid < program.ranks.into() && tid < 2 * u64::from(program.lanes[pid as usize]), "{e}");
        assert!(ts >= 0.0 && dur >= 0.0, "{e}");
        let task = program.task(TaskId(e["args"]["task"].as_u64().unwrap() as u32));
        let name = e["name"].as_str().unwrap();
        assert!(name.ends_with(&program.handlers[task.op.index()].name), "{e}");
        assert_eq!(name.starts_with("wait: "), e["cat"] == "wait", "{e}");
        assert_eq!(
            (&e["args"]["program"], &e["args"]["epoch"]),
            (&program.name.clone().into(), &epoch.into())
        );
        tracks.entry((pid, tid)).or_default().push((ts, ts + dur));
    }
    for (track, mut spans) in tracks {
        let named = |e: &&Value| {
            e["ph"] == "M" && (e["pid"].as_u64(), e["tid"].as_u64()) == (Some(track.0), Some(track.1))
        };
        assert_eq!(events.iter().filter(named).count(), 1, "{track:?}");
        spans.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
        for pair in spans.windows(2) {
            let nested = pair[1].1 <= pair[0].1 + 1e-6 || pair[1].0 >= pair[0].1 - 1e-6;
            assert!(nested, "slices of {track:?} cross: {pair:?}");
        }
    }
}

/// Waits, and the time from the first start to the last end.
fn summary(trace: &Trace) -> (usize, u64) {
    let waits = trace.slices().iter().filter(|s| s.wait).count();
    (waits, trace.slices().iter().map(|s| s.to_ps).max().unwrap_or(0) / 1000)
}

// ------------------------------------------------------------------------------------------------- tests

/// For three runs, each looked at, and four more, of which only the last is: rings have wrapped by then.
#[test]
fn every_task_of_a_run_is_in_its_trace_once() {
    let Some(device) = device() else { return };
    for (size, lanes) in [((256, 512, 256), 4), ((640, 1032, 1096), 16)] {
        let product = Product::new(RANKS, size, lanes);
        for (builder, kind) in sessions(&product.registry, &device).into_iter().zip(["launched", "resident"])
        {
            let mut gpu = builder.open().unwrap();
            gpu.load(&product.program).unwrap();
            assert!(gpu.trace(&product.program).unwrap().slices().is_empty(), "nothing has run");
            for epoch in 1..=7 {
                let got = gpu.run(&product.program, &product.tensors(epoch)).unwrap();
                assert!(got == product.want(epoch), "{kind}, epoch {epoch}");
                if epoch <= 3 || epoch == 7 {
                    let trace = check(&gpu, &product.program, epoch);
                    let (waits, ns) = summary(&trace);
                    println!(
                        "{size:?}, {kind}, epoch {epoch}: {} tasks, {waits} waits, {ns} ns",
                        trace.tasks()
                    );
                    assert!(waits > 0, "somebody waits for rows of the other rank");
                }
            }
        }
    }
}

/// Rows of one rank, doubled, in a ticket queue.
fn doubling(registry: &Registry, lanes: u16, rows: u64) -> Verified {
    const COLS: u64 = 4096;
    let mut b = ProgramBuilder::new("doubling", registry);
    let shape = || Shape::Uniform([rows, COLS]);
    let x = b.region(Region::input("x", DType::F32, shape())).unwrap();
    let y = b.region(Region::output("y", DType::F32, shape())).unwrap();
    let double = b.op(Scale::NAME).unwrap();
    b.lanes(Rank(0), lanes);
    for row in 0..rows {
        let label = b.label(format!("row {row}"));
        let args = ScaleArgs {
            src: x,
            dst: y,
            factor: 2.0,
            rows: 1,
            cols: COLS as u32,
            src_row: row,
            src_col: 0,
            dst_row: row,
            dst_col: 0,
        };
        b.task(Rank(0), Queue::Ticket, double, label, &args).unwrap();
    }
    b.finish().unwrap().verify(registry, &Hardware::h200()).unwrap()
}

/// Which lane claims a task differs from run to run.
#[test]
fn tasks_that_are_claimed_are_told_by_run_too() {
    let Some(device) = device() else { return };
    let registry = registry(1);
    let program = doubling(&registry, 5, 64);
    let mut x = Bindings::new();
    x.set(Rank(0), "x", Tensor::from_f32(DType::F32, 64, 4096, &vec![1.5; 64 * 4096]));
    for builder in sessions(&registry, &device) {
        let mut gpu = builder.open().unwrap();
        for epoch in 1..=3 {
            gpu.run(&program, &x).unwrap();
            let trace = check(&gpu, &program, epoch);
            let lanes: BTreeSet<Lane> = trace.slices().iter().map(|s| s.lane).collect();
            println!("epoch {epoch}: {} lanes", lanes.len());
        }
    }
}

/// What a run did before it failed is not lost with its memory: it shows who waited.
#[test]
fn a_run_that_failed_leaves_its_trace() {
    let Some(device) = device() else { return };
    let product = Product::new(RANKS, (256, 512, 256), 4);
    let limits = Limits { start_us: 200_000, run_us: 100_000, ..Limits::default() };
    for builder in sessions(&product.registry, &device) {
        let mut gpu = builder.limits(limits).open().unwrap();
        gpu.run(&product.program, &product.tensors(1)).unwrap();
        gpu.sabotage(&product.program, Sabotage::LosePostsTo(Rank(1))).unwrap();
        let failed = gpu.run(&product.program, &product.tensors(1));
        assert!(matches!(failed, Err(RunError::Fault(_))), "{failed:?}");
        let trace = gpu.trace(&product.program).unwrap();
        let longest = trace.slices().iter().filter(|s| s.wait).max_by_key(|s| s.to_ps - s.from_ps).unwrap();
        assert!(longest.rank == Rank(1) && longest.to_ps - longest.from_ps > 50_000_000_000, "{longest:?}");
        assert!(trace.tasks() <= product.program.program().tasks.len());
        assert!(gpu.run(&product.program, &product.tensors(2)).unwrap() == product.want(2));
        check(&gpu, &product.program, 1);
    }
}

#[test]
fn a_session_without_tracing_says_so() {
    let Some(device) = device() else { return };
    let product = Product::new(RANKS, (256, 512, 256), 4);
    let mut gpu = Gpu::open(&product.registry, &device, Limits::default()).unwrap();
    assert!(gpu.run(&product.program, &product.tensors(1)).unwrap() == product.want(1));
    let refused = gpu.trace(&product.program).unwrap_err();
    assert!(refused.to_string().contains("does not trace"), "{refused}");
}
