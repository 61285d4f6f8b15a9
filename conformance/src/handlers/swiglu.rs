//! `swiglu`.

use super::compute::{Boards, Compute, Job};
use super::elementwise::{self, FLOATS, at, sides};
use crate::config::Config;
use crate::context::Context;
use crate::expect::Results;
use crate::value::{draw, values};
use mk_compute::SwigluArgs;
use mk_core::{DType, RegionId, Tensor};

/// How far the result may be off in f32 before it is rounded, in units of 2^-24, half an ulp at most. The relative errors of
/// the steps add up; to the sum, that of the exponential goes at most as it is.
///
/// | step | error | allowed by |
/// |---|---|---|
/// | exponential | 2 ulp: 4 units | CUDA C++ Programming Guide, "Mathematical Functions", `expf` |
/// | 1 + exponential | rounded: 1 unit | |
/// | reciprocal | 1 ulp: 2 units | PTX ISA, `rcp.approx.f32`; a division is rounded: 1 unit |
/// | two products | rounded: 2 units | |
///
/// A last unit is for what errors make of one another.
const UNITS: u32 = 4 + 1 + 2 + 2 + 1;
const RELATIVE: f64 = UNITS as f64 / (1 << 24) as f64;

/// `gate * sigmoid(gate) * up`, in f32, rounded once.
pub(crate) struct Swiglu;

impl Compute for Swiglu {
    type Params = ();
    type Args = SwigluArgs;
    const HANDLER: &'static str = "swiglu";

    fn types(c: &mut Context) -> (Vec<DType>, DType) {
        let dtype = c.random.pick(&FLOATS);
        (vec![dtype; 2], dtype)
    }

    fn job(c: &mut Context, types: &(Vec<DType>, DType), boards: &mut Boards) -> Job<()> {
        elementwise::job(c, types, boards, ())
    }

    fn args(inputs: &[RegionId], output: RegionId, job: &Job<()>) -> SwigluArgs {
        let ((src_row, src_col), (dst_row, dst_col)) = (at(job.inputs[0]), at(job.output));
        let (rows, cols) = sides(job.output);
        let (gate, up, dst) = (inputs[0], inputs[1], output);
        SwigluArgs { gate, up, dst, rows, cols, src_row, src_col, dst_row, dst_col }
    }

    fn draw(c: &mut Context, dtype: DType, size: [u64; 2]) -> Tensor {
        // A gate of -40 leaves 4e-18 of itself, far above where f32 ends.
        draw(c.config.numerics, dtype, size, 40, &mut c.random)
    }

    fn want(config: Config, (): (), inputs: &[Tensor], output: DType) -> Results {
        let pairs = values(&inputs[0]).into_iter().zip(values(&inputs[1]));
        let gated = pairs.map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up);
        gated.map(|x| elementwise::want(config, output, x, RELATIVE)).collect()
    }
}
