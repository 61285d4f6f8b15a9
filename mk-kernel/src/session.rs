//! The session on one GPU: proved programs, run by the persistent kernel, a launch a run.
//!
//! All ranks of the world are ranges of blocks of one launch, so peers are mapped by nature. It runs what the simulator runs,
//! unchanged: memory, signal words and epochs lie on the device, nothing is reset between runs, and each run ends in a result or
//! in one typed fault.

mod loaded;
mod tables;

use crate::abi::{Bounds, ENTRY, Geometry, LAUNCH_RANKS};
use crate::driver::{self, Context, Device, Kernel, Module, Stream};
use crate::{Arch, Cache, Compiler, Error, Options, Source};
use loaded::Loaded;
use mk_core::{Bindings, Error as Refused, Registry, RunError, Session, Verified};

/// How long a wait may take, in microseconds, and how many SMs other kernels keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The first wait of a rank in a run: the others may still be starting.
    pub start_us: u64,
    /// Any other wait.
    pub run_us: u64,
    /// SMs that programs leave to other kernels.
    pub reserved_sms: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { start_us: 10_000_000, run_us: 2_000_000, reserved_sms: 0 }
    }
}

/// The clock that bounds are counted by, in SM clocks a microsecond: no Hopper runs faster, so no bound is cut short.
const CLOCKS_PER_US: u64 = 1_980;

/// Programs on one GPU. A session of several programs shares the GPU between them, one run at a time.
///
/// After a fault the memory of all programs is given up; the next run begins with fresh memory, signals and epochs, a new
/// generation.
pub struct Gpu {
    registry: Registry,
    source: Source,
    limits: Limits,
    shared_bytes: u32,
    generation: u64,
    // Dropped in this order.
    loaded: Vec<Loaded>,
    kernel: Kernel,
    stream: Stream,
    context: Context,
}

impl Gpu {
    /// Generates, compiles (or finds in the cache) and loads the kernel of a registry.
    ///
    /// # Errors
    /// A world of more ranks than one launch has; whatever [`Source::of`], [`Cache::build`] and the driver say.
    pub fn open(registry: &Registry, device: &Device, limits: Limits) -> Result<Gpu, Error> {
        let source = Source::of(registry)?;
        let [major, minor] = device.facts().capability;
        let arch: Arch = format!("sm_{major}{minor}a").parse()?;
        let options = Options { arch, ..Options::default() };
        let built = Cache::user().build(&Compiler::find()?, &source, &options)?;
        let shared = built.report.dynamic_shared_bytes.unwrap_or(Geometry::SHARED_BYTES);
        Gpu::with(registry, source, device, limits, &built.cubin, shared)
    }

    /// The same, with machine code that was made elsewhere: where there is no compiler.
    ///
    /// # Errors
    /// As [`Gpu::open`].
    pub fn with_cubin(
        registry: &Registry,
        device: &Device,
        limits: Limits,
        cubin: &[u8],
        shared_bytes: u32,
    ) -> Result<Gpu, Error> {
        Gpu::with(registry, Source::of(registry)?, device, limits, cubin, shared_bytes)
    }

    fn with(
        registry: &Registry,
        source: Source,
        device: &Device,
        limits: Limits,
        cubin: &[u8],
        shared_bytes: u32,
    ) -> Result<Gpu, Error> {
        let context = device.context()?;
        let kernel = Module::load(&context, cubin)?.kernel(ENTRY)?;
        kernel.allow_shared(shared_bytes)?;
        let stream = Stream::new(&context)?;
        let (registry, generation) = (registry.clone(), 1);
        Ok(Gpu {
            registry,
            source,
            limits,
            shared_bytes,
            generation,
            loaded: Vec::new(),
            kernel,
            stream,
            context,
        })
    }

    /// The generation of memory that is in use: one more after each fault.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// For tests of what happens then: no post of the next runs reaches `rank` any more.
    #[doc(hidden)]
    pub fn lose_posts_to(&mut self, program: &Verified, rank: mk_core::Rank) {
        let at = self.find(program).expect("the program is loaded");
        self.loaded[at]
            .lose_posts_to(rank, &self.context, &self.stream)
            .expect("the device takes another table");
    }

    fn bounds(&self) -> Bounds {
        let clocks = |us: u64| us.saturating_mul(CLOCKS_PER_US);
        Bounds {
            start_clocks: clocks(self.limits.start_us),
            run_clocks: clocks(self.limits.run_us),
            idle_clocks: 0,
        }
    }

    /// The place of a program among those that are loaded.
    fn find(&mut self, verified: &Verified) -> Result<usize, RunError> {
        if let Some(at) = self.known(verified) {
            return Ok(at);
        }
        self.load(verified)?;
        Ok(self.loaded.len() - 1)
    }

    fn known(&self, verified: &Verified) -> Option<usize> {
        self.loaded.iter().position(|l| std::ptr::eq(l.program(), verified.program()))
    }

    fn check(&self, verified: &Verified) -> Result<(), RunError> {
        let program = verified.program();
        program.well_formed(&self.registry)?;
        if verified.opcodes() != program.opcodes(&self.registry)? {
            return Err(Refused::input(
                "the program was proved for another registry",
                &program.name,
                "programs that were proved for the session's registry",
                "verify it with the registry of this session",
            )
            .into());
        }
        if program.ranks as usize > LAUNCH_RANKS {
            return Err(Refused::input(
                "one launch has not so many ranks",
                format!("{} ranks", program.ranks),
                format!("at most {LAUNCH_RANKS} on one GPU"),
                "use a smaller world, or the simulator",
            )
            .into());
        }
        let shared = program.regions.iter().filter(|r| r.shared).map(|r| &r.name);
        if let Some(name) = shared.chain(program.shared_signals().map(|s| &s.name)).next() {
            return Err(Refused::input(
                "programs share no memory on a GPU yet",
                format!("'{name}' of '{}'", program.name),
                "regions and signals of the program's own",
                "join the programs with Program::then, or run them in the simulator",
            )
            .into());
        }
        self.source.check(verified).map_err(hardware)?;
        let lanes = program.lanes.iter().map(|&l| u32::from(l)).sum();
        let residency = self.kernel.residency(Geometry::THREADS, self.shared_bytes).map_err(refused)?;
        residency.check(lanes, self.limits.reserved_sms).map_err(refused)
    }
}

impl Session for Gpu {
    fn registry(&self) -> &Registry {
        &self.registry
    }

    fn load(&mut self, verified: &Verified) -> Result<(), RunError> {
        if self.known(verified).is_some() {
            return Ok(());
        }
        self.check(verified)?;
        let loaded = Loaded::new(verified, &self.context, &self.stream, self.bounds(), self.generation);
        self.loaded.push(loaded.map_err(refused)?);
        Ok(())
    }

    fn run(&mut self, verified: &Verified, bindings: &Bindings) -> Result<Bindings, RunError> {
        let at = self.find(verified)?;
        bindings.check(verified.program())?;
        let result = self.loaded[at].run(&self.kernel, &self.stream, self.shared_bytes, bindings);
        if matches!(result, Err(RunError::Fault(_) | RunError::Hardware(_))) {
            // What was under way may still land in the old memory: it is not used again.
            self.loaded.clear();
            self.generation += 1;
        }
        result
    }
}

fn refused(e: driver::Error) -> RunError {
    RunError::Hardware(Box::new(e.explain()))
}

fn hardware(e: Error) -> RunError {
    RunError::Hardware(Box::new(e.explain()))
}
