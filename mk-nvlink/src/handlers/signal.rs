//! Signal.

use mk_core::{ArgError, Device, Env, Handler, Spec, Step, Stream, SyncArgs, Views, sync_spec};

/// Raises words on a peer and touches no other memory: what it raises, and after what, stands in its posts and waits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Signal;

impl Handler for Signal {
    type Args = SyncArgs;
    const NAME: &'static str = "nvlink.signal";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Comm;

    fn spec(&self, a: &SyncArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        sync_spec(a, env)
    }

    fn model(&self, _: &SyncArgs, _: Step, _: &mut Views<'_>) {}

    fn device(&self) -> Option<Device> {
        Some(Device {
            file: "mk-nvlink/device/signal.cuh",
            source: include_str!("../../device/signal.cuh"),
            name: "mk::nvlink::Signal",
            pages: 0,
            math_registers: 0,
            min_arch: 90,
        })
    }
}
