//! Tasks per second of the planner and of the verifier, on the AllGather+GEMM plan, with every check on.

use divan::counter::ItemsCount;
use mk_compute::AllGatherGemm;
use mk_core::{DType, Hardware, Program, Registry, World};

fn main() {
    divan::main();
}

/// Columns of B: with M = 65,536 on 8 ranks, 16 k / 128 k / 1 M tiles.
const COLUMNS: [u64; 3] = [8_192, 65_536, 524_288];

fn registry() -> Registry {
    let world = World::local(8).expect("8 ranks are a world");
    Registry::builder()
        .transport(mk_nvlink::NvLink::new())
        .handlers(mk_compute::handlers())
        .build(&world)
        .expect("the shipped handlers have different names")
}

fn plan(registry: &Registry, n: u64) -> Program {
    AllGatherGemm::new(65_536, n, 8_192, DType::Bf16).plan(registry).expect("the sizes are legal")
}

#[divan::bench(args = COLUMNS, sample_count = 3)]
fn plans(bencher: divan::Bencher<'_, '_>, n: u64) {
    let registry = registry();
    let tasks = plan(&registry, n).tasks.len();
    bencher.counter(ItemsCount::new(tasks)).bench(|| plan(&registry, n));
}

#[divan::bench(args = COLUMNS, sample_count = 5)]
fn verifies(bencher: divan::Bencher<'_, '_>, n: u64) {
    let registry = registry();
    let program = plan(&registry, n);
    let hardware = Hardware::h200();
    bencher
        .counter(ItemsCount::new(program.tasks.len()))
        .with_inputs(|| program.clone())
        .bench_values(|p| p.verify(&registry, &hardware).expect("shipped plans are proved"));
}
