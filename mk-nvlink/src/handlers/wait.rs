//! Wait.

use mk_core::{ArgError, Device, Env, Handler, Spec, Step, Stream, SyncArgs, Views, sync_spec};

/// Waits, touches nothing, and posts: joins more words than one task can wait for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wait;

impl Handler for Wait {
    type Args = SyncArgs;
    const NAME: &'static str = "nvlink.wait";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Comm;

    fn spec(&self, a: &SyncArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        sync_spec(a, env)
    }

    fn model(&self, _: &SyncArgs, _: Step, _: &mut Views<'_>) {}

    fn device(&self) -> Option<Device> {
        Some(Device {
            file: "mk-nvlink/device/wait.cuh",
            source: include_str!("../../device/wait.cuh"),
            name: "mk::nvlink::Wait",
            pages: 0,
            math_registers: 0,
            min_arch: 90,
        })
    }
}
