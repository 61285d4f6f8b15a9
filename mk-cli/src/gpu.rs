//! The GPU that programs run on, and sessions on it.

use crate::error::Failure;
use mk_core::{Registry, Session};
use mk_kernel::driver::{Context, Device, Driver};
use mk_kernel::{Arch, Built, Cache, Compiler, Gpu, Limits, Options, Pace, Source};
use std::sync::{Arc, Mutex, PoisonError};

/// What sessions on the first GPU share, so that another one opens quickly.
pub(crate) struct FirstGpu {
    device: Device,
    arch: Arch,
    compiler: Compiler,
    /// Machine code, by what it was made from, and how.
    kernels: Mutex<Vec<(Source, Options, Arc<Built>)>>,
    /// Held, so that the GPU's context lives on between sessions.
    _context: Context,
}

/// How a session runs programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// A launch a run.
    Launched,
    /// The same, and what each task did when is written down.
    Traced,
    /// By one kernel that stays.
    Resident,
    /// A launch a run, and what comm tasks move waits for a link that is not there.
    Paced(Pace),
}

impl FirstGpu {
    /// The first GPU of this machine, if programs can run on it.
    ///
    /// # Errors
    /// What is missing: the driver, a GPU that kernels are made for, the compiler's library.
    pub(crate) fn find() -> Result<FirstGpu, Failure> {
        let (device, arch) = (Driver::find()?.device(0)?, Arch::SM_90A);
        device.check(&arch.needs())?;
        let (compiler, context) = (Compiler::find()?, device.context()?);
        Ok(FirstGpu { device, arch, compiler, kernels: Mutex::default(), _context: context })
    }

    /// `GPU 0 (NVIDIA H200)`.
    pub(crate) fn name(&self) -> String {
        self.device.to_string()
    }

    /// Streaming multiprocessors that this process may use.
    pub(crate) fn multiprocessors(&self) -> u32 {
        self.device.facts().multiprocessors
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// A session for programs of this registry, whose kernel is compiled if it has not been.
    ///
    /// # Errors
    /// Those of the compiler and of the driver.
    pub(crate) fn open(&self, registry: &Registry, limits: Limits) -> Result<Box<dyn Session>, Failure> {
        Ok(Box::new(self.session(registry, limits, How::Launched)?))
    }

    /// The same, as what it is.
    ///
    /// # Errors
    /// As [`FirstGpu::open`].
    pub(crate) fn session(&self, registry: &Registry, limits: Limits, how: How) -> Result<Gpu, Failure> {
        let trace = how == How::Traced;
        let pace = if let How::Paced(pace) = how { Some(pace) } else { None };
        let built = self.kernel(registry, Options { arch: self.arch, trace, pace })?;
        let shared = built.report.dynamic_shared_bytes.unwrap_or(mk_kernel::abi::Geometry::SHARED_BYTES);
        let builder = Gpu::builder(registry).all(&self.device).limits(limits).trace(trace);
        let builder = if how == How::Resident { builder.resident() } else { builder };
        Ok(builder.code(&built.cubin, shared).open()?)
    }

    fn kernel(&self, registry: &Registry, options: Options) -> Result<Arc<Built>, Failure> {
        let source = Source::of(registry)?;
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, _, built)) = kernels.iter().find(|(of, how, _)| *of == source && *how == options) {
            return Ok(built.clone());
        }
        let built = Arc::new(Cache::user().build(&self.compiler, &source, &options)?);
        kernels.push((source, options, built.clone()));
        Ok(built)
    }
}
