//! How fast AllGather + GEMM is planned and proved: tasks per second.

use divan::{Bencher, counter::ItemsCount};
use mk_compute::{AllGatherGemm, Plan, handlers};
use mk_core::{DType, Hardware, Registry, World};
use mk_nvlink::NvLink;

fn main() {
    divan::main();
}

/// A fourth of a million, and a million tasks on 8 ranks.
const ROWS: [u64; 2] = [1 << 18, 1 << 20];

fn case(m: u64, plan: Plan) -> (Registry, AllGatherGemm) {
    let world = World::local(8).unwrap();
    let registry = Registry::builder().transport(NvLink::new()).handlers(handlers()).build(&world).unwrap();
    (registry, AllGatherGemm::new(m, 28_672, 4096, DType::Bf16).plan_kind(plan))
}

fn tasks(registry: &Registry, op: &AllGatherGemm) -> ItemsCount {
    ItemsCount::new(op.plan(registry).unwrap().tasks.len())
}

#[divan::bench(args = ROWS, sample_count = 5)]
fn fused(bencher: Bencher, m: u64) {
    let (registry, op) = case(m, Plan::Fused);
    bencher.counter(tasks(&registry, &op)).bench(|| op.plan(&registry).unwrap());
}

#[divan::bench(args = ROWS, sample_count = 5)]
fn unfused(bencher: Bencher, m: u64) {
    let (registry, op) = case(m, Plan::Unfused);
    bencher.counter(tasks(&registry, &op)).bench(|| op.plan(&registry).unwrap());
}

#[divan::bench(args = ROWS, sample_count = 5)]
fn fused_and_proved(bencher: Bencher, m: u64) {
    let (registry, op) = case(m, Plan::Fused);
    let hardware = Hardware::h200();
    bencher
        .counter(tasks(&registry, &op))
        .bench(|| op.plan(&registry).unwrap().verify(&registry, &hardware).unwrap());
}
