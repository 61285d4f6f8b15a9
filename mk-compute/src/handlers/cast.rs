//! Cast.

use super::elementwise::{FLOATS, Rects, map1, same_type};
use mk_core::{ArgError, Device, Env, Handler, RegionId, Spec, Step, Stream, Views, device_args};

device_args! {
    /// Arguments of [`Cast`].
    pub struct CastArgs {
        /// Region that is read.
        pub src: RegionId,
        /// Region that is written; its type is the one to cast to.
        pub dst: RegionId,
        /// Rows.
        pub rows: u32,
        /// Columns.
        pub cols: u32,
        /// First row in `src`.
        pub src_row: u64,
        /// First column in `src`.
        pub src_col: u64,
        /// First row in `dst`.
        pub dst_row: u64,
        /// First column in `dst`.
        pub dst_col: u64,
    }
}

/// Copies a rectangle into a region of another type of real numbers: to nearest, ties to even. Beyond the range of
/// the type lies infinity; a NaN stays one, in its canonical form.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cast;

impl Handler for Cast {
    type Args = CastArgs;
    const NAME: &'static str = "cast";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Compute;

    fn spec(&self, a: &CastArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        same_type(env, &[a.src], &FLOATS)?;
        same_type(env, &[a.dst], &FLOATS)?;
        let (src, dst) = ([a.src_row, a.src_col], [a.dst_row, a.dst_col]);
        Rects { inputs: &[a.src], output: a.dst, src, dst, rows: a.rows, cols: a.cols }.spec(env, 1)
    }

    fn model(&self, _: &CastArgs, _: Step, views: &mut Views<'_>) {
        map1(views, |x| x);
    }

    fn device(&self) -> Option<Device> {
        Some(Device {
            file: "mk-compute/device/cast.cuh",
            source: include_str!("../../device/cast.cuh"),
            name: "mk::compute::Cast",
            pages: 2,
            math_registers: 216,
            min_arch: 90,
        })
    }
}
