//! What is tested: the simulator, and the first GPU.

use crate::error::Failure;
use crate::gpu::FirstGpu;
use conformance::{Check, Config, Network};
use mk_core::{Bindings, Explanation, Hardware, Registry, RunError, Session, Verified};
use mk_kernel::Limits;
use mk_sim::Simulator;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

/// The longest that a check may take. The longest one that is known takes ten seconds.
pub(super) const LIMIT: Duration = Duration::from_secs(120);

/// The simulator's arithmetic is the reference's but for its order of sums, which integers do not see.
const SIMULATED: [Config; 1] = [Config::exact()];
/// A GPU rounds in its own way; it moves whole 16 bytes, and serves ranks that are mapped into each other.
const ON_GPU: [Config; 2] = [on_gpu(Config::exact()), on_gpu(Config::rounded())];

const fn on_gpu(config: Config) -> Config {
    config.aligned().networks(&[Network::Mapped])
}

const SIMULATOR: &str = "simulator";
pub(super) const GPU: &str = "GPU";

/// Runs one check.
type Run = Arc<dyn Fn(&Check) -> Result<(), String> + Send + Sync>;

/// Something that runs programs.
pub(super) struct Backend {
    pub(super) name: &'static str,
    /// What it is, where that has a name.
    pub(super) device: Option<String>,
    /// Checks that run at a time.
    pub(super) workers: usize,
    /// What it is asked, one after the other.
    configs: &'static [Config],
    /// How it is asked, or why it cannot be.
    pub(super) run: Result<Run, Explanation>,
}

impl Backend {
    pub(super) fn simulator() -> Backend {
        let configs = &SIMULATED;
        let run: Run = Arc::new(move |check| {
            let open = |registry: &Registry, hardware: &Hardware, seed: u64| -> Box<dyn Session> {
                let builder = Simulator::builder(registry).hardware(hardware.clone());
                Box::new(builder.schedule_seed(seed).build())
            };
            configs.iter().try_for_each(|&config| check.run(config, &open))
        });
        let workers = available_parallelism().map_or(1, usize::from);
        Backend { name: SIMULATOR, device: None, workers, configs, run: Ok(run) }
    }

    /// The first GPU, or why there is none. A kernel takes all of it, so there is one check at a time.
    pub(super) fn gpu(found: Result<FirstGpu, Failure>) -> Backend {
        let (device, run) = match found {
            Ok(gpu) => (Some(gpu.name()), Ok(on(Arc::new(gpu)))),
            Err(failure) => (None, Err(*failure.says)),
        };
        Backend { name: GPU, device, workers: 1, configs: &ON_GPU, run }
    }

    pub(super) fn checks(&self) -> Vec<&'static Check> {
        Check::all(self.configs[0]).collect()
    }
}

fn on(gpu: Arc<FirstGpu>) -> Run {
    Arc::new(move |check| {
        let open = |registry: &Registry, _: &Hardware, _: u64| -> Box<dyn Session> {
            gpu.open(registry, Limits::default())
                .unwrap_or_else(|failure| Box::new(Refusing(registry.clone(), *failure.says)))
        };
        ON_GPU.iter().try_for_each(|&config| check.run(config, &open))
    })
}

/// Stands for a session that could not be opened, and says why.
struct Refusing(Registry, Explanation);

impl Session for Refusing {
    fn registry(&self) -> &Registry {
        &self.0
    }

    fn load(&mut self, _: &Verified) -> Result<(), RunError> {
        Err(RunError::Hardware(Box::new(self.1.clone())))
    }

    fn run(&mut self, program: &Verified, _: &Bindings) -> Result<Bindings, RunError> {
        self.load(program).map(|()| Bindings::new())
    }
}
