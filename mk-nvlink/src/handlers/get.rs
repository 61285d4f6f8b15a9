//! Get.

use mk_core::{
    ArgError, CopyArgs, Device, Direction, Env, Handler, Spec, Step, Stream, Views, copy_model, copy_spec,
};

/// Reads a rectangle from a peer's mapped memory, unit by unit.
///
/// Its posts follow the bytes into the own memory; a `Loaded` post to the peer is the credit that its source may
/// be overwritten.
#[derive(Clone, Copy, Debug, Default)]
pub struct Get;

impl Handler for Get {
    type Args = CopyArgs;
    const NAME: &'static str = "nvlink.get";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Comm;

    fn spec(&self, a: &CopyArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        copy_spec(a, env, Direction::Get)
    }

    fn model(&self, _: &CopyArgs, step: Step, views: &mut Views<'_>) {
        copy_model(Direction::Get, step, views);
    }

    fn device(&self) -> Option<Device> {
        Some(Device {
            file: "mk-nvlink/device/get.cuh",
            source: include_str!("../../device/get.cuh"),
            name: "mk::nvlink::Get",
            pages: 0,
            math_registers: 0,
            min_arch: 90,
        })
    }
}
