//! The session on GPUs: proved programs, run by the persistent kernel.
//!
//! It runs what the simulator runs, unchanged: memory, signal words and epochs lie on the device, nothing is reset between runs,
//! and each run ends in a result or in one typed fault.
//!
//! ```no_run
//! use mk_core::{Bindings, Registry, Session as _, Verified};
//! use mk_kernel::{Gpu, Limits, driver::Driver};
//!
//! # fn example(registry: &Registry, program: &Verified, tensors: &Bindings) -> Result<(), Box<dyn std::error::Error>> {
//! let device = Driver::find()?.device(0)?;
//! let mut gpu = Gpu::open(registry, &device, Limits::default())?; // all ranks on one GPU
//! let results = gpu.run(program, tensors)?;
//! # Ok(())
//! # }
//! ```

mod bound;
mod builder;
mod faults;
mod host;
mod loaded;
mod memory;
mod place;
mod resident;
mod sabotage;
mod tables;
mod trace;

pub use bound::{Bound, DeviceTensor, DeviceTensors};
pub use builder::GpuBuilder;
#[doc(hidden)]
pub use sabotage::Sabotage;
#[doc(hidden)]
pub use trace::RoleEvent;

use crate::abi::{Bounds, LAUNCH_RANKS};
use crate::driver::{self, Device, Stream};
use crate::{Error, Source};
use bound::Later;
use loaded::{End, Loaded};
use mk_core::{Bindings, Error as Refused, Explanation, Rank, Registry, RunError, Session, Verified};
use place::Place;
use std::path::PathBuf;
use std::sync::PoisonError;
use trace::FailedRun;

/// How long things may take, in microseconds, and how many SMs other kernels keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The first wait of a rank in a run that is not met at once: the others may still be starting.
    pub start_us: u64,
    /// Any other wait.
    pub run_us: u64,
    /// A whole run, as the host sees it: then it tells the kernel to leave.
    pub whole_us: u64,
    /// How long a resident kernel stays without anything to do. It comes back by itself.
    pub idle_us: u64,
    /// The meeting of all processes, when a program is loaded.
    pub connect_us: u64,
    /// SMs that programs leave to other kernels.
    pub reserved_sms: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            start_us: 10_000_000,
            run_us: 2_000_000,
            whole_us: 60_000_000,
            idle_us: 1_000_000,
            connect_us: 30_000_000,
            reserved_sms: 0,
        }
    }
}

/// The clock that bounds are counted by, in SM clocks a microsecond: no Hopper runs faster, so no bound is cut short.
const CLOCKS_PER_US: u64 = 1_980;

fn clocks(us: u64) -> u64 {
    us.saturating_mul(CLOCKS_PER_US)
}

impl Limits {
    fn bounds(&self) -> Bounds {
        Bounds { start_clocks: clocks(self.start_us), run_clocks: clocks(self.run_us) }
    }
}

/// Programs on the GPUs of this process. A session of several programs shares them, one run at a time.
///
/// After a fault the memory of all programs is given up; the next run begins with fresh memory, signals and epochs, a new
/// generation. All processes of the world then begin it together.
pub struct Gpu {
    registry: Registry,
    source: Source,
    limits: Limits,
    folder: Option<PathBuf>,
    generation: u64,
    /// The kernel is one that traces.
    trace: bool,
    /// What the last run that failed did.
    failed: Option<FailedRun>,
    later: Later,
    /// A kernel did not leave: why nothing can be done any more.
    stuck: Option<Box<Explanation>>,
    // Dropped in this order.
    loaded: Vec<Loaded>,
    places: Vec<Place>,
}

impl Gpu {
    /// All ranks of the registry's world on one GPU: generates, compiles (or finds in the cache) and loads the kernel.
    ///
    /// # Errors
    /// A world of more ranks than one launch has; whatever [`Source::of`], [`Cache::build`](crate::Cache::build) and the driver
    /// say.
    pub fn open(registry: &Registry, device: &Device, limits: Limits) -> Result<Gpu, Error> {
        Gpu::builder(registry).all(device).limits(limits).open()
    }

    /// With ranks on several GPUs or in several processes, a resident kernel, machine code from elsewhere.
    pub fn builder(registry: &Registry) -> GpuBuilder<'_> {
        GpuBuilder::new(registry)
    }

    /// The generation of memory that is in use: one more after each fault.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The ranks of this process.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> {
        self.places.iter().flat_map(|p| p.ranks.iter().copied())
    }

    /// For tests of what happens then: breaks a loaded program in a way that a proof excludes.
    #[doc(hidden)]
    pub fn sabotage(&mut self, program: &Verified, how: Sabotage) -> Result<(), RunError> {
        let at = self.find(program)?;
        self.park()?;
        self.loaded[at].sabotage(&self.places, how).map_err(refused)
    }

    /// Binds the caller's own tensors, without a copy, for any number of runs. A region on the symmetric heap is not bound but
    /// filled in place: see [`Gpu::region`].
    ///
    /// # Errors
    /// A tensor that is missing, or does not begin at a multiple of 16 bytes; memory for tables; as [`Session::load`].
    ///
    /// # Safety
    /// Each tensor is memory of its rank's GPU with as many rows and columns as the region has, and stays so until the last
    /// run with it has ended.
    #[allow(unsafe_code, reason = "addresses are what the caller says")]
    pub unsafe fn bind(&mut self, program: &Verified, tensors: &DeviceTensors) -> Result<Bound, RunError> {
        let at = self.find(program)?;
        self.park()?;
        Bound::new(&self.loaded[at], &self.places, self.generation, &self.later, tensors)
    }

    /// Where a region of the symmetric heap lies on a rank of this process, in the next epoch: for the caller to fill, or to
    /// read what the last epoch has left.
    ///
    /// # Errors
    /// No such region or rank here; as [`Session::load`].
    pub fn region(&mut self, program: &Verified, rank: Rank, name: &str) -> Result<DeviceTensor, RunError> {
        let at = self.find(program)?;
        self.loaded[at].region(rank, name)
    }

    /// Starts a run behind all work so far on these streams, one for each GPU of this process, and does not wait. While a stream
    /// is captured, the run becomes a node of its graph, and each replay is a run. A resident kernel runs it without a stream.
    ///
    /// # Errors
    /// The binding is of another session or of an older generation; [`RunError::Busy`] if too many runs wait for the resident
    /// kernel; what the driver says.
    ///
    /// # Safety
    /// The streams are of the GPUs' contexts, in the order of the ranks. What is bound is not used by others, nor the binding
    /// dropped, until the run has ended; a graph is replayed only while this session and the binding live.
    #[allow(unsafe_code, reason = "what a kernel touches is what was bound")]
    pub unsafe fn launch(&mut self, bound: &Bound, streams: &[&Stream]) -> Result<(), RunError> {
        let at = self.of(bound)?;
        if streams.len() != self.places.len() && self.places.iter().all(|p| p.resident.is_none()) {
            return Err(Refused::input(
                "not as many streams as this process has GPUs",
                streams.len(),
                self.places.len().to_string(),
                "give one stream for each GPU, in the order of the ranks",
            )
            .into());
        }
        let streams = (!streams.is_empty()).then_some(streams);
        let started = self.loaded[at].start(bound, &mut self.places, streams, &self.limits);
        self.after(started)
    }

    /// Waits until every run of the program that was started here has ended.
    ///
    /// # Errors
    /// [`RunError::Busy`] if a run was refused since another one had not ended; a fault, after which all memory is given up;
    /// what the driver says.
    pub fn wait(&mut self, bound: &Bound) -> Result<(), RunError> {
        let at = self.of(bound)?;
        let ended = self.loaded[at].wait(&mut self.places, &self.limits);
        self.after(ended)
    }

    /// How many epochs have ended, replays of graphs included. Does not wait.
    ///
    /// # Errors
    /// As [`Gpu::wait`].
    pub fn outcome(&mut self, bound: &Bound) -> Result<u64, RunError> {
        let at = self.of(bound)?;
        let outcome = self.loaded[at].outcome(&mut self.places, &self.limits);
        self.after(outcome)
    }

    /// Lets the resident kernel leave, if there is one; the next run brings it back. Until then the GPU is free for others.
    ///
    /// # Errors
    /// It did not leave within its bound; what the driver says.
    pub fn park(&mut self) -> Result<(), RunError> {
        self.places.iter_mut().try_for_each(|p| p.park(&self.limits))?;
        self.later.lock().unwrap_or_else(PoisonError::into_inner).clear();
        Ok(())
    }

    /// After a fault nothing of the old memory is used again: what was under way may still land there.
    fn after<T>(&mut self, result: Result<T, RunError>) -> Result<T, RunError> {
        let error = match &result {
            Err(error @ (RunError::Fault(_) | RunError::Hardware(_))) => error,
            _ => return result,
        };
        self.generation += 1;
        if let RunError::Hardware(why) = error
            && is_stuck(error)
        {
            self.stuck = Some(why.clone());
            // To free what it uses would wait for it, for ever.
            std::mem::forget(std::mem::take(&mut self.loaded));
            return result;
        }
        self.failed = self.failed_run(&result);
        if let Err(RunError::Hardware(why)) = self.close_all() {
            self.stuck = Some(why);
            return result;
        }
        // If this fails, so does whatever comes next; the fault came first.
        let _ = self.places.iter_mut().try_for_each(Place::renew);
        result
    }

    /// Gives the memory of all programs back, once their last runs have ended: also of those that have not failed. What a kernel
    /// that stays may use is kept.
    fn close_all(&mut self) -> Result<(), RunError> {
        let loaded = std::mem::take(&mut self.loaded);
        let ends: Result<Vec<End>, RunError> =
            loaded.iter().map(|l| l.close(&mut self.places, &self.limits)).collect();
        let closed = ends.and_then(|ends| if ends.contains(&End::GivenUp) { Ok(()) } else { self.park() });
        if closed.is_err() {
            std::mem::forget(loaded);
        }
        closed
    }

    fn usable(&self) -> Result<(), RunError> {
        self.stuck.as_ref().map_or(Ok(()), |why| Err(RunError::Hardware(why.clone())))
    }

    fn of(&self, bound: &Bound) -> Result<usize, RunError> {
        self.usable()?;
        if bound.generation != self.generation {
            return Err(Refused::input(
                "the tensors were bound before a fault",
                format!("generation {}", bound.generation),
                format!("generation {}", self.generation),
                "bind them again: memory was given up with the fault",
            )
            .into());
        }
        self.known(&bound.program).ok_or_else(|| {
            Refused::input(
                "the tensors were bound in another session",
                &bound.program.program().name,
                "a binding of this session",
                "bind them here",
            )
            .into()
        })
    }

    /// The place of a program among those that are loaded.
    fn find(&mut self, verified: &Verified) -> Result<usize, RunError> {
        self.usable()?;
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
        if let Some(rank) = self.ranks().find(|r| u32::from(r.0) >= program.ranks) {
            return Err(Refused::input(
                "the session has a rank that the world has not",
                rank.to_string(),
                format!("ranks 0..{}", program.ranks),
                "open it with ranks of the registry's world: GpuBuilder::rank",
            )
            .into());
        }
        self.source.check(verified).map_err(|e| RunError::Hardware(Box::new(e.explain())))?;
        self.places.iter().try_for_each(|p| p.check(program, self.limits.reserved_sms)).map_err(refused)
    }
}

impl Session for Gpu {
    fn registry(&self) -> &Registry {
        &self.registry
    }

    fn load(&mut self, verified: &Verified) -> Result<(), RunError> {
        self.usable()?;
        if self.known(verified).is_some() {
            return Ok(());
        }
        self.check(verified)?;
        self.park()?;
        let mut loaded = Loaded::new(
            verified,
            &self.registry,
            &self.places,
            &self.limits,
            self.generation,
            self.folder.as_deref(),
        )?;
        if self.trace {
            loaded.take_rings(&self.places).map_err(refused)?;
        }
        self.loaded.push(loaded);
        Ok(())
    }

    fn run(&mut self, verified: &Verified, bindings: &Bindings) -> Result<Bindings, RunError> {
        let at = self.find(verified)?;
        bindings.check_on(verified.program(), self.ranks())?;
        let result =
            self.loaded[at].run(&mut self.places, &self.limits, (self.generation, &self.later), bindings);
        self.after(result)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // What kernels use is freed next, unless one of them stays: to free it would wait for that, for ever.
        if self.close_all().is_err() || self.stuck.is_some() {
            std::mem::forget(std::mem::take(&mut self.places));
            std::mem::forget(std::mem::take(&mut self.later));
        }
    }
}

fn is_stuck(error: &RunError) -> bool {
    matches!(error, RunError::Hardware(why) if why.kind == STUCK)
}

/// The kind of an error after which a kernel is still on a GPU.
const STUCK: &str = "stuck";

fn refused(e: driver::Error) -> RunError {
    RunError::Hardware(Box::new(e.explain()))
}

/// More ranks than a launch has.
fn too_many(ranks: usize, device: &Device) -> Error {
    Error::TooManyRanks { ranks, device: device.to_string(), allowed: LAUNCH_RANKS }
}
