//! `mk doctor`: what this machine has, and what to do about what it lacks.
//!
//! It looks and changes nothing. Libraries are loaded, and the driver is asked for its GPUs, in processes of their own (`probe`),
//! and nothing waits without a bound: whatever is broken on the machine is a line of the answer.

mod check;
mod gpu;
mod launcher;
mod library;
mod links;
mod machine;
mod network;
mod probe;
mod search;
mod simulator;

use crate::args::{DoctorArgs, Requirement};
use crate::console::Console;
use crate::error::{Exit, Failure};
use check::{Check, Group, Status};
use machine::Machine;
use mk_core::Explanation;
use serde::Serialize;

/// What the command answers.
#[derive(Serialize)]
struct Diagnosis {
    command: &'static str,
    ready: Ready,
    checks: Vec<Check>,
}

/// What nothing is missing for.
#[derive(Serialize)]
struct Ready {
    simulator: bool,
    gpu: bool,
    rdma: bool,
}

/// The release of NVIDIA's driver, where its kernel module is loaded.
pub(crate) fn driver_release() -> Option<String> {
    gpu::release(&Machine::here())
}

/// `mk doctor`.
pub(crate) fn doctor(args: &DoctorArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    if let Some(path) = probe::asked() {
        return probe::answer(&path, console);
    }
    let checks = {
        let _step = console.step("looking");
        let here = Machine::here();
        [simulator::checks(&here), gpu::checks(&here), network::checks(&here), launcher::checks(&here)]
            .concat()
    };
    for group in Group::ALL {
        show(group, &checks, console);
    }
    let ready = Ready {
        simulator: group_ready(Group::Simulator, &checks),
        gpu: group_ready(Group::Gpu, &checks),
        rdma: group_ready(Group::Network, &checks),
    };
    let failure = failure(&args.require, &checks);
    let diagnosis = Diagnosis { command: "doctor", ready, checks };
    match failure {
        Some(failure) => Err(failure.with(&diagnosis)),
        None => {
            console.object(&diagnosis);
            Ok(())
        }
    }
}

fn missing(group: Group, checks: &[Check]) -> impl Iterator<Item = &Check> {
    checks.iter().filter(move |c| c.group == group && c.status == Status::Missing)
}

fn group_ready(group: Group, checks: &[Check]) -> bool {
    missing(group, checks).next().is_none()
}

/// One group, for people: a line a check; what is needed and what to do only where something is wrong.
fn show(group: Group, checks: &[Check], console: &mut Console<'_>) {
    let lacking = missing(group, checks).count();
    let verdict = match (group, lacking) {
        (Group::Launcher, _) => "how ranks are told apart".into(),
        (_, 0) => "ready".into(),
        (_, n) => format!("not ready, {n} missing"),
    };
    console.say(group.title(), verdict);
    for c in checks.iter().filter(|c| c.group == group) {
        console.say(&format!("  {:<8} {}", c.status.word(), c.name), &c.found);
        if c.status != Status::Ok {
            for (what, text) in [("needed", &c.needed), ("to do", &c.hint)] {
                console.say(&format!("           {what}"), text);
            }
        }
    }
}

/// The simulator always has to work; the rest only where it is required.
fn failure(required: &[Requirement], checks: &[Check]) -> Option<Failure> {
    let broken = |group, exit, kind, what: &str| {
        let names: Vec<&str> = missing(group, checks).map(|c| c.name).collect();
        (!names.is_empty()).then(|| {
            let says = Explanation {
                kind,
                message: what.into(),
                given: format!("missing: {}", names.join(", ")),
                allowed: "none of them missing".into(),
                hint: "mk doctor says for each of them what to do".into(),
            };
            Failure::new(exit, says)
        })
    };
    let of = |r: &Requirement| match r {
        Requirement::Gpu => (Group::Gpu, "this machine is not ready for GPUs"),
        Requirement::Rdma => (Group::Network, "this machine is not ready for RDMA"),
    };
    broken(Group::Simulator, Exit::Wrong, "selftest", "the simulator does not work").or_else(|| {
        required.iter().map(of).find_map(|(group, what)| broken(group, Exit::Missing, "missing", what))
    })
}
