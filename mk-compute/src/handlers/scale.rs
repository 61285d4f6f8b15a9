//! Scale.

use super::elementwise::{FLOATS, Rects, map1, same_type};
use mk_core::{ArgError, Device, Env, Handler, RegionId, Spec, Step, Stream, Views, device_args};

device_args! {
    /// Arguments of [`Scale`].
    pub struct ScaleArgs {
        /// Region that is read.
        pub src: RegionId,
        /// Region that is written; of the same type.
        pub dst: RegionId,
        /// What each element is multiplied by.
        pub factor: f32,
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

/// Multiplies a rectangle by a number, in f32, and rounds once. May work in place.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scale;

impl Handler for Scale {
    type Args = ScaleArgs;
    const NAME: &'static str = "scale";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Compute;

    fn spec(&self, a: &ScaleArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        same_type(env, &[a.src, a.dst], &FLOATS)?;
        let (src, dst) = ([a.src_row, a.src_col], [a.dst_row, a.dst_col]);
        Rects { inputs: &[a.src], output: a.dst, src, dst, rows: a.rows, cols: a.cols }.spec(env, 1)
    }

    fn model(&self, a: &ScaleArgs, _: Step, views: &mut Views<'_>) {
        map1(views, |x| x * a.factor);
    }

    fn device(&self) -> Option<Device> {
        Some(Device {
            file: "mk-compute/device/scale.cuh",
            source: include_str!("../../device/scale.cuh"),
            name: "mk::compute::Scale",
            pages: 1,
            math_registers: 216,
            min_arch: 90,
        })
    }
}
