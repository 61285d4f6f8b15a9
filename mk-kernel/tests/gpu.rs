//! Programs run on a GPU as they do in the simulator, to the bit where sums are exact.
//!
//! Without a GPU these tests say that they are skipped.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use mk_compute::{AllGatherGemm, Gather, Plan};
use mk_core::*;
use mk_kernel::driver::{Device, Driver};
use mk_kernel::{Gpu, Limits};

fn device() -> Option<Device> {
    let found = Driver::find().and_then(|d| d.device(0));
    found.map_err(|e| println!("skipped: {e}")).ok()
}

fn registry(ranks: u64) -> Registry {
    let builder = Registry::builder().transport(mk_nvlink::NvLink::new()).handlers(mk_compute::handlers());
    builder.build(&World::local(ranks).unwrap()).unwrap()
}

/// Small integers: every sum is exact.
fn integers(dtype: DType, rows: u64, cols: u64, seed: u64) -> Tensor {
    let value = |i: u64| ((i.wrapping_mul(2_654_435_761).wrapping_add(seed * 40_503) >> 7) % 7) as f32 - 3.0;
    Tensor::from_f32(dtype, rows, cols, &(0..rows * cols).map(value).collect::<Vec<_>>())
}

fn shards(op: &AllGatherGemm, ranks: u32, a: &Tensor, b: &Tensor) -> Bindings {
    let mut bindings = Bindings::new();
    for r in 0..ranks {
        let (rows, cols, rank) = (op.rows(ranks, r), op.cols(ranks, r), Rank(r as u16));
        bindings.set(rank, AllGatherGemm::A, a.slice(rows.start, rows.end - rows.start, 0, a.cols));
        bindings.set(rank, AllGatherGemm::B, b.slice(0, b.rows, cols.start, cols.end - cols.start));
    }
    bindings
}

/// Each plan, on worlds of one to four ranks of one GPU, for three epochs with new data each.
#[test]
fn all_gather_gemm_has_the_simulators_bits() {
    let Some(device) = device() else { return };
    for ranks in 1..=4u32 {
        let registry = registry(ranks.into());
        let mut gpu = Gpu::open(&registry, &device, Limits::default()).unwrap();
        for (m, n, k) in [(257, 264, 192), (129, 8, 64), (1, 520, 320), (640, 1032, 1096), (0, 64, 64)] {
            for dtype in [DType::Bf16, DType::F16] {
                for (plan, gather) in [
                    (Plan::Fused, Gather::Push),
                    (Plan::Fused, Gather::Pull),
                    (Plan::Unfused, Gather::Push),
                    (Plan::Unfused, Gather::Pull),
                ] {
                    let op = AllGatherGemm::new(m, n, k, dtype).plan_kind(plan).gather(gather).lanes(16);
                    let program = op.plan(&registry).unwrap().verify(&registry, &Hardware::h200()).unwrap();
                    let mut simulator = mk_sim::Simulator::builder(&registry).build();
                    for epoch in 0..3 {
                        let (a, b) = (integers(dtype, m, k, epoch), integers(dtype, k, n, epoch + 9));
                        let bindings = shards(&op, ranks, &a, &b);
                        let want = simulator.run(&program, &bindings).unwrap();
                        let got = gpu.run(&program, &bindings).unwrap();
                        assert!(got == want, "{op} ({plan}, {gather}) on {ranks} ranks, epoch {epoch}");
                    }
                }
            }
        }
    }
}

/// A wait for a post that is never made, since its task was taken out after the proof: it ends within its bound in a fault that
/// names task and signal, and the session goes on with fresh memory.
#[test]
fn a_wait_that_is_never_met_is_a_typed_fault_and_the_session_goes_on() {
    let Some(device) = device() else { return };
    let registry = registry(2);
    let limits = Limits { start_us: 200_000, run_us: 100_000, ..Limits::default() };
    let mut gpu = Gpu::open(&registry, &device, limits).unwrap();
    let op = AllGatherGemm::new(256, 512, 256, DType::Bf16).plan_kind(Plan::Fused).lanes(4);
    let program = op.plan(&registry).unwrap().verify(&registry, &Hardware::h200()).unwrap();
    let (a, b) = (integers(DType::Bf16, 256, 256, 1), integers(DType::Bf16, 256, 512, 2));
    let bindings = shards(&op, 2, &a, &b);
    let want = gpu.run(&program, &bindings).unwrap();
    gpu.lose_posts_to(&program, Rank(1));
    let start = std::time::Instant::now();
    let RunError::Fault(fault) = gpu.run(&program, &bindings).unwrap_err() else { panic!("another error") };
    assert!(start.elapsed().as_millis() < 1500, "it took {:?}", start.elapsed());
    assert!(matches!(fault.reason, Reason::Timeout(_)), "{fault}");
    assert!(
        fault.rank == Rank(1) && fault.task.contains("tile from rank 0") && fault.signal.contains("arrival"),
        "{fault}"
    );
    assert_eq!(gpu.generation(), 2);
    assert!(gpu.run(&program, &bindings).unwrap() == want, "a rebuilt session gives right answers");
}
