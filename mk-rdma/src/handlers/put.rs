//! Put.

use mk_core::{
    ArgError, CopyArgs, Direction, Env, Handler, Spec, Step, Stream, Views, copy_model, copy_spec,
};

/// Writes a rectangle to a peer's memory through its NIC, unit by unit.
///
/// Carried by the frame: it raises no word on the peer, for GPU atomics do not reach across nodes. Use
/// [`PutSignal`](crate::PutSignal) to tell the peer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Put;

impl Handler for Put {
    type Args = CopyArgs;
    const NAME: &'static str = "rdma.put";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Comm;

    fn spec(&self, a: &CopyArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        copy_spec(a, env, Direction::Put)
    }

    fn model(&self, _: &CopyArgs, step: Step, views: &mut Views<'_>) {
        copy_model(Direction::Put, step, views);
    }
}
