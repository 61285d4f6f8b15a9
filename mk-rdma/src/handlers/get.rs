//! Get.

use mk_core::{
    ArgError, CopyArgs, Direction, Env, Handler, Spec, Step, Stream, Views, copy_model, copy_spec,
};

/// Reads a rectangle from a peer's memory through its NIC, unit by unit.
///
/// Its posts are the frame's and go to the own rank, after the bytes. To give the peer its credit back, let a
/// [`Signal`](crate::Signal) task wait for them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Get;

impl Handler for Get {
    type Args = CopyArgs;
    const NAME: &'static str = "rdma.get";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Comm;

    fn spec(&self, a: &CopyArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        copy_spec(a, env, Direction::Get)
    }

    fn model(&self, _: &CopyArgs, step: Step, views: &mut Views<'_>) {
        copy_model(Direction::Get, step, views);
    }
}
