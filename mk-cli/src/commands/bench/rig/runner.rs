//! A session on the GPU, and workloads bound to memory in it: bound once, launched and waited for many times.

#![allow(unsafe_code, reason = "what is bound and launched is the caller's promise")]

use super::machine::Machine;
use super::workload::Workload;
use crate::error::{Exit, Failure};
use crate::gpu::How;
use mk_core::{Bindings, Explanation, Io, Rank, RegionKind, Registry, RunError, Session, Tensor, Verified};
use mk_kernel::driver::{self, Context, DeviceMemory, Event, Memory as _, Stream};
use mk_kernel::{Bound, DeviceTensor, DeviceTensors, Gpu, Limits, Sabotage};
use std::time::{Duration, Instant};

/// What outputs hold before a run: in every type of real numbers a NaN.
const POISON: u8 = 0xff;
/// Runs before the first that counts, and how long they take at least: clocks rise, and caches fill.
const WARM_UP_RUNS: usize = 5;
const WARM_UP: Duration = Duration::from_millis(20);
/// A batch of runs takes about so long.
const BATCH_US: f64 = 4_000.0;
const MOST_RUNS: f64 = 40.0;
/// How long a run is looked for without giving the core away. What takes longer is not measured by the microsecond.
const PATIENCE: Duration = Duration::from_millis(100);

/// See the module.
pub(in crate::commands::bench) struct Runner {
    gpu: Gpu,
    pub(in crate::commands::bench) stream: Stream,
    pub(in crate::commands::bench) context: Context,
}

/// A workload, bound.
pub(in crate::commands::bench) struct Work {
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
    pub(in crate::commands::bench) fn open(
        machine: &Machine,
        registry: &Registry,
        limits: Limits,
        how: How,
    ) -> Result<Runner, Failure> {
        let gpu = machine.gpu.session(registry, limits, how)?;
        let context = machine.gpu.device().context()?;
        Ok(Runner { gpu, stream: Stream::new(&context)?, context })
    }

    /// One run on tensors of the host.
    pub(in crate::commands::bench) fn run(&mut self, workload: &Workload) -> Result<Bindings, Failure> {
        Ok(Session::run(&mut self.gpu, &workload.program, &workload.tensors)?)
    }

    /// Takes memory for a workload, and fills it.
    pub(in crate::commands::bench) fn bind(&mut self, workload: &Workload) -> Result<Work, Failure> {
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
    pub(in crate::commands::bench) fn launch(&mut self, work: &Work) -> Result<(), RunError> {
        // SAFETY: the stream is of the GPU's context; nobody else uses what is bound.
        unsafe { self.gpu.launch(&work.bound, &[&self.stream]) }
    }

    /// Waits for all runs.
    pub(in crate::commands::bench) fn wait(&mut self, work: &Work) -> Result<(), RunError> {
        self.gpu.wait(&work.bound)
    }

    /// Breaks a program: what is bound afterwards is broken.
    pub(in crate::commands::bench) fn sabotage(
        &mut self,
        workload: &Workload,
        how: Sabotage,
    ) -> Result<(), RunError> {
        self.gpu.sabotage(&workload.program, how)
    }

    /// A resident kernel leaves.
    pub(in crate::commands::bench) fn park(&mut self) -> Result<(), RunError> {
        self.gpu.park()
    }

    /// Microseconds of a run, from the launch until the host sees that it has ended.
    ///
    /// [`Gpu::wait`] looks every few dozen microseconds once it has waited for long, so it is asked last.
    pub(in crate::commands::bench) fn time(&mut self, work: &Work) -> Result<f64, Failure> {
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
    pub(in crate::commands::bench) fn alternate(
        &mut self,
        works: &[Work; 2],
        samples: u16,
    ) -> Result<[Vec<f64>; 2], Failure> {
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

    /// Microseconds of a run, of so many that follow each other on the stream, by the GPU's clock.
    pub(in crate::commands::bench) fn follow(&mut self, work: &Work, runs: u32) -> Result<f64, Failure> {
        let events = self.enclosed(runs, |runner| Ok(runner.launch(work)?))?;
        self.wait(work)?;
        between(&events, runs)
    }

    /// The same of something else that `start` starts.
    pub(in crate::commands::bench) fn follow_other(
        &mut self,
        runs: u32,
        mut start: impl FnMut() -> Result<(), Failure>,
    ) -> Result<f64, Failure> {
        between(&self.enclosed(runs, |_| start())?, runs)
    }

    /// Starts so many runs; the events before and behind them.
    fn enclosed(
        &mut self,
        runs: u32,
        mut start: impl FnMut(&mut Runner) -> Result<(), Failure>,
    ) -> Result<[Event; 2], Failure> {
        let events = [Event::timed(&self.context)?, Event::timed(&self.context)?];
        self.stream.record(&events[0])?;
        (0..runs).try_for_each(|_| start(self))?;
        self.stream.record(&events[1])?;
        Ok(events)
    }

    /// Memory for something else, filled with what no run leaves there.
    pub(in crate::commands::bench) fn memory(&self, bytes: u64) -> Result<DeviceMemory, Failure> {
        let memory = DeviceMemory::new(&self.context, bytes)?;
        self.stream.fill(&memory, POISON)?;
        Ok(memory)
    }

    /// Puts other numbers into the inputs of rank 0.
    pub(in crate::commands::bench) fn refill(&self, work: &Work, tensors: &Bindings) -> Result<(), Failure> {
        for (memory, name) in
            work.held.iter().filter(|h| h.rank == Rank(0)).map(|h| (&h.memory, work.name(h)))
        {
            if let Some(tensor) = tensors.get(Rank(0), name) {
                self.stream.upload(memory, 0, &tensor.bytes)?;
            }
        }
        Ok(())
    }

    /// Makes outputs something that no run leaves there.
    pub(in crate::commands::bench) fn poison(&self, work: &Work) -> Result<(), Failure> {
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
    /// The memory of a region on rank 0.
    pub(in crate::commands::bench) fn memory(&self, name: &str) -> Option<&DeviceMemory> {
        self.held.iter().find(|h| h.rank == Rank(0) && self.name(h) == name).map(|h| &h.memory)
    }

    /// Lanes that rank 0 uses.
    pub(in crate::commands::bench) fn lanes(&self) -> u16 {
        self.program.program().lanes.first().copied().unwrap_or(0)
    }

    fn name(&self, held: &Held) -> &str {
        &self.program.program().regions[held.region].name
    }

    fn outputs(&self) -> impl Iterator<Item = &Held> {
        self.held.iter().filter(|h| self.program.program().regions[h.region].io == Io::Output)
    }
}

/// How many runs of so many microseconds are measured as one batch.
pub(in crate::commands::bench) fn runs_of_batch(us: f64) -> u32 {
    (BATCH_US / us).clamp(1.0, MOST_RUNS).round() as u32
}

/// The error of results that are not right.
pub(in crate::commands::bench) fn wrong(program: &str, place: &str) -> Failure {
    let says = Explanation {
        kind: "wrong",
        message: format!("the results of '{program}' are wrong: {place}"),
        given: String::new(),
        allowed: "the bits of the reference".into(),
        hint: "what is wrong is not measured: see `mk selftest --require gpu`".into(),
    };
    Failure::new(Exit::Wrong, says)
}

fn between([start, end]: &[Event; 2], runs: u32) -> Result<f64, Failure> {
    end.synchronize()?;
    Ok(f64::from(end.milliseconds_since(start)?) * 1e3 / f64::from(runs))
}

/// A time in microseconds.
pub(in crate::commands::bench) fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}
