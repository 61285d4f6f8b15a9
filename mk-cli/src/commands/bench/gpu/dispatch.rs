//! What a task costs that does nothing: `nop` in compute streams, a `wait` for nothing in comm streams, all lanes at once.

use super::super::Measurement;
use super::super::rig::machine::{Machine, registry};
use super::super::rig::workload::Workload;
use super::difference::{Difference, Unit, point};
use crate::error::Failure;
use mk_compute::NopArgs;
use mk_core::{Error, Lane, Program, ProgramBuilder, Queue, Rank, Registry, SyncArgs};
use serde_json::json;

/// Tasks of each lane: the difference takes half a millisecond, of which the noise of a launch is a small part.
const LENGTHS: [u64; 2] = [200, 2_200];
/// Nanoseconds a task.
const STATIC_NS: f64 = 250.0;
const TICKET_NS: f64 = 450.0;
/// What the picture calls it.
pub(super) const PANEL: &str = "tasks that do nothing";

const RANK: Rank = Rank(0);

/// Where lanes take their tasks from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    Lanes,
    Tickets,
    CommLanes,
}

impl From {
    const ALL: [From; 3] = [From::Lanes, From::Tickets, From::CommLanes];

    fn name(self) -> &'static str {
        match self {
            From::Lanes => "static lanes",
            From::Tickets => "ticket queue",
            From::CommLanes => "static lanes, comm streams",
        }
    }

    fn bar(self) -> Option<f64> {
        match self {
            From::Lanes => Some(STATIC_NS),
            From::Tickets => Some(TICKET_NS),
            From::CommLanes => None,
        }
    }

    /// `each` tasks for each of so many lanes.
    pub(super) fn program(self, registry: &Registry, lanes: u16, each: u64) -> Result<Program, Error> {
        let mut b = ProgramBuilder::new("empty tasks", registry);
        b.lanes(RANK, lanes);
        let name = if self == From::CommLanes { "nvlink.wait" } else { "nop" };
        let (op, label) = (b.op(name)?, b.label(name));
        for _ in 0..each {
            for lane in 0..lanes {
                let queue = if self == From::Tickets { Queue::Ticket } else { Queue::Lane(Lane(lane)) };
                match self {
                    From::CommLanes => b.task(RANK, queue, op, label, &SyncArgs { peer: RANK })?,
                    _ => b.task(RANK, queue, op, label, &NopArgs { tag: 0 })?,
                };
            }
        }
        b.finish()
    }
}

/// Measures all of them.
pub(super) fn measure(m: &mut Measurement<'_, '_>, machine: &Machine) -> Result<(), Failure> {
    let (registry, lanes) = (registry(1)?, machine.lanes());
    for from in From::ALL {
        let workload = |each| -> Result<Workload, Failure> {
            Workload::bare(from.program(&registry, lanes, each)?, &registry, &machine.hardware)
        };
        let [short, long] = LENGTHS;
        let workloads = [workload(short)?, workload(long)?];
        let name = from.name();
        let run = |each| format!("run of {each} empty tasks a lane, {name}");
        let difference = Difference {
            names: [run(short), run(long), format!("dispatch of a task, {name}")],
            params: [
                point(PANEL, name, short),
                point(PANEL, name, long),
                json!({ "lanes": lanes, "tasks_a_lane": LENGTHS }),
            ],
            lengths: LENGTHS,
            unit: Unit::Nanoseconds,
            bar: from.bar(),
        };
        difference.measure(m, machine, &registry, &workloads)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mk_core::{Hardware, Stream};

    #[test]
    fn every_lane_has_its_tasks_and_the_programs_are_proved_and_run() {
        let registry = registry(1).unwrap();
        for from in From::ALL {
            let program = from.program(&registry, 7, 5).unwrap();
            assert_eq!((program.tasks.len(), program.lanes.as_slice()), (35, &[7][..]));
            let streams = if from == From::Tickets { 1 } else { 7 };
            assert_eq!(program.streams.len(), streams, "{from:?}");
            let comm = program.streams.iter().filter(|s| s.stream == Stream::Comm).count();
            assert_eq!(comm, if from == From::CommLanes { 7 } else { 0 });
            Workload::simulated(program, &registry, &Hardware::h200()).unwrap();
        }
    }

    #[test]
    fn a_lane_on_each_multiprocessor_is_proved() {
        let registry = registry(1).unwrap();
        for from in From::ALL {
            let program = from.program(&registry, 132, LENGTHS[0]).unwrap();
            Workload::bare(program, &registry, &Hardware::h200()).unwrap();
        }
    }
}
