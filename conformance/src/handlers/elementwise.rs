//! What the elementwise handlers have in common: all inputs at one place, the output at another, block by block of rows.

use super::compute::{Boards, Job};
use crate::config::{Config, Numerics};
use crate::context::Context;
use crate::expect::Want;
use crate::value::format;
use mk_core::{DType, Rect, Walk};

/// The branches of [`job`].
pub(crate) const BRANCHES: [&str; 5] =
    ["several blocks", "a partial block", "a row wider than a page", "no elements", "in place"];

/// Bytes of a page of shared memory: a block is as many rows as fit into one.
const PAGE_BYTES: u64 = 16 * 1024;

/// Bytes of an element of the widest type.
fn widest(types: &(Vec<DType>, DType)) -> u64 {
    types.0.iter().chain([&types.1]).map(|t| t.bytes()).max().unwrap_or(1)
}

/// Rows of one block.
fn block_rows(cols: u64, types: &(Vec<DType>, DType)) -> u64 {
    (PAGE_BYTES / (cols * widest(types)).max(1)).max(1)
}

/// How all rectangles are walked.
pub(crate) fn walk<P>(job: &Job<P>, types: &(Vec<DType>, DType)) -> Walk {
    Walk::Rows(block_rows(job.output.cols, types))
}

/// Places a task of any size, once in a while of none.
pub(crate) fn job<P>(c: &mut Context, types: &(Vec<DType>, DType), boards: &mut Boards, params: P) -> Job<P> {
    let size = size(c, types);
    let source = boards.inputs[0].below(&mut c.random, size, None);
    for board in &mut boards.inputs[1..] {
        board.cover(source);
    }
    c.note("in place", boards.in_place);
    let output = match boards.in_place {
        true => source,
        false => boards.output.below(&mut c.random, size, None),
    };
    Job { inputs: vec![source; boards.inputs.len()], output, params }
}

fn size(c: &mut Context, types: &(Vec<DType>, DType)) -> [u64; 2] {
    let grain = c.config.grain(&[&types.0[..], &[types.1]].concat());
    if c.choose("no elements", true, 12) {
        return c.random.pick(&[[0, 0], [0, 9_u64.next_multiple_of(grain)], [9, 0]]);
    }
    let (rows, cols) = match c.random.below(15) {
        0 => (c.random.range(1, 3), c.random.range(8000, 9000)),
        1..=3 => (c.random.range(1, 11), c.random.range(1000, 2100)),
        _ => (c.random.range(1, 24), c.random.range(1, 40)),
    };
    let cols = cols.next_multiple_of(grain);
    let block = block_rows(cols, types);
    c.note("a row wider than a page", cols * widest(types) > PAGE_BYTES);
    c.note("several blocks", rows > block);
    c.note("a partial block", rows > block && rows % block > 0);
    [rows, cols]
}

/// The rectangle's place, as arguments state it.
pub(crate) fn at(rect: Rect) -> (u64, u64) {
    (rect.row, rect.col)
}

/// Rows and columns, as arguments state them.
pub(crate) fn sides(rect: Rect) -> (u32, u32) {
    (rect.rows as u32, rect.cols as u32)
}

/// A result of f32 arithmetic whose relative error is at most `relative`, rounded once: exactly that where it has no error
/// and the data are integers.
pub(crate) fn want(config: Config, dtype: DType, value: f64, relative: f64) -> Want {
    match format(dtype) {
        Some(format) if config.numerics == Numerics::Rounded || relative > 0.0 => {
            Want::within(value, format.ulp(value) + relative * value.abs())
        }
        _ => Want::exactly(value),
    }
}

/// The types of real numbers.
pub(crate) const FLOATS: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];
