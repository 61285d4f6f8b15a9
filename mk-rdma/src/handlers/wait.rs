//! Wait.

use mk_core::{ArgError, Env, Handler, Spec, Step, Stream, SyncArgs, Views, sync_spec};

/// Waits, touches nothing, and posts to the own rank: joins more words than one task can wait for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wait;

impl Handler for Wait {
    type Args = SyncArgs;
    const NAME: &'static str = "rdma.wait";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Comm;

    fn spec(&self, a: &SyncArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        sync_spec(a, env)
    }

    fn model(&self, _: &SyncArgs, _: Step, _: &mut Views<'_>) {}
}
