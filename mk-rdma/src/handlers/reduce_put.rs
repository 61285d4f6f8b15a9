//! Reduce-put.

use mk_core::{
    ArgError, Carrier, CopyArgs, Direction, Env, Handler, Spec, Step, Stream, Views, copy_model, copy_spec,
};

/// Adds a rectangle to a peer's memory: the comm warp reads what is there through the NIC, adds in f32 (`i32` as
/// integers, wrapping), rounds once and writes it back; then it raises `Set` words there.
///
/// Two trips through the network and no NIC atomics: those know neither bf16 nor rounding, and would add in an
/// order that nobody chose. None are needed, because the verifier admits a program only if the adds to one place
/// are ordered by signals: whoever adds is alone, and every bit of the sum is the plan's.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReducePut;

impl Handler for ReducePut {
    type Args = CopyArgs;
    const NAME: &'static str = "rdma.reduce_put";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Comm;
    const CARRIER: Carrier = Carrier::Transport;

    fn spec(&self, a: &CopyArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        copy_spec(a, env, Direction::ReducePut)
    }

    fn model(&self, _: &CopyArgs, step: Step, views: &mut Views<'_>) {
        copy_model(Direction::ReducePut, step, views);
    }
}
