//! Add.

use super::elementwise::{Rects, map2, same_type};
use mk_core::{ArgError, DType, Device, Env, Handler, RegionId, Spec, Step, Stream, Views, device_args};

device_args! {
    /// Arguments of [`Add`].
    pub struct AddArgs {
        /// First region that is read.
        pub x: RegionId,
        /// Second region that is read; of the same type, at the same place.
        pub y: RegionId,
        /// Region that is written; of the same type.
        pub dst: RegionId,
        /// Rows.
        pub rows: u32,
        /// Columns.
        pub cols: u32,
        /// First row in `x` and `y`.
        pub src_row: u64,
        /// First column in `x` and `y`.
        pub src_col: u64,
        /// First row in `dst`.
        pub dst_row: u64,
        /// First column in `dst`.
        pub dst_col: u64,
    }
}

/// Adds two rectangles: real numbers in f32, rounded once; integers as integers, wrapping. May work in place.
#[derive(Clone, Copy, Debug, Default)]
pub struct Add;

impl Handler for Add {
    type Args = AddArgs;
    const NAME: &'static str = "add";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Compute;

    fn spec(&self, a: &AddArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        same_type(env, &[a.x, a.y, a.dst], &DType::ALL)?;
        let (src, dst) = ([a.src_row, a.src_col], [a.dst_row, a.dst_col]);
        Rects { inputs: &[a.x, a.y], output: a.dst, src, dst, rows: a.rows, cols: a.cols }.spec(env, 1)
    }

    fn model(&self, _: &AddArgs, _: Step, views: &mut Views<'_>) {
        match views.get(2).dtype {
            DType::I32 => add_integers(views),
            _ => map2(views, |x, y| x + y),
        }
    }

    fn device(&self) -> Option<Device> {
        Some(Device {
            file: "mk-compute/device/add.cuh",
            source: include_str!("../../device/add.cuh"),
            name: "mk::compute::Add",
            pages: 2,
            math_registers: 216,
            min_arch: 90,
        })
    }
}

/// f32 holds integers exactly only below 2^24.
fn add_integers(views: &mut Views<'_>) {
    let words = |i: usize| {
        let bytes = views.get(i).bytes.chunks_exact(4);
        bytes.map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    };
    let sums: Vec<i32> = words(0).zip(words(1)).map(|(x, y)| x.wrapping_add(y)).collect();
    for (to, sum) in views.get_mut(2).bytes.chunks_exact_mut(4).zip(sums) {
        to.copy_from_slice(&sum.to_le_bytes());
    }
}
