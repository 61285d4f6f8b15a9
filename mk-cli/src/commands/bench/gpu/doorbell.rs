//! What starting a run costs: the round trip from the host to all lanes and back, through a kernel that stays and by a launch a
//! run; and the part of it for which the host is busy.

use super::super::Measurement;
use super::super::record::Case;
use super::super::rig::machine::{Machine, registry};
use super::super::rig::runner::{Runner, Work, micros};
use super::super::rig::workload::Workload;
use super::dispatch::From;
use crate::error::Failure;
use crate::gpu::How;
use mk_core::Registry;
use mk_kernel::Limits;
use serde_json::json;
use std::time::Instant;

/// The round trip by doorbell, over that of a launch.
const ROUND_TRIP: f64 = 0.65;
/// Microseconds of a launch of what is planned and bound.
const LAUNCH_US: f64 = 10.0;
/// Runs before the first that counts.
const WARM_UP: u16 = 50;

/// Microseconds of runs, and of the launch in each.
#[derive(Default)]
struct Trips {
    launch: Vec<f64>,
    whole: Vec<f64>,
}

/// How the host learns that a run has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The kernel tells it.
    Told,
    /// The driver is asked until the stream has nothing left.
    Synchronised,
}

impl Trips {
    fn measure(runner: &mut Runner, work: &Work, end: End, samples: u16) -> Result<Trips, Failure> {
        let mut trips = Trips::default();
        for sample in 0..WARM_UP + samples {
            runner.stream.synchronize()?;
            let start = Instant::now();
            runner.launch(work)?;
            let launched = start.elapsed();
            match end {
                End::Told => runner.wait(work)?,
                End::Synchronised => runner.stream.synchronize()?,
            }
            let ended = start.elapsed();
            runner.wait(work)?;
            if sample >= WARM_UP {
                trips.launch.push(micros(launched));
                trips.whole.push(micros(ended));
            }
        }
        Ok(trips)
    }
}

/// Measures both.
pub(super) fn measure(m: &mut Measurement<'_, '_>, machine: &Machine) -> Result<(), Failure> {
    let (registry, samples) = (registry(1)?, m.many_samples());
    let workload = workload(&registry, machine)?;
    let _step = m.step("launches and doorbells");
    let mut runner = Runner::open(machine, &registry, Limits::default(), How::Launched)?;
    let work = runner.bind(&workload)?;
    let launched = Trips::measure(&mut runner, &work, End::Told, samples)?;
    let synchronised = Trips::measure(&mut runner, &work, End::Synchronised, samples)?;
    drop((work, runner));
    // The kernel that stays takes all multiprocessors, so it comes when launches have been measured.
    let mut runner = Runner::open(machine, &registry, Limits::default(), How::Resident)?;
    let work = runner.bind(&workload)?;
    let rung = Trips::measure(&mut runner, &work, End::Told, samples)?;
    runner.park()?;
    drop(_step);
    let params = json!({ "lanes": machine.lanes(), "tasks_a_lane": 1 });
    let case = |name: &str, times: Vec<f64>| Case::new(name, params.clone(), "us", times);
    let round_trip = case("empty run on all lanes and back, resident kernel", rung.whole)
        .against("launch and wait", launched.whole.clone())
        .against("launch and synchronise the stream", synchronised.whole.clone());
    for case in [
        case("empty run on all lanes and back, launch and wait", launched.whole),
        case("empty run on all lanes and back, launch and synchronise the stream", synchronised.whole),
        round_trip.at_most(ROUND_TRIP),
        case("host time of a launch, planned and bound", launched.launch).at_most(LAUNCH_US),
        case("host time of a run for the resident kernel, planned and bound", rung.launch).at_most(LAUNCH_US),
    ] {
        m.keep(case);
    }
    Ok(())
}

/// One task a lane that does nothing.
fn workload(registry: &Registry, machine: &Machine) -> Result<Workload, Failure> {
    Workload::bare(From::Lanes.program(registry, machine.lanes(), 1)?, registry, &machine.hardware)
}
