//! Put.

use mk_core::{
    ArgError, CopyArgs, Device, Direction, Env, Handler, Spec, Step, Stream, Views, copy_model, copy_spec,
};

/// Writes a rectangle to a peer's mapped memory, unit by unit: the comm warp copies source -> shared memory -> peer.
///
/// The peer may be the executing rank itself: a local copy. The same as [`PutSignal`](crate::PutSignal) here, for the
/// frame posts by GPU atomics whatever the handler; a planner that needs no signal asks for this one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Put;

impl Handler for Put {
    type Args = CopyArgs;
    const NAME: &'static str = "nvlink.put";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Comm;

    fn spec(&self, a: &CopyArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        copy_spec(a, env, Direction::Put)
    }

    fn model(&self, _: &CopyArgs, step: Step, views: &mut Views<'_>) {
        copy_model(Direction::Put, step, views);
    }

    fn device(&self) -> Option<Device> {
        Some(Device {
            file: "mk-nvlink/device/put.cuh",
            source: include_str!("../../device/put.cuh"),
            name: "mk::nvlink::Put",
            pages: 0,
            math_registers: 0,
            min_arch: 90,
        })
    }
}
