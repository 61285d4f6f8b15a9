//! Put and signal.

use mk_core::{
    ArgError, Carrier, CopyArgs, Direction, Env, Handler, Spec, Step, Stream, Views, copy_model, copy_spec,
};

/// Writes a rectangle to a peer's memory, and raises `Set` words there: one a unit
/// ([`PostAt::Block`](mk_core::PostAt)), or one for all.
///
/// A word is seen only after the bytes that it covers, on every network: one that keeps order sends the word right
/// behind them, any other sends it when they have been acknowledged.
#[derive(Clone, Copy, Debug, Default)]
pub struct PutSignal;

impl Handler for PutSignal {
    type Args = CopyArgs;
    const NAME: &'static str = "rdma.put_signal";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Comm;
    const CARRIER: Carrier = Carrier::Transport;

    fn spec(&self, a: &CopyArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        copy_spec(a, env, Direction::Put)
    }

    fn model(&self, _: &CopyArgs, step: Step, views: &mut Views<'_>) {
        copy_model(Direction::Put, step, views);
    }
}
