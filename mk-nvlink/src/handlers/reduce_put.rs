//! Reduce-put.

use mk_core::{
    ArgError, CopyArgs, Device, Direction, Env, Handler, Spec, Step, Stream, Views, copy_model, copy_spec,
};

/// Adds a rectangle to a peer's mapped memory: reads what is there, adds in f32 (`i32` as integers, wrapping), rounds
/// once and writes it back.
///
/// Not atomic. The verifier admits a program only if the adds to one place are ordered by signals, so nobody else
/// touches it meanwhile, and the order, hence every bit of the sum, is the plan's.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReducePut;

impl Handler for ReducePut {
    type Args = CopyArgs;
    const NAME: &'static str = "nvlink.reduce_put";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Comm;

    fn spec(&self, a: &CopyArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        copy_spec(a, env, Direction::ReducePut)
    }

    fn model(&self, _: &CopyArgs, step: Step, views: &mut Views<'_>) {
        copy_model(Direction::ReducePut, step, views);
    }

    fn device(&self) -> Option<Device> {
        Some(Device {
            file: "mk-nvlink/device/reduce_put.cuh",
            source: include_str!("../../device/reduce_put.cuh"),
            name: "mk::nvlink::ReducePut",
            pages: 0,
            math_registers: 0,
            min_arch: 90,
        })
    }
}
