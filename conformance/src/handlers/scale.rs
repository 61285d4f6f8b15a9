//! `scale`.

use super::compute::{Boards, Compute, Job};
use super::elementwise::{self, FLOATS, at, sides};
use crate::config::{Config, Numerics};
use crate::context::Context;
use crate::expect::Results;
use crate::value::{draw, values};
use mk_compute::ScaleArgs;
use mk_core::{DType, RegionId, Tensor};

/// `x * factor`, in f32, rounded once.
pub(crate) struct Scale;

impl Compute for Scale {
    type Params = f32;
    type Args = ScaleArgs;
    const HANDLER: &'static str = "scale";

    fn types(c: &mut Context) -> (Vec<DType>, DType) {
        let dtype = c.random.pick(&FLOATS);
        (vec![dtype], dtype)
    }

    fn job(c: &mut Context, types: &(Vec<DType>, DType), boards: &mut Boards) -> Job<f32> {
        let factor = match c.config.numerics {
            Numerics::Exact => c.random.pick(&[-3.0, 0.5, 1.0, 7.0]),
            Numerics::Rounded => c.random.uniform() as f32 * 4.0,
        };
        elementwise::job(c, types, boards, factor)
    }

    fn args(inputs: &[RegionId], output: RegionId, job: &Job<f32>) -> ScaleArgs {
        let ((src_row, src_col), (dst_row, dst_col)) = (at(job.inputs[0]), at(job.output));
        let (rows, cols) = sides(job.output);
        let (src, dst, factor) = (inputs[0], output, job.params);
        ScaleArgs { src, dst, factor, rows, cols, src_row, src_col, dst_row, dst_col }
    }

    fn draw(c: &mut Context, dtype: DType, size: [u64; 2]) -> Tensor {
        draw(c.config.numerics, dtype, size, 120, &mut c.random)
    }

    fn want(config: Config, factor: f32, inputs: &[Tensor], output: DType) -> Results {
        let products = values(&inputs[0]).into_iter().map(|x| x * f64::from(factor));
        products.map(|x| elementwise::want(config, output, x, 0.0)).collect()
    }
}
