//! The session: tensors, programs that share memory, and life after a fault.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "common/ring.rs"]
mod ring;

#[path = "common/mod.rs"]
mod common;

use mk_compute::{Scale, ScaleArgs};
use mk_core::*;
use mk_sim::{Faults, Mode, Simulator};
use ring::{gather, gathered, lane, row, rows};

fn proved(program: Program, registry: &Registry) -> Verified {
    program.verify(registry, &Hardware::h200()).unwrap()
}

fn input_error(result: Result<impl std::fmt::Debug, RunError>) -> String {
    match result {
        Err(RunError::Input(e)) => {
            let e = e.explain();
            format!("{}; {}; {}; {}", e.message, e.given, e.allowed, e.hint)
        }
        other => panic!("no input error: {other:?}"),
    }
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let registry = common::registry(2);
    let program = proved(gather(&registry), &registry);
    let mut sim = Simulator::builder(&registry).build();
    let mut refused = |change: fn(&mut Bindings), words: &[&str]| {
        let mut bindings = rows(2, 0);
        change(&mut bindings);
        let said = input_error(sim.run(&program, &bindings));
        assert!(words.iter().all(|w| said.contains(w)), "'{said}' does not say {words:?}");
    };
    refused(|b| *b = Bindings::new(), &["'x' on rank 0", "nothing", "1 x 16, fp32"]);
    refused(
        |b| {
            *b = Bindings::new();
            b.set(Rank(0), "x", row(0, 0));
        },
        &["'x' on rank 1", "nothing"],
    );
    refused(
        |b| b.set(Rank(1), "x", Tensor::zeros(DType::F32, 2, 16)),
        &["rank 1", "2 x 16, fp32", "1 x 16, fp32"],
    );
    refused(
        |b| b.set(Rank(1), "x", Tensor::zeros(DType::Bf16, 1, 16)),
        &["rank 1", "1 x 16, bf16", "1 x 16, fp32"],
    );
    refused(
        |b| b.set(Rank(1), "x", Tensor { dtype: DType::F32, rows: 1, cols: 16, bytes: vec![0; 63] }),
        &["rank 1", "63 bytes"],
    );
    refused(|b| b.set(Rank(1), "z", row(0, 0)), &["'z' on rank 1", "ranks 0 to 1: x"]);
    refused(|b| b.set(Rank(1), "y", Tensor::zeros(DType::F32, 2, 16)), &["'y' on rank 1"]);
    refused(|b| b.set(Rank(2), "x", row(0, 0)), &["'x' on rank 2", "ranks 0 to 1"]);
    assert!(sim.run(&program, &rows(2, 0)).is_ok());
}

#[test]
fn ranks_with_nothing_to_give_need_no_tensor() {
    // 5 ranks share 3 rows and 16 columns (two units of 8).
    let case = common::Case::new(5, [3, 16, 64], 2);
    let program = case.proved();
    let all = case.bindings(4);
    let mut bindings = Bindings::new();
    for (rank, name, tensor) in all.iter().filter(|(.., t)| t.rows * t.cols > 0) {
        bindings.set(rank, name, tensor.clone());
    }
    assert!(bindings.iter().count() < all.iter().count());
    let out = Simulator::builder(&case.registry).build().run(&program, &bindings).unwrap();
    assert_eq!(case.c(&out), case.reference(4));
}

#[test]
fn a_program_of_another_registry_is_refused() {
    let (two, three) = (common::registry(2), common::registry(3));
    let said = input_error(Simulator::builder(&two).build().load(&proved(gather(&three), &three)));
    assert!(
        said.contains("another registry") && said.contains("3 ranks") && said.contains("2 ranks"),
        "{said}"
    );
    let bare =
        Registry::builder().transport(mk_nvlink::NvLink::new()).build(&World::local(2).unwrap()).unwrap();
    let said = input_error(Simulator::builder(&bare).build().load(&proved(gather(&two), &two)));
    assert!(said.contains("gemm@1"), "{said}");
}

#[test]
fn after_a_fault_a_session_must_be_rebuilt() {
    let registry = common::registry(2);
    let program = proved(gather(&registry), &registry);
    let faults = Faults { lose_post: Some(3), ..Faults::default() };
    let mut sim = Simulator::builder(&registry).faults(faults).build();
    assert!(matches!(sim.run(&program, &rows(2, 0)), Err(RunError::Fault(_))));
    assert_eq!(sim.report().findings.len(), 1);
    sim.set_faults(Faults::default());
    let said = input_error(sim.run(&program, &rows(2, 0)));
    assert!(said.contains("rebuild") && said.contains("a post was lost"), "{said}");
    assert!(matches!(sim.load(&program), Err(RunError::Input(_))));
    sim.rebuild();
    assert_eq!(sim.generation(), 2);
    let out = sim.run_epochs(&program, &[rows(2, 5), rows(2, 6)]).unwrap();
    for (out, epoch) in out.iter().zip(5..) {
        assert_eq!(*out.get(Rank(1), "y").unwrap(), gathered(2, epoch));
    }
}

#[test]
fn timing_needs_no_tensors_and_gives_none() {
    // 2^40 bytes of A alone: nothing of it is allocated.
    let registry = common::registry(2);
    let op = mk_compute::AllGatherGemm::new(1 << 20, 4096, 1 << 19, DType::Bf16).lanes(8);
    let program = proved(op.plan(&registry).unwrap(), &registry);
    let mut sim = Simulator::builder(&registry).mode(Mode::Timing).build();
    assert_eq!(sim.run(&program, &Bindings::new()).unwrap(), Bindings::new());
    // 2 x 2^20 x 4096 x 2^19 operations on 2 x 8 of the SMs.
    let least = 2.0 * (1u64 << 20) as f64 * 4096.0 * (1u64 << 19) as f64
        / (1e3 * Hardware::h200().tensor_tflops * 16.0 / 132.0);
    let ratio = sim.report().time_ns as f64 / least;
    assert!((1.0..1.2).contains(&ratio), "{ratio} times the least time");
}

/// Keeps what it is given: the caller's tensor, updated in place; and a shared region.
fn keeper(registry: &Registry, name: &str, writes: bool) -> Program {
    let mut b = ProgramBuilder::new(name, registry);
    let shape = || Shape::Uniform([1, 16]);
    let shared = Region::new("kept", RegionKind::Heap, Io::InOut, DType::F32, shape()).shared();
    let kept = b.region(shared).unwrap();
    let x = b.region(if writes {
        Region::input("x", DType::F32, shape())
    } else {
        Region::output("y", DType::F32, shape())
    });
    let x = x.unwrap();
    let (op, label) = (b.op(Scale::NAME).unwrap(), b.label(name.to_string()));
    let (src, dst) = if writes { (x, kept) } else { (kept, x) };
    let args = ScaleArgs {
        src,
        dst,
        factor: 2.0,
        rows: 1,
        cols: 16,
        src_row: 0,
        src_col: 0,
        dst_row: 0,
        dst_col: 0,
    };
    for r in 0..registry.world().size() as u16 {
        b.task(Rank(r), lane(0), op, label, &args).unwrap();
    }
    b.finish().unwrap()
}

#[test]
fn programs_share_regions_by_name() {
    let registry = common::registry(2);
    let (write, read) = (
        proved(keeper(&registry, "write", true), &registry),
        proved(keeper(&registry, "read", false), &registry),
    );
    let mut sim = Simulator::builder(&registry).build();
    for epoch in 0..3 {
        sim.run(&write, &rows(2, epoch)).unwrap();
        let out = sim.run(&read, &Bindings::new()).unwrap();
        for r in 0..2 {
            let four: Vec<f32> = row(r, epoch).to_f32().iter().map(|x| 4.0 * x).collect();
            assert_eq!(out.get(Rank(r), "y").unwrap().to_f32(), four, "rank {r}, epoch {epoch}");
        }
    }
    // One after the other without a pause is the same: what a rank executes is in order.
    let (none, given) = (Bindings::new(), rows(2, 9));
    let out =
        sim.run_sequence(&[(&write, &given), (&read, &none), (&write, &given), (&read, &none)]).unwrap();
    let four: Vec<f32> = row(1, 9).to_f32().iter().map(|x| 4.0 * x).collect();
    assert_eq!(out[3].get(Rank(1), "y").unwrap().to_f32(), four);
}

#[test]
fn shared_regions_that_disagree_are_refused() {
    let registry = common::registry(2);
    let write = keeper(&registry, "write", true);
    let mut other = keeper(&registry, "read", false);
    other.regions[0].dtype = DType::Bf16;
    other.regions[1].dtype = DType::Bf16;
    let mut sim = Simulator::builder(&registry).build();
    sim.run_unproved(&write, &[rows(2, 0)]).unwrap();
    let said = input_error(sim.run_unproved(&other, &[Bindings::new()]));
    assert!(
        said.contains("'kept'")
            && said.contains("'read'")
            && said.contains("'write'")
            && said.contains("bf16"),
        "{said}"
    );
}

#[test]
fn programs_that_race_on_what_they_share_are_caught_when_they_follow_each_other() {
    // Rank 0 writes into rank 1's shared memory; rank 1's reader of the next program knows nothing of it.
    let registry = common::registry(2);
    let mut b = ProgramBuilder::new("push", &registry);
    let shape = || Shape::Uniform([1, 16]);
    let kept =
        b.region(Region::new("kept", RegionKind::Heap, Io::InOut, DType::F32, shape()).shared()).unwrap();
    let x = b.region(Region::input("x", DType::F32, shape())).unwrap();
    let (put, label) = (b.op("nvlink.put").unwrap(), b.label("push"));
    let at = (0, 0, 0, 0);
    let args = CopyArgs {
        src: x,
        dst: kept,
        peer: Rank(1),
        units: 1,
        src_row: at.0,
        src_col: at.1,
        dst_row: at.2,
        dst_col: at.3,
        rows: 1,
        cols: 16,
    };
    b.task(Rank(0), lane(0), put, label, &args).unwrap();
    let push = b.finish().unwrap();
    let read = keeper(&registry, "read", false);
    let mut sim = Simulator::builder(&registry).build();
    let runs = [(&push, &rows(2, 0)), (&read, &Bindings::new())];
    let Err(RunError::Fault(found)) = sim.run_sequence_unproved(&runs) else { panic!("no race") };
    let Reason::Race { region, first, second } = &found.reason else { panic!("{found}") };
    assert_eq!(region, "kept");
    assert!(first.starts_with("push") && second.starts_with("read (rank 1"), "{found}");
    // Run by run there is a pause between them: the host has seen the end of the first.
    let mut sim = Simulator::builder(&registry).build();
    sim.run_unproved(&push, &[rows(2, 0)]).unwrap();
    sim.run_unproved(&read, &[Bindings::new()]).unwrap();
}

#[test]
fn a_region_that_the_caller_updates_lives_on() {
    let registry = common::registry(1);
    let mut b = ProgramBuilder::new("double", &registry);
    let x = b
        .region(Region::new("x", RegionKind::Bound, Io::InOut, DType::F32, Shape::Uniform([1, 16])))
        .unwrap();
    let (op, label) = (b.op(Scale::NAME).unwrap(), b.label("double"));
    let args = ScaleArgs {
        src: x,
        dst: x,
        factor: 2.0,
        rows: 1,
        cols: 16,
        src_row: 0,
        src_col: 0,
        dst_row: 0,
        dst_col: 0,
    };
    b.task(Rank(0), lane(0), op, label, &args).unwrap();
    let program = proved(b.finish().unwrap(), &registry);
    let mut sim = Simulator::builder(&registry).build();
    let mut bindings = rows(1, 0);
    for round in 1..4 {
        bindings = sim.run(&program, &bindings).unwrap();
        let want: Vec<f32> = row(0, 0).to_f32().iter().map(|x| x * f32::powi(2.0, round)).collect();
        assert_eq!(bindings.get(Rank(0), "x").unwrap().to_f32(), want);
    }
}

#[test]
fn progress_is_told_up_to_the_last_task() {
    let case = common::Case::new(2, [256, 256, 64], 4);
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let tell = seen.clone();
    let listener = std::sync::Arc::new(move |done, all| tell.lock().unwrap().push((done, all)));
    let program = case.proved();
    let mut sim = Simulator::builder(&case.registry).mode(Mode::Timing).progress(listener).build();
    sim.run(&program, &Bindings::new()).unwrap();
    let (seen, all) = (seen.lock().unwrap().clone(), program.proof().tasks);
    assert_eq!(seen.last(), Some(&(all, all)));
    assert!(seen.is_sorted());
}
