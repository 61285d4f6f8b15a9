//! Copy.

use super::elementwise::{Rects, same_type};
use mk_core::{ArgError, DType, Device, Env, Handler, RegionId, Spec, Step, Stream, Views, device_args};

device_args! {
    /// Arguments of [`Copy`].
    pub struct CopyRectArgs {
        /// Region that is read.
        pub src: RegionId,
        /// Region that is written; of the same type. It may be `src`.
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

/// Copies a rectangle to another place of its rank, byte for byte: a NaN keeps its bits.
///
/// No arithmetic: on a GPU the bytes go through shared memory, and no math warp touches them. Between ranks,
/// transports' handlers copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Copy;

impl Handler for Copy {
    type Args = CopyRectArgs;
    const NAME: &'static str = "copy";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Compute;

    fn spec(&self, a: &CopyRectArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        same_type(env, &[a.src, a.dst], &DType::ALL)?;
        let (src, dst) = ([a.src_row, a.src_col], [a.dst_row, a.dst_col]);
        Rects { inputs: &[a.src], output: a.dst, src, dst, rows: a.rows, cols: a.cols }.spec(env, 0)
    }

    fn model(&self, _: &CopyRectArgs, _: Step, views: &mut Views<'_>) {
        views.copy(0, 1);
    }

    fn device(&self) -> Option<Device> {
        Some(Device {
            file: "mk-compute/device/copy.cuh",
            source: include_str!("../../device/copy.cuh"),
            name: "mk::compute::Copy",
            pages: 1,
            math_registers: 0,
            min_arch: 90,
        })
    }
}
