//! How many tasks a second timing mode runs on one core, with every check on.

use divan::Bencher;
use divan::counter::ItemsCount;
use mk_compute::{AllGatherGemm, Plan};
use mk_core::{Bindings, DType, Hardware, Registry, Session, Verified, World};
use mk_sim::{Checks, Mode, Simulator};

fn main() {
    divan::main();
}

/// AllGather+GEMM on 8 ranks of 132 lanes; M is chosen so that there are about so many tasks.
fn program(tasks: u64, plan: Plan) -> (Registry, Verified) {
    let registry = Registry::builder()
        .transport(mk_nvlink::NvLink::new())
        .handlers(mk_compute::handlers())
        .build(&World::local(8).expect("a world of 8"))
        .expect("a registry");
    // With N = 65536 and 8 ranks, a row block of 128 rows is 256 tiles and 7 pushes.
    let m = tasks / 263 * 128;
    let op = AllGatherGemm::new(m, 65536, 4096, DType::Bf16).plan_kind(plan);
    let program = op.plan(&registry).expect("a plan").verify(&registry, &Hardware::h200()).expect("a proof");
    (registry, program)
}

/// Load and run.
fn run(bencher: Bencher<'_, '_>, tasks: u64, plan: Plan, checks: Checks, epochs: usize) {
    let (registry, program) = program(tasks, plan);
    let count = program.program().tasks.len() * epochs;
    let bindings = vec![Bindings::new(); epochs];
    bencher.counter(ItemsCount::new(count)).bench_local(|| {
        let mut sim = Simulator::builder(&registry).mode(Mode::Timing).checks(checks).build();
        sim.load(&program).expect("it loads");
        sim.run_epochs(&program, &bindings).expect("it runs");
        sim.report().events
    });
}

#[divan::bench(args = [100_000, 300_000, 1_000_000], sample_count = 5, sample_size = 1)]
fn fused_all_checks(bencher: Bencher<'_, '_>, tasks: u64) {
    run(bencher, tasks, Plan::Fused, Checks::all(), 1);
}

#[divan::bench(args = [100_000, 300_000], sample_count = 5, sample_size = 1)]
fn fused_no_checks(bencher: Bencher<'_, '_>, tasks: u64) {
    run(bencher, tasks, Plan::Fused, Checks::none(), 1);
}

#[divan::bench(args = [100_000, 300_000], sample_count = 5, sample_size = 1)]
fn unfused_all_checks(bencher: Bencher<'_, '_>, tasks: u64) {
    run(bencher, tasks, Plan::Unfused, Checks::all(), 1);
}

#[divan::bench(args = [100_000], sample_count = 5, sample_size = 1)]
fn fused_all_checks_four_epochs(bencher: Bencher<'_, '_>, tasks: u64) {
    run(bencher, tasks, Plan::Fused, Checks::all(), 4);
}
