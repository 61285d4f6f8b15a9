//! `cast`.

use super::compute::{Boards, Compute, Job};
use super::elementwise::{self, FLOATS, at, sides};
use crate::config::Config;
use crate::context::Context;
use crate::expect::{Results, Want};
use crate::value::{any_bits, draw, values};
use mk_compute::CastArgs;
use mk_core::{DType, RegionId, Tensor};

/// Another type of real numbers: to nearest, ties to even. Exact in every numerics, for that is what a cast is.
pub(crate) struct Cast;

impl Compute for Cast {
    type Params = ();
    type Args = CastArgs;
    const HANDLER: &'static str = "cast";

    fn types(c: &mut Context) -> (Vec<DType>, DType) {
        let (from, to) = (c.random.pick(&FLOATS), c.random.pick(&FLOATS));
        c.note("a narrower type", to.bytes() < from.bytes());
        c.note("a wider type", to.bytes() > from.bytes());
        c.note("another type of the same size", to != from && to.bytes() == from.bytes());
        (vec![from], to)
    }

    fn job(c: &mut Context, types: &(Vec<DType>, DType), boards: &mut Boards) -> Job<()> {
        elementwise::job(c, types, boards, ())
    }

    fn args(inputs: &[RegionId], output: RegionId, job: &Job<()>) -> CastArgs {
        let ((src_row, src_col), (dst_row, dst_col)) = (at(job.inputs[0]), at(job.output));
        let (rows, cols) = sides(job.output);
        let (src, dst) = (inputs[0], output);
        CastArgs { src, dst, rows, cols, src_row, src_col, dst_row, dst_col }
    }

    fn draw(c: &mut Context, dtype: DType, size: [u64; 2]) -> Tensor {
        match c.choose("any bits", true, 2) {
            true => any_bits(dtype, size, &mut c.random),
            false => draw(c.config.numerics, dtype, size, 250, &mut c.random),
        }
    }

    fn want(_: Config, (): (), inputs: &[Tensor], _: DType) -> Results {
        values(&inputs[0]).into_iter().map(Want::exactly).collect()
    }
}
