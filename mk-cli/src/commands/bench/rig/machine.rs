//! The GPU that is measured. Its kernel has all handlers: what they cost each other is part of what is measured.

use super::super::record;
use crate::commands::doctor;
use crate::error::Failure;
use crate::gpu::FirstGpu;
use crate::setup;
use mk_core::{Hardware, Registry};
use mk_kernel::Source;

/// See the module.
pub(in crate::commands::bench) struct Machine {
    pub(in crate::commands::bench) gpu: FirstGpu,
    /// What programs are proved for.
    pub(in crate::commands::bench) hardware: Hardware,
}

impl Machine {
    /// The first GPU.
    ///
    /// # Errors
    /// What is missing for it.
    pub(in crate::commands::bench) fn find() -> Result<Machine, Failure> {
        let gpu = FirstGpu::find()?;
        let hardware = Hardware { sms: gpu.multiprocessors(), ..Hardware::h200() };
        Ok(Machine { gpu, hardware })
    }

    /// A lane on every multiprocessor.
    pub(in crate::commands::bench) fn lanes(&self) -> u16 {
        u16::try_from(self.hardware.lanes()).unwrap_or(u16::MAX)
    }

    /// For the record.
    pub(in crate::commands::bench) fn record(&self) -> Result<record::Gpu, Failure> {
        let (facts, driver) = (self.gpu.device().facts(), self.gpu.device().driver());
        let [major, minor] = self.gpu.compiler().version();
        let source = Source::of(&registry(1)?)?;
        Ok(record::Gpu {
            name: facts.name.clone(),
            multiprocessors: facts.multiprocessors,
            memory_bytes: facts.memory_bytes,
            driver: doctor::driver_release().unwrap_or_else(|| "unknown".into()),
            cuda: driver.version().to_string(),
            nvrtc: format!("{major}.{minor}"),
            handlers: source.handlers.into_iter().map(|h| h.name).collect(),
        })
    }
}

/// Everything registered, for so many ranks of one node.
pub(in crate::commands::bench) fn registry(ranks: u64) -> Result<Registry, Failure> {
    setup::registry(&setup::uniform(1, ranks)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_has_the_handlers_of_all_crates() {
        let source = Source::of(&registry(2).unwrap()).unwrap();
        let names: Vec<&str> = source.handlers.iter().map(|h| h.name.as_str()).collect();
        for name in ["gemm", "swiglu", "nop", "nvlink.put_signal", "nvlink.signal"] {
            assert!(names.contains(&name), "{names:?}");
        }
        assert!(names.len() >= 13, "{names:?}");
        assert!(source == Source::of(&registry(1).unwrap()).unwrap(), "one kernel for every world");
    }
}
