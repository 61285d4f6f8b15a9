//! What tests on a GPU run: a fused AllGather+GEMM of small integers, so that every sum is exact.
#![allow(dead_code, reason = "each test file uses some of it")]

use mk_compute::{AllGatherGemm, Gather, Plan};
use mk_core::*;
use mk_kernel::driver::{Device, Driver};

/// The first GPU; without one, tests say that they are skipped.
pub(crate) fn device() -> Option<Device> {
    let found = Driver::find().and_then(|d| d.device(0));
    found.map_err(|e| println!("skipped: {e}")).ok()
}

pub(crate) fn registry(ranks: u64) -> Registry {
    let builder = Registry::builder().transport(mk_nvlink::NvLink::new()).handlers(mk_compute::handlers());
    builder.build(&World::local(ranks).unwrap()).unwrap()
}

/// Small integers: every sum is exact.
pub(crate) fn integers(dtype: DType, rows: u64, cols: u64, seed: u64) -> Tensor {
    let value = |i: u64| ((i.wrapping_mul(2_654_435_761).wrapping_add(seed * 40_503) >> 7) % 7) as f32 - 3.0;
    Tensor::from_f32(dtype, rows, cols, &(0..rows * cols).map(value).collect::<Vec<_>>())
}

/// Rows, columns and depth.
pub(crate) type Size = (u64, u64, u64);

/// A product on some ranks, its tensors, and what must come out.
pub(crate) struct Product {
    pub(crate) registry: Registry,
    pub(crate) program: Verified,
    pub(crate) op: AllGatherGemm,
    pub(crate) size: Size,
    dtype: DType,
}

impl Product {
    /// Fused, of bf16, with pushes.
    pub(crate) fn new(ranks: u32, size: Size, lanes: u16) -> Product {
        Product::of(ranks, size, DType::Bf16, |op| op.lanes(lanes))
    }

    /// Moved slice by slice: units are narrower than rows, so every thread of a comm warp issues copies.
    pub(crate) fn sliced(ranks: u32, size: Size) -> Product {
        Product::of(ranks, size, DType::Bf16, |op| op.lanes(4).slices(4))
    }

    /// Fused, with pushes, and what else is set.
    pub(crate) fn of(
        ranks: u32,
        size: Size,
        dtype: DType,
        set: impl FnOnce(AllGatherGemm) -> AllGatherGemm,
    ) -> Product {
        let ((m, n, k), registry) = (size, registry(ranks.into()));
        let op = AllGatherGemm::new(m, n, k, dtype).plan_kind(Plan::Fused).gather(Gather::Push);
        Product::planned(&registry, set(op), size, dtype)
    }

    /// As the operator says.
    pub(crate) fn planned(registry: &Registry, op: AllGatherGemm, size: Size, dtype: DType) -> Product {
        let program = op.plan(registry).unwrap().verify(registry, &Hardware::h200()).unwrap();
        Product { registry: registry.clone(), program, op, size, dtype }
    }

    /// What all ranks are given.
    pub(crate) fn tensors(&self, seed: u64) -> Bindings {
        self.tensors_of(0..self.registry.world().size(), seed)
    }

    /// What these ranks are given.
    pub(crate) fn tensors_of(&self, ranks: impl IntoIterator<Item = u32>, seed: u64) -> Bindings {
        let ((m, n, k), world) = (self.size, self.registry.world().size());
        let (a, b) = (integers(self.dtype, m, k, seed), integers(self.dtype, k, n, seed + 7));
        let mut bindings = Bindings::new();
        for r in ranks {
            let (rows, cols, rank) = (self.op.rows(world, r), self.op.cols(world, r), Rank(r as u16));
            bindings.set(rank, AllGatherGemm::A, a.slice(rows.start, rows.end - rows.start, 0, k));
            bindings.set(rank, AllGatherGemm::B, b.slice(0, k, cols.start, cols.end - cols.start));
        }
        bindings
    }

    /// What all ranks must get.
    pub(crate) fn want(&self, seed: u64) -> Bindings {
        let mut simulator = mk_sim::Simulator::builder(&self.registry).build();
        simulator.run(&self.program, &self.tensors(seed)).unwrap()
    }
}
