//! One tile of a matrix product.

use crate::matmul::{Part, add_product};
use mk_core::{
    Access, ArgError, DType, Device, Env, Handler, Mode, Phase, Proxy, Rect, RegionId, Spec, Step, Stream,
    Views, Walk, device_args,
};

device_args! {
    /// Arguments of [`Gemm`]: `c[c_row.., col..] = a[a_row.., ..k] * b[..k, col..]`, for `rows` x `cols` elements.
    pub struct GemmArgs {
        /// Left operand, `[.., k]`.
        pub a: RegionId,
        /// Right operand, `[k, ..]`.
        pub b: RegionId,
        /// Result.
        pub c: RegionId,
        /// Rows of the tile, 1..=128.
        pub rows: u16,
        /// Columns of the tile, 1..=256.
        pub cols: u16,
        /// First row in `a`.
        pub a_row: u64,
        /// First row in `c`.
        pub c_row: u64,
        /// First column in `b` and in `c`.
        pub col: u64,
        /// Elements of each sum; with 0 of them the tile is zeros.
        pub k: u64,
    }
}

/// One tile of a matrix product: bf16 or fp16 in and out, f32 between, one rounding at the end.
///
/// It loads in blocks of [`Gemm::BLOCK_K`] along K, so a wait can guard each block of a row block that is still
/// arriving; it stores the tile as a whole.
///
/// The sum over one block is a chain in ascending order, and blocks are added in ascending order, in f32. So an element
/// of C has the same bits whatever tile it is in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gemm;

impl Gemm {
    /// Elements of K in one block: 128 bytes of a row, the width of the widest shared-memory swizzle.
    pub const BLOCK_K: u64 = 64;
    /// Rows are multiplied in steps of this, whatever the tile has: one wgmma.
    pub const ROW_STEP: u64 = 64;
    /// Most rows of a tile: one step for each of two math warpgroups.
    pub const ROWS: u64 = 128;
    /// Most columns of a tile: the widest wgmma.
    pub const COLS: u64 = 256;

    /// So few columns of B that lanes share them.
    const FEW_COLS: u64 = 16;

    /// Columns that are multiplied for a tile of so many: of a wgmma of 64, 128 or 256.
    pub const fn executed_cols(cols: u64) -> u64 {
        match cols {
            0..=64 => 64,
            65..=128 => 128,
            _ => Gemm::COLS,
        }
    }

    /// What the CUDA side's groups depend on: how wide B is, and of the narrowest, how high A is.
    fn group(a: &GemmArgs) -> (u64, bool) {
        let cols = Gemm::executed_cols(a.cols.into());
        (cols, cols == Gemm::COLS / 4 && u64::from(a.rows) <= Gemm::ROW_STEP)
    }

    fn check(a: &GemmArgs, env: &Env<'_>) -> Result<(), ArgError> {
        let [ra, rb, rc] = [env.region(a.a)?, env.region(a.b)?, env.region(a.c)?];
        let dtype = ra.dtype;
        if !matches!(dtype, DType::Bf16 | DType::F16) || rb.dtype != dtype || rc.dtype != dtype {
            return Err(ArgError::new(format!(
                "'{}' holds {}, '{}' {}, '{}' {}: all three must hold bf16, or all fp16; cast first",
                ra.name, dtype, rb.name, rb.dtype, rc.name, rc.dtype
            )));
        }
        if !(1..=Gemm::ROWS).contains(&u64::from(a.rows)) || !(1..=Gemm::COLS).contains(&u64::from(a.cols)) {
            return Err(ArgError::new(format!(
                "a tile of {} x {}: 1..={} rows and 1..={} columns are allowed",
                a.rows,
                a.cols,
                Gemm::ROWS,
                Gemm::COLS
            )));
        }
        if a.k.div_ceil(Gemm::BLOCK_K) > u64::from(u32::MAX) {
            return Err(ArgError::new(format!("k is {}: at most 2^38 - 64 is allowed", a.k)));
        }
        Ok(())
    }
}

impl Handler for Gemm {
    type Args = GemmArgs;
    const NAME: &'static str = "gemm";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Compute;

    fn spec(&self, a: &GemmArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        Gemm::check(a, env)?;
        let (rows, cols) = (u64::from(a.rows), u64::from(a.cols));
        let mut spec = Spec::new(a.k.div_ceil(Gemm::BLOCK_K) as u32);
        let access = |region, rect, mode, at, walk| Access {
            region,
            rank: env.rank,
            rect,
            mode,
            at,
            walk,
            proxy: if at == Phase::Load { Proxy::Async } else { Proxy::Generic },
        };
        let (ra, rb) = (Rect::new(a.a_row, 0, rows, a.k), Rect::new(0, a.col, a.k, cols));
        let rc = Rect::new(a.c_row, a.col, rows, cols);
        spec.touch(env, access(a.a, ra, Mode::Read, Phase::Load, Walk::Cols(Gemm::BLOCK_K)))?;
        spec.touch(env, access(a.b, rb, Mode::Read, Phase::Load, Walk::Rows(Gemm::BLOCK_K)))?;
        spec.touch(env, access(a.c, rc, Mode::Write, Phase::Store, Walk::Whole))?;
        // rows * cols * k < 2^16 * 2^38: no overflow.
        spec.work.tensor_flops = 2 * rows.next_multiple_of(Gemm::ROW_STEP) * Gemm::executed_cols(cols) * a.k;
        Ok(spec)
    }

    fn model(&self, _: &GemmArgs, _: Step, views: &mut Views<'_>) {
        // C's view has the tile's size also where K is 0 and the operands have no element.
        let (m, k, n) = (views.get(2).rows, views.get(0).cols, views.get(2).cols);
        let (a, b) = (views.load_f32(0), views.load_f32(1));
        let mut c = vec![0.0; m * n];
        for from in (0..k).step_by(Gemm::BLOCK_K as usize) {
            let slice = (k - from).min(Gemm::BLOCK_K as usize);
            let a = Part { values: &a[from..], stride: k };
            let b = Part { values: &b[from * n..], stride: n };
            add_product(m, n, slice, a, b, &mut c);
        }
        views.store_f32(2, &c);
    }

    /// Tiles beside each other have A in common, tiles above each other B. Only wide ones share it: narrow ones were slower, for
    /// each block of K then waits for the slower lane. But of very few columns of B, all lanes ask for the same lines.
    fn shares(&self, x: &GemmArgs, y: &GemmArgs) -> Option<u8> {
        if x.k != y.k || x.k == 0 || Gemm::group(x) != Gemm::group(y) {
            return None;
        }
        let a = (x.a, x.a_row, x.rows) == (y.a, y.a_row, y.rows);
        let b = (x.b, x.col, x.cols) == (y.b, y.col, y.cols);
        let wide = Gemm::executed_cols(x.cols.into()) == Gemm::COLS;
        let few = u64::from(x.cols) <= Gemm::FEW_COLS;
        match (a, b) {
            (_, true) if wide || few => Some(1),
            (true, false) if wide => Some(0),
            _ => None,
        }
    }

    fn device(&self) -> Option<Device> {
        Some(Device {
            file: "mk-compute/device/gemm.cuh",
            source: include_str!("../../device/gemm.cuh"),
            name: "mk::compute::Gemm",
            pages: 3,
            math_registers: 216,
            min_arch: 90,
        })
    }
}
