//! `add`.

use super::compute::{Boards, Compute, Job};
use super::elementwise::{self, at, sides};
use crate::config::Config;
use crate::context::Context;
use crate::expect::Results;
use crate::value::{draw, values};
use mk_compute::AddArgs;
use mk_core::{DType, RegionId, Tensor};

/// `x + y`: of real numbers in f32, rounded once; of integers wrapping.
pub(crate) struct Add;

impl Compute for Add {
    type Params = ();
    type Args = AddArgs;
    const HANDLER: &'static str = "add";

    fn types(c: &mut Context) -> (Vec<DType>, DType) {
        let dtype = c.random.pick(&DType::ALL);
        c.note("integers", dtype == DType::I32);
        (vec![dtype; 2], dtype)
    }

    fn job(c: &mut Context, types: &(Vec<DType>, DType), boards: &mut Boards) -> Job<()> {
        elementwise::job(c, types, boards, ())
    }

    fn args(inputs: &[RegionId], output: RegionId, job: &Job<()>) -> AddArgs {
        let ((src_row, src_col), (dst_row, dst_col)) = (at(job.inputs[0]), at(job.output));
        let (rows, cols) = sides(job.output);
        let (x, y, dst) = (inputs[0], inputs[1], output);
        AddArgs { x, y, dst, rows, cols, src_row, src_col, dst_row, dst_col }
    }

    fn draw(c: &mut Context, dtype: DType, size: [u64; 2]) -> Tensor {
        draw(c.config.numerics, dtype, size, 120, &mut c.random)
    }

    fn want(config: Config, (): (), inputs: &[Tensor], output: DType) -> Results {
        let sums = values(&inputs[0]).into_iter().zip(values(&inputs[1])).map(|(x, y)| x + y);
        sums.map(|sum| elementwise::want(config, output, sum, 0.0)).collect()
    }
}
