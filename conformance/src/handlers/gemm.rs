//! `gemm`.

use super::compute::{Boards, Compute, Job};
use crate::config::{Config, Numerics};
use crate::context::Context;
use crate::expect::{Results, Want};
use crate::value::{draw, format, values};
use mk_compute::GemmArgs;
use mk_core::{DType, Rect, RegionId, Tensor, Walk};
use reference::Format;

/// One tile of a product: f32 accumulation, rounded once.
pub(crate) struct Gemm;

/// The branches of [`Gemm`].
pub(crate) const BRANCHES: [&str; 4] = ["several blocks", "a partial block", "no sum", "a whole tile"];

/// Elements of K in one block.
const BLOCK_K: u64 = 64;

impl Compute for Gemm {
    type Params = [u64; 3];
    type Args = GemmArgs;
    const HANDLER: &'static str = "gemm";

    fn types(c: &mut Context) -> (Vec<DType>, DType) {
        let dtype = c.random.pick(&[DType::Bf16, DType::F16]);
        (vec![dtype; 2], dtype)
    }

    fn job(c: &mut Context, types: &(Vec<DType>, DType), boards: &mut Boards) -> Job<[u64; 3]> {
        let grain = c.config.grain(&types.0);
        let whole = c.choose("a whole tile", true, 24);
        let side = |c: &mut Context, most: u64| match c.random.below(4) {
            0 => c.random.pick(&[1, 8, 16, most / 2, most - 1, most]),
            _ => c.random.range(1, most / 4),
        };
        let m = if whole { 128 } else { side(c, 128) };
        let n = if whole { 256 } else { side(c, 256).next_multiple_of(grain) };
        let k = match c.random.below(3) {
            0 => c.random.pick(&[0, 8, 63, 64, 65, 128, 192, 320]),
            _ => c.random.range(1, 150),
        }
        .next_multiple_of(grain);
        c.note("no sum", k == 0);
        c.note("several blocks", k > BLOCK_K);
        c.note("a partial block", k > BLOCK_K && k % BLOCK_K > 0);
        // A's columns and B's rows begin at 0; B and C have the columns of the tile.
        let a = boards.inputs[0].below(&mut c.random, [m, k], Some(0));
        let b = boards.inputs[1].beside(&mut c.random, [k, n]);
        let row = c.random.below(20);
        let tile = boards.output.cover(Rect::new(row, b.col, m, n));
        Job { inputs: vec![a, b], output: tile, params: [m, n, k] }
    }

    fn args(inputs: &[RegionId], output: RegionId, job: &Job<[u64; 3]>) -> GemmArgs {
        let [m, n, k] = job.params;
        GemmArgs {
            a: inputs[0],
            b: inputs[1],
            c: output,
            rows: m as u16,
            cols: n as u16,
            a_row: job.inputs[0].row,
            c_row: job.output.row,
            col: job.output.col,
            k,
        }
    }

    fn draw(c: &mut Context, dtype: DType, size: [u64; 2]) -> Tensor {
        draw(c.config.numerics, dtype, size, 3, &mut c.random)
    }

    fn want(config: Config, size: [u64; 3], inputs: &[Tensor], output: DType) -> Results {
        Results::Values(product(config, size, &inputs[0], &inputs[1], output))
    }

    fn walk(_: &Job<[u64; 3]>, _: &(Vec<DType>, DType)) -> Walk {
        Walk::Cols(BLOCK_K)
    }

    fn in_place(_: &(Vec<DType>, DType)) -> bool {
        false
    }
}

/// A product of `[m, n, k]`.
pub(crate) fn product(
    config: Config,
    [m, n, k]: [u64; 3],
    a: &Tensor,
    b: &Tensor,
    output: DType,
) -> Vec<Want> {
    let single = |t: &Tensor| values(t).iter().map(|x| *x as f32).collect::<Vec<_>>();
    let (a, b, [m, n, k]) = (single(a), single(b), [m, n, k].map(|x| x as usize));
    let want = reference::matmul(&a, &b, m, k, n);
    if config.numerics == Numerics::Exact {
        return want.into_iter().map(Want::exactly).collect();
    }
    let format = format(output).unwrap_or(Format::F32);
    let bounds = reference::matmul_bounds(format, &want, &reference::abs_matmul(&a, &b, m, k, n), k);
    want.into_iter().zip(bounds).map(|(value, bound)| Want::within(value, bound)).collect()
}
