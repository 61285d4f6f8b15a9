//! How long it takes from the bound of a wait that is never met until the caller has the typed error.

use super::super::Measurement;
use super::super::record::Case;
use super::super::rig::machine::{Machine, registry};
use super::super::rig::runner::Runner;
use super::super::rig::workload::Workload;
use super::hops::Tasks;
use crate::error::{Exit, Failure, internal};
use crate::gpu::How;
use mk_core::{Rank, Reason, RunError};
use mk_kernel::{Limits, Sabotage};
use serde_json::json;
use std::time::{Duration, Instant};

/// The bound of every wait.
const BOUND_MS: u64 = 100;
/// Milliseconds from then on.
const BAR_MS: f64 = 1_000.0;
/// Signals of the program of which those to one rank are lost.
const HOPS: u64 = 4;

/// Measures a launch a run, and a kernel that stays.
pub(super) fn measure(m: &mut Measurement<'_, '_>, machine: &Machine) -> Result<(), Failure> {
    for (resident, name) in [(false, "launch a run"), (true, "resident kernel")] {
        let times = {
            let _step = m.step(format!("waits that are never met, {name}"));
            times(machine, resident, m.samples())?
        };
        let name = format!("typed error of a wait that is never met, after its bound, {name}");
        m.keep(Case::new(name, json!({ "ranks": 2, "bound_ms": BOUND_MS }), "ms", times).at_most(BAR_MS));
    }
    Ok(())
}

fn times(machine: &Machine, resident: bool, samples: u16) -> Result<Vec<f64>, Failure> {
    let registry = registry(2)?;
    let program = Tasks::Compute.program(&registry, HOPS)?;
    let workload = Workload::bare(program, &registry, &machine.hardware)?;
    let (start_us, run_us) = (BOUND_MS * 1_000, BOUND_MS * 1_000);
    let limits = Limits { start_us, run_us, ..Limits::default() };
    let how = if resident { How::Resident } else { How::Launched };
    let mut runner = Runner::open(machine, &registry, limits, how)?;
    (0..samples).map(|_| time(&mut runner, &workload)).collect()
}

/// Milliseconds that the error comes after the bound. The session begins anew afterwards.
fn time(runner: &mut Runner, workload: &Workload) -> Result<f64, Failure> {
    runner.sabotage(workload, Sabotage::LosePostsTo(Rank(1)))?;
    let work = runner.bind(workload)?;
    let start = Instant::now();
    runner.launch(&work)?;
    let ended = runner.wait(&work);
    let late = start.elapsed().saturating_sub(Duration::from_millis(BOUND_MS));
    match ended {
        Err(RunError::Fault(fault)) if matches!(fault.reason, Reason::Timeout(_)) => {
            Ok(late.as_secs_f64() * 1e3)
        }
        Err(other) => Err(other.into()),
        Ok(()) => {
            let what = "a run ended well although the signals to a rank were lost";
            Err(Failure::new(Exit::Internal, internal(what.into())))
        }
    }
}
