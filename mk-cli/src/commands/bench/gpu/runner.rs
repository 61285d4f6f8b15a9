//! A session on the GPU, and workloads bound to memory in it: bound once, launched and waited for many times.

#![allow(unsafe_code, reason = "what is bound and launched is the caller's promise")]

use super::machine::Machine;
use super::workload::Workload;
use crate::error::{Exit, Failure};
use crate::gpu::How;
use mk_core::{Bindings, Explanation, Io, Rank, RegionKind, Registry, RunError, Tensor, Verified};
use mk_kernel::driver::{self, Context, DeviceMemory, Memory as _, Stream};
use mk_kernel::{Bound, DeviceTensor, DeviceTensors, Gpu, Limits, Sabotage};
use std::time::{Duration, Instant};

/// What outputs hold before a run: in every type of real numbers a NaN.
const POISON: u8 = 0xff;
/// Runs before the first that counts, and how long they take at least: clocks rise, and caches fill.
const WARM_UP_RUNS: usize = 5;
const WARM_UP: Duration = Duration::from_millis(20);
/// How long a run is looked for without giving the core away. What takes longer is not measured by the microsecond.
const PATIENCE: Duration = Duration::from_millis(100);

/// See the module.
pub(super) struct Runner {
    gpu: Gpu,
    pub(super) stream: Stream,
    context: Context,
}

/// A workload, bound.
pub(super) struct Work {
    bound: Bound,
    program: Verified,
    held: Vec<Held>,
    want: Bindings,
}

/// Memory of a region on a rank.
struct Held {
    rank: Rank,
    region: usize,
    memory: DeviceMemory,
}

impl Runner {
    /// All ranks of the registry's world on the GPU.
    ///
    /// # Errors
    /// Those of compiler and driver.
    pub(super) fn open(
        machine: &Machine,
        registry: &Registry,
        limits: Limits,
        resident: bool,
    ) -> Result<Runner, Failure> {
        let how = if resident { How::Resident } else { How::Launched };
        let gpu = machine.gpu.session(registry, limits, how)?;
        let context = machine.gpu.device().context()?;
        Ok(Runner { gpu, stream: Stream::new(&context)?, context })
    }

    /// Takes memory for a workload, and fills it.
    pub(super) fn bind(&mut self, workload: &Workload) -> Result<Work, Failure> {
        let held = self.hold(workload)?;
        let program = workload.program.program();
        let mut tensors = DeviceTensors::new();
        for Held { rank, region, memory } in &held {
            let region = &program.regions[*region];
            let pitch_bytes = region.extent(*rank)[1] * region.dtype.bytes();
            tensors.set(*rank, &region.name, DeviceTensor { address: memory.address(), pitch_bytes });
        }
        // SAFETY: each tensor is as large as its region, and lives in the work, which waits for its runs.
        let bound = unsafe { self.gpu.bind(&workload.program, &tensors) }?;
        Ok(Work { bound, program: workload.program.clone(), held, want: workload.want.clone() })
    }

    fn hold(&self, workload: &Workload) -> Result<Vec<Held>, driver::Error> {
        let mut held = Vec::new();
        let program = workload.program.program();
        let bound = |(_, r): &(usize, &mk_core::Region)| r.kind == RegionKind::Bound;
        for (i, region) in program.regions.iter().enumerate().filter(bound) {
            for rank in (0..program.ranks).map(|r| Rank(r as u16)) {
                let [rows, cols] = region.extent(rank);
                let memory = DeviceMemory::new(&self.context, rows * cols * region.dtype.bytes())?;
                match workload.tensors.get(rank, &region.name) {
                    Some(tensor) => self.stream.upload(&memory, 0, &tensor.bytes)?,
                    None => self.stream.fill(&memory, POISON)?,
                }
                held.push(Held { rank, region: i, memory });
            }
        }
        Ok(held)
    }

    /// Starts a run.
    pub(super) fn launch(&mut self, work: &Work) -> Result<(), RunError> {
        // SAFETY: the stream is of the GPU's context; nobody else uses what is bound.
        unsafe { self.gpu.launch(&work.bound, &[&self.stream]) }
    }

    /// Waits for all runs.
    pub(super) fn wait(&mut self, work: &Work) -> Result<(), RunError> {
        self.gpu.wait(&work.bound)
    }

    /// Breaks a program: what is bound afterwards is broken.
    pub(super) fn sabotage(&mut self, workload: &Workload, how: Sabotage) -> Result<(), RunError> {
        self.gpu.sabotage(&workload.program, how)
    }

    /// A resident kernel leaves.
    pub(super) fn park(&mut self) -> Result<(), RunError> {
        self.gpu.park()
    }

    /// Microseconds of a run, from the launch until the host sees that it has ended.
    ///
    /// [`Gpu::wait`] looks every few dozen microseconds once it has waited for long, so it is asked last.
    pub(super) fn time(&mut self, work: &Work) -> Result<f64, Failure> {
        // The kernel of the last run has ended its epoch, but may not have left.
        self.stream.synchronize()?;
        let before = self.gpu.outcome(&work.bound)?;
        let start = Instant::now();
        self.launch(work)?;
        while self.gpu.outcome(&work.bound)? == before && start.elapsed() < PATIENCE {
            std::hint::spin_loop();
        }
        self.wait(work)?;
        Ok(micros(start.elapsed()))
    }

    /// Microseconds of so many runs of two workloads, in turn, so that both meet the same clocks; what came out is compared.
    pub(super) fn alternate(&mut self, works: &[Work; 2], samples: u16) -> Result<[Vec<f64>; 2], Failure> {
        let start = Instant::now();
        let mut runs = 0;
        while runs < WARM_UP_RUNS || start.elapsed() < WARM_UP {
            works.iter().try_for_each(|w| self.time(w).map(drop))?;
            runs += 1;
        }
        works.iter().try_for_each(|w| self.poison(w))?;
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..samples {
            for (times, work) in times.iter_mut().zip(works) {
                times.push(self.time(work)?);
            }
        }
        works.iter().try_for_each(|w| self.check(w))?;
        Ok(times)
    }

    /// Makes outputs something that no run leaves there.
    fn poison(&self, work: &Work) -> Result<(), Failure> {
        let mut outputs = work.outputs();
        Ok(outputs.try_for_each(|held| self.stream.fill(&held.memory, POISON))?)
    }

    /// Compares what the last run has left with what must come out.
    fn check(&self, work: &Work) -> Result<(), Failure> {
        for held in work.outputs() {
            let region = &work.program.program().regions[held.region];
            let [rows, cols] = region.extent(held.rank);
            let mut got = Tensor::zeros(region.dtype, rows, cols);
            self.stream.download(&held.memory, 0, &mut got.bytes)?;
            if work.want.get(held.rank, &region.name) != Some(&got) {
                let place = format!("'{}' on {}", region.name, held.rank);
                return Err(wrong(&work.program.program().name, &place));
            }
        }
        Ok(())
    }
}

impl Work {
    fn outputs(&self) -> impl Iterator<Item = &Held> {
        self.held.iter().filter(|h| self.program.program().regions[h.region].io == Io::Output)
    }
}

fn wrong(program: &str, place: &str) -> Failure {
    let says = Explanation {
        kind: "wrong",
        message: format!("the results of '{program}' are wrong: {place}"),
        given: String::new(),
        allowed: "the bits of the reference".into(),
        hint: "what is wrong is not measured: see `mk selftest --require gpu`".into(),
    };
    Failure::new(Exit::Wrong, says)
}

/// A time in microseconds.
pub(super) fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}
