//! The conformance suite on a GPU: what the simulator passes, with rectangles as bulk copies want them. And on several GPUs of
//! one process, where there are some.
//!
//! Without them these tests say that they are skipped.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use conformance::{Config, suite};
use mk_core::{Bindings, Hardware, Registry, RunError, Session, Verified};
use mk_kernel::driver::{self, Context, Device, Driver};
use mk_kernel::{Arch, Built, Cache, Compiler, Gpu, GpuBuilder, Options, Source};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

suite!(exact, Config::exact().aligned(), open, networks = [Mapped], skip = lacking);
suite!(rounded, Config::rounded().aligned(), open, networks = [Mapped], skip = lacking);
suite!(apart, Config::exact().aligned(), open_apart, networks = [Mapped], skip = lacking_others);

/// What all sessions share: there are thousands of them, so each must open quickly.
struct Here {
    /// With contexts that are held, so that they live on between sessions.
    devices: Vec<(Device, Context)>,
    /// Machine code, by what it was made from.
    kernels: Mutex<Vec<(Source, Arc<Built>)>>,
    /// A session at a time: lanes of two kernels would wait for each other's SMs.
    turn: Mutex<()>,
}

fn here() -> Result<&'static Here, &'static String> {
    static HERE: OnceLock<Result<Here, String>> = OnceLock::new();
    let devices = || {
        let found = Driver::find()?.devices()?;
        found.into_iter().map(|d| d.context().map(|c| (d, c))).collect::<Result<Vec<_>, driver::Error>>()
    };
    let look = || {
        let devices = devices().map_err(|e| e.to_string())?;
        if devices.is_empty() {
            return Err("there is no GPU".into());
        }
        Ok(Here { devices, kernels: Mutex::default(), turn: Mutex::default() })
    };
    HERE.get_or_init(look).as_ref()
}

/// Why there is nothing to test here.
fn lacking() -> Option<String> {
    here().err().cloned()
}

fn lacking_others() -> Option<String> {
    match here() {
        Ok(here) if here.devices.len() < 2 => Some("there is only one GPU".into()),
        found => found.err().cloned(),
    }
}

impl Here {
    fn kernel(&self, registry: &Registry) -> Arc<Built> {
        let source = Source::of(registry).unwrap();
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, built)) = kernels.iter().find(|(of, _)| *of == source) {
            return built.clone();
        }
        let [major, minor] = self.devices[0].0.facts().capability;
        let arch: Arch = format!("sm_{major}{minor}a").parse().unwrap();
        let options = Options { arch, ..Options::default() };
        let built = Cache::user().build(&Compiler::find().unwrap(), &source, &options).unwrap();
        let built = Arc::new(built);
        kernels.push((source, built.clone()));
        built
    }
}

/// A session that has the GPUs to itself.
struct Alone {
    gpu: Gpu,
    _turn: MutexGuard<'static, ()>,
}

/// All ranks on the first GPU.
fn open(registry: &Registry, _: &Hardware, _: u64) -> Alone {
    alone(registry, |here, builder| builder.all(&here.devices[0].0))
}

/// Each rank on the next GPU.
fn open_apart(registry: &Registry, _: &Hardware, _: u64) -> Alone {
    alone(registry, |here, builder| {
        let dealt = registry.topology().ranks().zip(here.devices.iter().cycle());
        dealt.fold(builder, |b, (rank, (device, _))| b.rank(rank, device))
    })
}

fn alone<'a>(registry: &'a Registry, place: impl FnOnce(&Here, GpuBuilder<'a>) -> GpuBuilder<'a>) -> Alone {
    let here = here().expect("there was one just now");
    let turn = here.turn.lock().unwrap_or_else(PoisonError::into_inner);
    let built = here.kernel(registry);
    let shared_bytes = built.report.dynamic_shared_bytes.unwrap();
    let gpu = place(here, Gpu::builder(registry)).code(&built.cubin, shared_bytes).open();
    Alone { gpu: gpu.unwrap_or_else(|e| panic!("{e}: {}", e.explain().hint)), _turn: turn }
}

impl Session for Alone {
    fn registry(&self) -> &Registry {
        self.gpu.registry()
    }

    fn load(&mut self, program: &Verified) -> Result<(), RunError> {
        self.gpu.load(program)
    }

    fn run(&mut self, program: &Verified, bindings: &Bindings) -> Result<Bindings, RunError> {
        self.gpu.run(program, bindings)
    }
}
