//! `copy`.

use super::compute::{Boards, Compute, Job};
use super::elementwise::{self, at, sides};
use crate::config::Config;
use crate::context::Context;
use crate::expect::Results;
use crate::value::any_bits;
use mk_compute::CopyRectArgs;
use mk_core::{DType, RegionId, Tensor};

/// The same bytes in another place of the rank, whatever they mean.
pub(crate) struct LocalCopy;

impl Compute for LocalCopy {
    type Params = ();
    type Args = CopyRectArgs;
    const HANDLER: &'static str = "copy";

    fn types(c: &mut Context) -> (Vec<DType>, DType) {
        let dtype = c.random.pick(&DType::ALL);
        c.note("integers", dtype == DType::I32);
        (vec![dtype], dtype)
    }

    fn job(c: &mut Context, types: &(Vec<DType>, DType), boards: &mut Boards) -> Job<()> {
        let mut job = elementwise::job(c, types, boards, ());
        if c.choose("another place of its region", boards.in_place, 2) {
            let Job { output, .. } = job;
            job.output = boards.inputs[0].below(&mut c.random, [output.rows, output.cols], None);
        }
        job
    }

    fn args(inputs: &[RegionId], output: RegionId, job: &Job<()>) -> CopyRectArgs {
        let ((src_row, src_col), (dst_row, dst_col)) = (at(job.inputs[0]), at(job.output));
        let (rows, cols) = sides(job.output);
        let (src, dst) = (inputs[0], output);
        CopyRectArgs { src, dst, rows, cols, src_row, src_col, dst_row, dst_col }
    }

    fn draw(c: &mut Context, dtype: DType, size: [u64; 2]) -> Tensor {
        any_bits(dtype, size, &mut c.random)
    }

    fn want(_: Config, (): (), inputs: &[Tensor], _: DType) -> Results {
        Results::Bytes(inputs[0].clone())
    }
}
