//! SwiGLU.

use super::elementwise::{FLOATS, Rects, map2, same_type};
use mk_core::{ArgError, Device, Env, Handler, RegionId, Spec, Step, Stream, Views, device_args};

device_args! {
    /// Arguments of [`Swiglu`].
    pub struct SwigluArgs {
        /// Region of the gates.
        pub gate: RegionId,
        /// Region of what they let through; of the same type, at the same place.
        pub up: RegionId,
        /// Region that is written; of the same type.
        pub dst: RegionId,
        /// Rows.
        pub rows: u32,
        /// Columns.
        pub cols: u32,
        /// First row in `gate` and `up`.
        pub src_row: u64,
        /// First column in `gate` and `up`.
        pub src_col: u64,
        /// First row in `dst`.
        pub dst_row: u64,
        /// First column in `dst`.
        pub dst_col: u64,
    }
}

/// `gate * sigmoid(gate) * up`, in f32, rounded once. May work in place. (Shazeer, "GLU Variants Improve
/// Transformer", 2020.)
///
/// A gate so far below 0 that its exponential overflows gives 0, as the limit does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Swiglu;

/// A negation, an exponential, an addition, a division and two multiplications; the exponential counts for three.
const FLOPS_PER_ELEMENT: u64 = 8;

impl Handler for Swiglu {
    type Args = SwigluArgs;
    const NAME: &'static str = "swiglu";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Compute;

    fn spec(&self, a: &SwigluArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        same_type(env, &[a.gate, a.up, a.dst], &FLOATS)?;
        let (src, dst) = ([a.src_row, a.src_col], [a.dst_row, a.dst_col]);
        Rects { inputs: &[a.gate, a.up], output: a.dst, src, dst, rows: a.rows, cols: a.cols }
            .spec(env, FLOPS_PER_ELEMENT)
    }

    fn model(&self, _: &SwigluArgs, _: Step, views: &mut Views<'_>) {
        map2(views, |gate, up| gate / (1.0 + (-gate).exp()) * up);
    }

    fn device(&self) -> Option<Device> {
        Some(Device {
            file: "mk-compute/device/swiglu.cuh",
            source: include_str!("../../device/swiglu.cuh"),
            name: "mk::compute::Swiglu",
            pages: 2,
            math_registers: 216,
            min_arch: 90,
        })
    }
}
