//! What a simulator is built with.

use crate::checks::Checks;
use crate::faults::Faults;
use crate::session::Simulator;
use mk_core::{Hardware, Registry};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// What is simulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Values and time: handlers' models run on real bytes.
    #[default]
    Data,
    /// Time only: sizes move, bytes do not, no memory is needed and no tensors are looked at or given back.
    Timing,
}

/// Is told how far a run is: tasks that have ended, and tasks in all.
pub type Progress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// A [`Progress`], or none.
#[derive(Clone, Default)]
pub(crate) struct Listener(pub(crate) Option<Progress>);

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "a listener" } else { "nobody" })
    }
}

/// Builds a [`Simulator`]. See [`Simulator::builder`].
#[derive(Clone, Debug)]
pub struct SimulatorBuilder {
    pub(crate) registry: Registry,
    pub(crate) hardware: Hardware,
    pub(crate) mode: Mode,
    pub(crate) seed: u64,
    pub(crate) faults: Faults,
    pub(crate) checks: Checks,
    pub(crate) trace: bool,
    pub(crate) run_bound_us: u64,
    pub(crate) heartbeat_us: u64,
    pub(crate) progress: Listener,
}

/// Five seconds: as long as a session on GPUs waits, unless told otherwise.
const RUN_BOUND_US: u64 = 5_000_000;
/// A tenth of a second: hosts tell each other that they live more often than that.
const HEARTBEAT_US: u64 = 100_000;
/// A year: times in picoseconds then stay far below 2^64.
const LONGEST_US: u64 = 1_000_000_000_000;

impl SimulatorBuilder {
    pub(crate) fn new(registry: &Registry) -> SimulatorBuilder {
        SimulatorBuilder {
            registry: registry.clone(),
            hardware: Hardware::h200(),
            mode: Mode::Data,
            seed: 0,
            faults: Faults::default(),
            checks: Checks::all(),
            trace: false,
            run_bound_us: RUN_BOUND_US,
            heartbeat_us: HEARTBEAT_US,
            progress: Listener::default(),
        }
    }

    /// The machine; an H200 without this call.
    #[must_use]
    pub fn hardware(self, hardware: Hardware) -> Self {
        SimulatorBuilder { hardware, ..self }
    }

    /// Values and time, or time only.
    #[must_use]
    pub fn mode(self, mode: Mode) -> Self {
        SimulatorBuilder { mode, ..self }
    }

    /// The seed of the order of events. 0, as without this call: durations are exact, two tasks of a stream overlap, and
    /// events of one time happen in the order in which they were caused. Any other seed varies durations, the overlap
    /// (none, two or four tasks), when ranks begin, and which of two events of one time comes first.
    #[must_use]
    pub fn schedule_seed(self, seed: u64) -> Self {
        SimulatorBuilder { seed, ..self }
    }

    /// What goes wrong.
    #[must_use]
    pub fn faults(self, faults: Faults) -> Self {
        SimulatorBuilder { faults, ..self }
    }

    /// Which detectors are on; all of them without this call.
    #[must_use]
    pub fn checks(self, checks: Checks) -> Self {
        SimulatorBuilder { checks, ..self }
    }

    /// Whether to record a [`Trace`](crate::Trace).
    #[must_use]
    pub fn trace(self, trace: bool) -> Self {
        SimulatorBuilder { trace, ..self }
    }

    /// How long a wait may take, in microseconds of simulated time; five seconds without this call.
    #[must_use]
    pub fn run_bound_us(self, run_bound_us: u64) -> Self {
        SimulatorBuilder { run_bound_us: run_bound_us.clamp(1, LONGEST_US), ..self }
    }

    /// After how much silence a rank is lost, in microseconds of simulated time; a tenth of a second without this call.
    #[must_use]
    pub fn heartbeat_us(self, heartbeat_us: u64) -> Self {
        SimulatorBuilder { heartbeat_us: heartbeat_us.min(LONGEST_US), ..self }
    }

    /// Who is told how far a run is, about a hundred times a run.
    ///
    /// ```
    /// # use mk_core::{Registry, World};
    /// # let registry = Registry::builder().build(&World::local(1)?)?;
    /// let bar = std::sync::Arc::new(|done: u64, all: u64| eprint!("\r{done} of {all} tasks"));
    /// let sim = mk_sim::Simulator::builder(&registry).progress(bar).build();
    /// # Ok::<(), mk_core::Error>(())
    /// ```
    #[must_use]
    pub fn progress(self, progress: Progress) -> Self {
        SimulatorBuilder { progress: Listener(Some(progress)), ..self }
    }

    /// The simulator. Its faults are checked when it runs.
    pub fn build(self) -> Simulator {
        Simulator::new(self)
    }
}
