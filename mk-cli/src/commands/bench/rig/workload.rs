//! What is run: a proved program, its tensors, and what must come out.

use crate::error::Failure;
use mk_core::{Bindings, DType, Hardware, Io, Program, Rank, Registry, Session as _, Tensor, Verified};
use mk_sim::Simulator;

/// See the module.
pub(in crate::commands::bench) struct Workload {
    pub(in crate::commands::bench) program: Verified,
    pub(in crate::commands::bench) tensors: Bindings,
    pub(in crate::commands::bench) want: Bindings,
}

impl Workload {
    /// A program with these tensors, from which `want` must come.
    pub(in crate::commands::bench) fn new(
        program: Program,
        registry: &Registry,
        hardware: &Hardware,
        tensors: Bindings,
        want: Bindings,
    ) -> Result<Workload, Failure> {
        Ok(Workload { program: program.verify(registry, hardware)?, tensors, want })
    }

    /// A program that touches no memory.
    pub(in crate::commands::bench) fn bare(
        program: Program,
        registry: &Registry,
        hardware: &Hardware,
    ) -> Result<Workload, Failure> {
        Workload::new(program, registry, hardware, Bindings::new(), Bindings::new())
    }

    /// A program with random numbers, from which the same must come as in the simulator: all of its sums must be exact.
    pub(in crate::commands::bench) fn simulated(
        program: Program,
        registry: &Registry,
        hardware: &Hardware,
    ) -> Result<Workload, Failure> {
        let tensors = numbers(&program);
        let mut workload = Workload::new(program, registry, hardware, tensors, Bindings::new())?;
        let mut simulator = Simulator::builder(registry).build();
        workload.want = simulator.run(&workload.program, &workload.tensors)?;
        Ok(workload)
    }
}

/// Random numbers, repeated: a prime, so that no two rows of a matrix are alike.
const NUMBERS: u64 = 1_048_573;

/// A large matrix of random numbers from -1 to 1 that `of` changes.
pub(in crate::commands::bench) fn repeated(
    seed: u64,
    dtype: DType,
    [rows, cols]: [u64; 2],
    of: fn(f32) -> f32,
) -> Tensor {
    let numbers: Vec<f32> =
        reference::uniform_block(seed, 0, [0, 0], [1, NUMBERS]).into_iter().map(of).collect();
    let some = Tensor::from_f32(dtype, 1, NUMBERS, &numbers).bytes;
    let bytes = some.iter().copied().cycle().take((rows * cols * dtype.bytes()) as usize).collect();
    Tensor { dtype, rows, cols, bytes }
}

/// Whole numbers from -2 to 1: sums of a million products are exact in f32.
pub(in crate::commands::bench) fn whole_number(x: f32) -> f32 {
    (x * 2.0).floor()
}

/// Random numbers for all inputs of a program.
pub(in crate::commands::bench) fn numbers(program: &Program) -> Bindings {
    let mut tensors = Bindings::new();
    for rank in (0..program.ranks).map(|r| Rank(r as u16)) {
        for (i, region) in program.regions.iter().enumerate().filter(|(_, r)| r.io == Io::Input) {
            let seed = u64::from(rank.0) << 32 | i as u64;
            tensors.set(rank, &region.name, integers(region.dtype, region.extent(rank), seed));
        }
    }
    tensors
}

/// Whole numbers from -4 to 3, so small that sums of a few hundred products are exact.
fn integers(dtype: DType, [rows, cols]: [u64; 2], seed: u64) -> Tensor {
    let uniform = reference::uniform_block(seed, 0, [0, 0], [rows, cols]);
    let values: Vec<f32> = uniform.iter().map(|x| (x * 4.0).floor()).collect();
    Tensor::from_f32(dtype, rows, cols, &values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_whole_small_and_random() {
        let [one, other] = [1, 2].map(|seed| integers(DType::Bf16, [64, 64], seed).to_f32());
        assert!(one.iter().all(|x| x.fract() == 0.0 && (-4.0..4.0).contains(x)));
        assert!((-4..4).all(|n| one.contains(&(n as f32))));
        assert_ne!(one, other);
    }
}
