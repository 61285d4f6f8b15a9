//! Programs one after the other as one program: the first layer of an MLP, gathered, multiplied, activated.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use mk_compute::{AllGatherGemm, Gather, Plan, Scale, ScaleArgs, handlers};
use mk_core::*;
use mk_nvlink::NvLink;
use mk_sim::Simulator;

fn registry(world: u64) -> Registry {
    let builder = Registry::builder().transport(NvLink::new()).handlers(handlers());
    builder.build(&World::local(world).unwrap()).unwrap()
}

const M: u64 = 300;
const N: u64 = 264;
const K: u64 = 192;

fn op() -> AllGatherGemm {
    AllGatherGemm::new(M, N, K, DType::Bf16).lanes(5)
}

/// `y = factor * x`, 32 rows a task, on lanes that the first program uses, too.
fn scale(registry: &Registry, factor: f32) -> Program {
    let world = registry.world().size();
    let mut b = ProgramBuilder::new("scale", registry);
    let cols: Vec<u64> = (0..world).map(|r| op().cols(world, r)).map(|c| c.end - c.start).collect();
    let shape = || Shape::PerRank(cols.iter().map(|&c| [M, c]).collect());
    let x = b.region(Region::input("x", DType::Bf16, shape())).unwrap();
    let y = b.region(Region::output("y", DType::Bf16, shape())).unwrap();
    let (op, label) = (b.op(Scale::NAME).unwrap(), b.label("scale"));
    for (r, &cols) in cols.iter().enumerate() {
        for (i, row) in (0..M).step_by(32).enumerate() {
            let rows = 32.min(M - row) as u32;
            let args = ScaleArgs {
                src: x,
                dst: y,
                factor,
                rows,
                cols: cols as u32,
                src_row: row,
                src_col: 0,
                dst_row: row,
                dst_col: 0,
            };
            b.task(Rank(r as u16), deal(i as u64, 3), op, label, &args).unwrap();
        }
    }
    b.finish().unwrap()
}

fn bindings(world: u32, a: &Tensor, b: &Tensor) -> Bindings {
    let mut bindings = Bindings::new();
    for r in 0..world {
        let (rows, cols, rank) = (op().rows(world, r), op().cols(world, r), Rank(r as u16));
        bindings.set(rank, "a", a.slice(rows.start, rows.end - rows.start, 0, K));
        bindings.set(rank, "b", b.slice(0, K, cols.start, cols.end - cols.start));
    }
    bindings
}

fn verified(program: Program, registry: &Registry) -> Verified {
    program.verify(registry, &Hardware::h200()).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn the_joint_program_gives_what_the_two_give_one_after_the_other() {
    for world in [1, 2, 3] {
        let registry = registry(world.into());
        for (plan, gather) in [
            (Plan::Fused, Gather::Push),
            (Plan::Fused, Gather::Pull),
            (Plan::Unfused, Gather::Push),
            (Plan::Unfused, Gather::Pull),
        ] {
            let first = op().plan_kind(plan).gather(gather).plan(&registry).unwrap();
            let second = scale(&registry, -0.5);
            let joint = first.then(&second, &[("c", "x")], &registry).unwrap();
            assert_eq!(joint.tasks.len(), first.tasks.len() + second.tasks.len());
            let (first, second) = (verified(first, &registry), verified(second, &registry));
            let joint = verified(joint, &registry);
            let mut apart = Simulator::builder(&registry).build();
            let mut together = Simulator::builder(&registry).schedule_seed(7).build();
            for epoch in 0..3 {
                let (a, b) = (
                    common::random(DType::Bf16, epoch, 0, M, K),
                    common::random(DType::Bf16, epoch, 1, K, N),
                );
                let c = apart.run(&first, &bindings(world, &a, &b)).unwrap();
                let mut x = Bindings::new();
                for r in (0..world).map(|r| Rank(r as u16)) {
                    x.set(r, "x", c.get(r, "c").unwrap().clone());
                }
                let want = apart.run(&second, &x).unwrap();
                let got = together.run(&joint, &bindings(world, &a, &b)).unwrap();
                for r in (0..world).map(|r| Rank(r as u16)) {
                    assert_eq!(
                        got.get(r, "y").unwrap(),
                        want.get(r, "y").unwrap(),
                        "{plan} {gather}, {r} of {world}"
                    );
                    assert!(got.get(r, "c").is_none(), "C stays inside");
                }
            }
        }
    }
}

#[test]
fn three_programs_become_one_and_unwired_regions_stay() {
    let registry = registry(2);
    let first = op().plan(&registry).unwrap();
    let two = first.then(&scale(&registry, 2.0), &[("c", "x")], &registry).unwrap();
    let three = two.then(&scale(&registry, 4.0).prefixed("z."), &[("y", "z.x")], &registry).unwrap();
    let names: Vec<&str> = three.regions.iter().map(|r| r.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c", "a_gather", "y", "z.y"]);
    verified(three, &registry);
    // Side by side, with nothing between them.
    let apart = first.then(&op().plan(&registry).unwrap().prefixed("second."), &[], &registry).unwrap();
    assert_eq!(apart.regions.len(), 8);
    verified(apart, &registry);
}

#[test]
fn a_reader_that_did_not_wait_would_be_found() {
    let registry = registry(2);
    let mut joint =
        op().plan(&registry).unwrap().then(&scale(&registry, 2.0), &[("c", "x")], &registry).unwrap();
    let scale = joint.handlers.iter().position(|h| h.name == Scale::NAME).unwrap();
    let task = joint.tasks.iter_mut().find(|t| t.op.index() == scale).unwrap();
    task.waits[0].total = 0;
    let Error::NotProved { finding, .. } = joint.verify(&registry, &Hardware::h200()).unwrap_err() else {
        panic!("another error")
    };
    assert_eq!(finding.verdict, Verdict::Refuted);
}

#[test]
fn what_cannot_be_joined_is_said() {
    let registry = registry(2);
    let (first, second) = (op().plan(&registry).unwrap(), scale(&registry, 2.0));
    let said = |e: Error| {
        let e = e.explain();
        format!("{} {} {} {}", e.message, e.given, e.allowed, e.hint)
    };
    let refused =
        |next: &Program, wires: &[(&str, &str)]| said(first.then(next, wires, &registry).unwrap_err());
    for (text, words) in [
        (refused(&second, &[("c", "q")]), ["'c' to 'q'", "inputs x"]),
        (refused(&second, &[("a", "x")]), ["'a' to 'x'", "outputs c"]),
        (refused(&second, &[("c", "x"), ("c", "x")]), ["wired twice", "'c' to 'x'"]),
        (refused(&first, &[]), ["'a'", "prefixed"]),
        (refused(&first.clone().prefixed("2."), &[("c", "2.a")]), ["not alike", "one shape on every rank"]),
    ] {
        assert!(words.iter().all(|w| text.contains(w)), "'{text}' does not say {words:?}");
    }
    let elsewhere = Registry::builder().build(&World::local(3).unwrap()).unwrap();
    assert!(first.then(&second, &[], &elsewhere).is_err());
}

/// `a = factor * raw`, the rows of each rank, for an AllGather+GEMM that comes second.
fn before(registry: &Registry, factor: f32) -> Program {
    let world = registry.world().size();
    let mut b = ProgramBuilder::new("before", registry);
    let rows: Vec<u64> = (0..world).map(|r| op().rows(world, r)).map(|r| r.end - r.start).collect();
    let shape = || Shape::PerRank(rows.iter().map(|&r| [r, K]).collect());
    let raw = b.region(Region::input("raw", DType::Bf16, shape())).unwrap();
    let ready = b.region(Region::output("ready", DType::Bf16, shape())).unwrap();
    let (op, label) = (b.op(Scale::NAME).unwrap(), b.label("before"));
    for (r, &rows) in rows.iter().enumerate() {
        let (rows, cols, at) = (rows as u32, K as u32, [0; 4]);
        let [src_row, src_col, dst_row, dst_col] = at;
        let args = ScaleArgs { src: raw, dst: ready, factor, rows, cols, src_row, src_col, dst_row, dst_col };
        b.task(Rank(r as u16), deal(0, 1), op, label, &args).unwrap();
    }
    b.finish().unwrap()
}

#[test]
fn an_operator_that_comes_second_waits_for_its_operand_on_every_rank() {
    let nodes = World::of(Topology::uniform(2, 4, 2).unwrap());
    for world in [World::local(1).unwrap(), World::local(3).unwrap(), nodes] {
        let registry = Registry::builder()
            .transport(NvLink::new())
            .transport(mk_rdma::Rdma::ordered())
            .handlers(handlers())
            .build(&world)
            .unwrap();
        let ranks = world.size();
        for (plan, gather) in
            [(Plan::Fused, Gather::Push), (Plan::Unfused, Gather::Pull), (Plan::Fused, Gather::Pull)]
        {
            let second = op().plan_kind(plan).gather(gather).plan(&registry).unwrap();
            let joint = before(&registry, 2.0).then(&second, &[("ready", "a")], &registry).unwrap();
            let joint = verified(joint, &registry);
            let mut sim = Simulator::builder(&registry).schedule_seed(3).build();
            for epoch in 0..2 {
                let (a, b) = (
                    common::random(DType::Bf16, epoch, 0, M, K),
                    common::random(DType::Bf16, epoch, 1, K, N),
                );
                let mut given = Bindings::new();
                for (rank, name, tensor) in bindings(ranks, &a, &b).iter() {
                    given.set(rank, if name == "a" { "raw" } else { name }, tensor.clone());
                }
                let out = sim.run(&joint, &given).unwrap();
                // Twice a bf16 number is one, too.
                let twice = Tensor::from_f32(
                    DType::Bf16,
                    M,
                    K,
                    &a.to_f32().iter().map(|x| 2.0 * x).collect::<Vec<_>>(),
                );
                for r in 0..ranks {
                    let cols = op().cols(ranks, r);
                    let b = b.slice(0, K, cols.start, cols.end - cols.start);
                    common::assert_product(out.get(Rank(r as u16), "c").unwrap(), &twice, &b);
                }
            }
        }
    }
}

#[test]
fn a_task_without_a_wait_or_post_left_is_named_by_its_rank() {
    let registry = registry(1);
    let mut b = ProgramBuilder::new("full", &registry);
    let x = b.region(Region::input("x", DType::Bf16, Shape::Uniform([8, 8]))).unwrap();
    let y = b.region(Region::output("y", DType::Bf16, Shape::Uniform([8, 8]))).unwrap();
    let word = b.signal("word", SignalKind::Add, 2).unwrap();
    let (scale_op, label) = (b.op(Scale::NAME).unwrap(), b.label("full"));
    let args = ScaleArgs {
        src: x,
        dst: y,
        factor: 1.0,
        rows: 8,
        cols: 8,
        src_row: 0,
        src_col: 0,
        dst_row: 0,
        dst_col: 0,
    };
    let task = b.task(Rank(0), deal(0, 1), scale_op, label, &args).unwrap();
    for i in 0..2 {
        b.wait(task, WaitFor::all(word, i).lag(1)).unwrap();
        b.post(task, PostTo::loaded(Rank(0), word, i)).unwrap();
    }
    let full = b.finish().unwrap();
    let next = full.clone().prefixed("2.");
    let said =
        |first: &Program, next: &Program, wire| first.then(next, &[wire], &registry).unwrap_err().to_string();
    assert!(
        said(&full, &next, ("y", "2.x"))
            .contains("rank 0 that writes what the next program reads has no post left")
    );
    let mut free = full.clone();
    free.tasks[0].posts = Default::default();
    free.tasks[0].waits = Default::default();
    assert!(said(&free, &next, ("y", "2.x")).contains("no wait left"));
}
