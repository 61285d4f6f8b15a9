//! Running programs in the simulator, for the tests of this crate.
#![allow(dead_code, reason = "each test uses some of it")]

use mk_core::{Bindings, Fault, Io, Program, Rank, Reason, Registry, RunError, Tensor};
use mk_sim::{Checks, Faults, Simulator};

/// Small integers for every region that the caller fills, others in each epoch.
pub(crate) fn inputs(program: &Program, epoch: u64) -> Bindings {
    let mut b = Bindings::new();
    for (i, region) in program.regions.iter().enumerate() {
        if !matches!(region.io, Io::Input | Io::InOut) {
            continue;
        }
        for rank in 0..program.ranks as u16 {
            let [rows, cols] = region.extent(Rank(rank));
            let value = |e: u64| ((e * 7 + epoch * 5 + u64::from(rank) * 3 + i as u64) % 11) as f32 - 5.0;
            let values: Vec<f32> = (0..rows * cols).map(value).collect();
            b.set(Rank(rank), &region.name, Tensor::from_f32(region.dtype, rows, cols, &values));
        }
    }
    b
}

/// What a machine may do to messages, in one of a few strengths.
pub(crate) fn weather(strength: u64) -> Faults {
    let text = match strength % 4 {
        0 => "",
        1 => "jitter = 2.0\ntorn = true",
        2 => "reorder = 0.5\nduplicate = 0.3\ndelay = { probability = 0.3, max_us = 50.0 }",
        _ => "jitter = 1.0\nreorder = 0.3\ndrop = { probability = 0.2, retransmit_us = 30.0 }\ntorn = true",
    };
    Faults::from_toml(text).expect("legal faults")
}

/// Runs a program that need not be right for some epochs, and gives what was found.
pub(crate) fn findings(
    program: &Program,
    registry: &Registry,
    checks: Checks,
    seed: u64,
    epochs: u64,
) -> Vec<Fault> {
    let mut sim = Simulator::builder(registry).checks(checks).schedule_seed(seed).run_bound_us(2_000).build();
    let bindings: Vec<Bindings> = (1..=epochs).map(|e| inputs(program, e)).collect();
    match sim.run_unproved(program, &bindings) {
        Ok(_) => Vec::new(),
        Err(RunError::Fault(first)) => {
            let all = sim.report().findings.clone();
            if all.is_empty() { vec![*first] } else { all }
        }
        Err(_) => Vec::new(),
    }
}

/// The tasks that a fault names.
pub(crate) fn names(fault: &Fault) -> String {
    match &fault.reason {
        Reason::Deadlock(chain) => chain.join("; "),
        Reason::Race { first, second, .. } => format!("{first}; {second}"),
        _ => format!("{}; {}", fault.task, fault.signal),
    }
}
