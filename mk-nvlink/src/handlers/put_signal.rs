//! Put and signal.

use mk_core::{
    ArgError, CopyArgs, Device, Direction, Env, Handler, Spec, Step, Stream, Views, copy_model, copy_spec,
};

/// Writes a rectangle to a peer's mapped memory, and raises words there after the bytes: one a unit
/// ([`PostAt::Block`](mk_core::PostAt)), or one for all.
///
/// The frame makes the posts, by system-scope release atomics on the mapped words.
#[derive(Clone, Copy, Debug, Default)]
pub struct PutSignal;

impl Handler for PutSignal {
    type Args = CopyArgs;
    const NAME: &'static str = "nvlink.put_signal";
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
            file: "mk-nvlink/device/put_signal.cuh",
            source: include_str!("../../device/put_signal.cuh"),
            name: "mk::nvlink::PutSignal",
            pages: 0,
            math_registers: 0,
            min_arch: 90,
        })
    }
}
