//! Nop.

use mk_core::{ArgError, Device, Env, Handler, Spec, Step, Stream, Views, device_args};

device_args! {
    /// Arguments of [`Nop`].
    pub struct NopArgs {
        /// For whoever reads the program: nobody looks at it.
        pub tag: u32,
    }
}

/// Touches nothing: waits, and posts.
///
/// In a compute stream it joins or passes on signals, and its time is that of a task's dispatch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nop;

impl Handler for Nop {
    type Args = NopArgs;
    const NAME: &'static str = "nop";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Compute;

    fn spec(&self, _: &NopArgs, _: &Env<'_>) -> Result<Spec, ArgError> {
        Ok(Spec::new(1))
    }

    fn model(&self, _: &NopArgs, _: Step, _: &mut Views<'_>) {}

    fn device(&self) -> Option<Device> {
        Some(Device {
            file: "mk-compute/device/nop.cuh",
            source: include_str!("../../device/nop.cuh"),
            name: "mk::compute::Nop",
            pages: 1,
            math_registers: 0,
            min_arch: 90,
        })
    }
}
