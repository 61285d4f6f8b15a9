//! What a signal takes from a task that posts to a task on another rank that waits: a chain that goes back and forth.

use super::super::Measurement;
use super::super::rig::machine::{Machine, registry};
use super::super::rig::workload::Workload;
use super::difference::{Difference, Unit, point};
use crate::error::Failure;
use mk_compute::NopArgs;
use mk_core::{
    Error, Lane, PostTo, Program, ProgramBuilder, Queue, Rank, Registry, SignalKind, SyncArgs, WaitFor,
};
use serde_json::json;

/// Signals of a run: the difference takes about two milliseconds.
const LENGTHS: [u64; 2] = [100, 2_100];
/// What the picture calls it.
pub(super) const PANEL: &str = "signals, one after the other";

/// Whose waits and posts they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tasks {
    Compute,
    Comm,
}

impl Tasks {
    const ALL: [Tasks; 2] = [Tasks::Compute, Tasks::Comm];

    fn name(self) -> &'static str {
        match self {
            Tasks::Compute => "compute tasks",
            Tasks::Comm => "comm tasks",
        }
    }

    /// Task `j` runs on rank `j % 2`, waits for that before it, and posts to the next.
    pub(super) fn program(self, registry: &Registry, hops: u64) -> Result<Program, Error> {
        let mut b = ProgramBuilder::new("signals", registry);
        let name = if self == Tasks::Comm { "nvlink.signal" } else { "nop" };
        let (op, label) = (b.op(name)?, b.label("hop"));
        let signal = b.signal("hops", SignalKind::Add, hops)?;
        for j in 0..=hops {
            let [rank, peer] = [j, j + 1].map(|j| Rank((j % 2) as u16));
            let queue = Queue::Lane(Lane(0));
            let task = match self {
                Tasks::Compute => b.task(rank, queue, op, label, &NopArgs { tag: 0 })?,
                Tasks::Comm => b.task(rank, queue, op, label, &SyncArgs { peer })?,
            };
            if j > 0 {
                b.wait(task, WaitFor::all(signal, j - 1))?;
            }
            if j < hops {
                b.post(task, PostTo::done(peer, signal, j))?;
            }
        }
        b.finish()
    }
}

/// Measures both.
pub(super) fn measure(m: &mut Measurement<'_, '_>, machine: &Machine) -> Result<(), Failure> {
    let registry = registry(2)?;
    for tasks in Tasks::ALL {
        let workload = |hops| -> Result<Workload, Failure> {
            Workload::bare(tasks.program(&registry, hops)?, &registry, &machine.hardware)
        };
        let [short, long] = LENGTHS;
        let workloads = [workload(short)?, workload(long)?];
        let name = tasks.name();
        let run = |hops| format!("chain of {hops} signals, {name}");
        let difference = Difference {
            names: [run(short), run(long), format!("signal to a task of another rank on the GPU, {name}")],
            params: [
                point(PANEL, name, short),
                point(PANEL, name, long),
                json!({ "ranks": 2, "signals": LENGTHS }),
            ],
            lengths: LENGTHS,
            unit: Unit::Nanoseconds,
            bar: None,
        };
        difference.measure(m, machine, &registry, &workloads)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mk_core::Hardware;

    #[test]
    fn a_chain_visits_the_ranks_in_turn_and_is_proved_and_runs() {
        let registry = registry(2).unwrap();
        for tasks in Tasks::ALL {
            let program = tasks.program(&registry, 9).unwrap();
            let lengths: Vec<u32> = program.streams.iter().map(|s| s.len).collect();
            assert_eq!(lengths, [5, 5], "{tasks:?}");
            let posts: usize = program.tasks.iter().map(|t| t.posts().count()).sum();
            assert_eq!(posts, 9);
            Workload::simulated(program, &registry, &Hardware::h200()).unwrap();
        }
    }

    #[test]
    fn a_chain_of_full_length_is_proved() {
        let registry = registry(2).unwrap();
        for tasks in Tasks::ALL {
            let program = tasks.program(&registry, LENGTHS[1]).unwrap();
            Workload::bare(program, &registry, &Hardware::h200()).unwrap();
        }
    }

    /// In the simulator a hop costs what the profile says, so a chain that did not wait would be shorter.
    #[test]
    fn hops_are_made_one_after_the_other() {
        use mk_core::{Bindings, Session as _};
        let registry = registry(2).unwrap();
        let hardware = Hardware::h200();
        for tasks in Tasks::ALL {
            let ns = |hops| {
                let program = tasks.program(&registry, hops).unwrap().verify(&registry, &hardware).unwrap();
                let mut simulator = mk_sim::Simulator::builder(&registry).build();
                simulator.run(&program, &Bindings::new()).unwrap();
                simulator.report().time_ns as f64
            };
            let each_ns = (ns(120) - ns(20)) / 100.0;
            assert!(each_ns >= hardware.nvlink_latency_ns, "{tasks:?}: {each_ns} ns");
        }
    }
}
