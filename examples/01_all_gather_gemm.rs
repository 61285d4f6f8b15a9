//! Plan, prove and run a fused AllGather+GEMM on four simulated GPUs.
//!
//! Each rank holds some rows of A and some columns of B, and wants its columns of C = A B. A tile is multiplied as
//! soon as the rows that it needs have arrived from the rank that holds them.

use mk_compute::{AllGatherGemm, Plan};
use mk_core::{Bindings, DType, Hardware, Registry, Session, Tensor, World};
use mk_sim::Simulator;
use std::error::Error;

const RANKS: u32 = 4;
/// Sizes that divide by nothing in particular: shards are uneven, tiles are cut.
const M: u64 = 520;
const N: u64 = 576;
const K: u64 = 320;

fn main() -> Result<(), Box<dyn Error>> {
    // 1. The world, and what it can do: here NVLink between four GPUs, and the compute handlers.
    let world = World::local(RANKS.into())?;
    let registry = Registry::builder()
        .transport(mk_nvlink::NvLink::new())
        .handlers(mk_compute::handlers())
        .build(&world)?;

    // 2. The caller's tensors, whole and cut into shards.
    let random = |tensor, rows, cols| {
        Tensor::from_f32(DType::Bf16, rows, cols, &reference::uniform_block(7, tensor, [0, 0], [rows, cols]))
    };
    let (a, b) = (random(0, M, K), random(1, K, N));

    for plan in [Plan::Fused, Plan::Unfused] {
        // 3. The plan: a program of tasks, the same data on every rank.
        let op = AllGatherGemm::new(M, N, K, DType::Bf16).plan_kind(plan).lanes(8);
        let program = op.plan(&registry)?;

        // 4. The proof. Only a proved program can be loaded.
        let program = program.verify(&registry, &Hardware::h200())?;
        let proof = program.proof();
        println!(
            "{op}: {} tasks proved free of deadlocks and races ({} pairs ordered)",
            proof.tasks, proof.pairs
        );

        // 5. The run.
        let mut bindings = Bindings::new();
        for rank in world.topology.ranks() {
            let (rows, cols) = (op.rows(RANKS, rank.0.into()), op.cols(RANKS, rank.0.into()));
            bindings.set(rank, AllGatherGemm::A, a.slice(rows.start, rows.end - rows.start, 0, K));
            bindings.set(rank, AllGatherGemm::B, b.slice(0, K, cols.start, cols.end - cols.start));
        }
        let mut gpus = Simulator::builder(&registry).build();
        let out = gpus.run(&program, &bindings)?;
        println!("  simulated time: {:.1} us", gpus.report().time_ns as f64 / 1000.0);

        // 6. The answer, compared with f64 arithmetic that knows nothing of this library.
        let mut c = Tensor::zeros(DType::Bf16, M, N);
        for rank in world.topology.ranks() {
            let part = out.get(rank, AllGatherGemm::C).ok_or("every rank has its columns of C")?;
            c.paste(0, op.cols(RANKS, rank.0.into()).start, part);
        }
        let worst = compare(&a, &b, &c)?;
        println!("  right: the worst error is {:.0} % of what rounding allows", 100.0 * worst);
    }
    Ok(())
}

/// The largest error over its bound.
fn compare(a: &Tensor, b: &Tensor, c: &Tensor) -> Result<f64, Box<dyn Error>> {
    let (m, k, n) = (M as usize, K as usize, N as usize);
    let (a, b, c) = (a.to_f32(), b.to_f32(), c.to_f32());
    let want = reference::matmul(&a, &b, m, k, n);
    let abs = reference::abs_matmul(&a, &b, m, k, n);
    let format = reference::Format::Bf16;
    let bounds = reference::matmul_bounds(format, &want, &abs, k);
    let worst = reference::check(format, &c, &want, &bounds).map_err(|e| format!("wrong: {e}"))?;
    Ok(worst.map_or(0.0, |e| e.error(format)))
}
