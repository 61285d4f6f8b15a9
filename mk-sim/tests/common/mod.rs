//! What the tests share: AllGather+GEMM on NVLink, and a reference in f64.
#![allow(dead_code, clippy::unwrap_used, reason = "each test uses some of it, and may panic")]

use mk_compute::AllGatherGemm;
use mk_core::*;

/// Worlds that every test of one world size runs on.
pub(crate) const WORLDS: [u64; 6] = [1, 2, 3, 5, 6, 8];

/// NVLink and the compute handlers, for `ranks` ranks of one node.
pub(crate) fn registry(ranks: u64) -> Registry {
    Registry::builder()
        .transport(mk_nvlink::NvLink::new())
        .handlers(mk_compute::handlers())
        .build(&World::local(ranks).unwrap())
        .unwrap()
}

/// A small integer, so that every partial sum is exact and results have one right value.
fn value(seed: u64, row: u64, col: u64) -> f32 {
    let mut z = seed.wrapping_mul(0x9e37_79b9).wrapping_add(row.wrapping_mul(0x85eb_ca6b)).wrapping_add(col);
    z = (z ^ (z >> 15)).wrapping_mul(0x2c1b_3c6d_0001);
    ((z >> 20) % 7) as f32 - 3.0
}

/// A matrix of small integers.
pub(crate) fn matrix(seed: u64, rows: u64, cols: u64) -> Tensor {
    let values: Vec<f32> = (0..rows * cols).map(|i| value(seed, i / cols, i % cols)).collect();
    Tensor::from_f32(DType::Bf16, rows, cols, &values)
}

/// An AllGather+GEMM with its tensors.
pub(crate) struct Case {
    pub(crate) op: AllGatherGemm,
    pub(crate) registry: Registry,
    pub(crate) ranks: u64,
    pub(crate) size: [u64; 3],
}

impl Case {
    pub(crate) fn new(ranks: u64, size: [u64; 3], lanes: u16) -> Case {
        let [m, n, k] = size;
        let op = AllGatherGemm::new(m, n, k, DType::Bf16).lanes(lanes);
        Case { op, registry: registry(ranks), ranks, size }
    }

    pub(crate) fn proved(&self) -> Verified {
        self.op.plan(&self.registry).unwrap().verify(&self.registry, &Hardware::h200()).unwrap()
    }

    pub(crate) fn bindings(&self, seed: u64) -> Bindings {
        let [m, n, k] = self.size;
        let (a, b) = (matrix(seed, m, k), matrix(seed + 1, k, n));
        let mut bindings = Bindings::new();
        for r in 0..self.ranks as u32 {
            let (rows, cols) = (self.op.rows(self.ranks as u32, r), self.op.cols(self.ranks as u32, r));
            bindings.set(Rank(r as u16), "a", a.slice(rows.start, rows.end - rows.start, 0, k));
            bindings.set(Rank(r as u16), "b", b.slice(0, k, cols.start, cols.end - cols.start));
        }
        bindings
    }

    /// Puts the ranks' parts of C together.
    pub(crate) fn c(&self, out: &Bindings) -> Tensor {
        let [m, n, _] = self.size;
        let mut c = Tensor::zeros(DType::Bf16, m, n);
        for r in 0..self.ranks as u32 {
            c.paste(0, self.op.cols(self.ranks as u32, r).start, out.get(Rank(r as u16), "c").unwrap());
        }
        c
    }

    /// C in f64, rounded once.
    pub(crate) fn reference(&self, seed: u64) -> Tensor {
        let [m, n, k] = self.size.map(|x| x as usize);
        let (a, b) =
            (matrix(seed, m as u64, k as u64).to_f32(), matrix(seed + 1, k as u64, n as u64).to_f32());
        let mut c = vec![0f64; m * n];
        for i in 0..m {
            for l in 0..k {
                let x = f64::from(a[i * k + l]);
                for j in 0..n {
                    c[i * n + j] += x * f64::from(b[l * n + j]);
                }
            }
        }
        let c: Vec<f32> = c.into_iter().map(|x| x as f32).collect();
        Tensor::from_f32(DType::Bf16, m as u64, n as u64, &c)
    }
}
