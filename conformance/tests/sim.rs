//! The simulator passes, whatever the order of events and whatever machines do.

use conformance::{Config, suite};
use mk_core::{Hardware, Registry};
use mk_sim::{Delay, Drop, Faults, Simulator, SimulatorBuilder};

/// Every case has a schedule of its own; that of seed 0 is the one without chance.
fn builder(registry: &Registry, hardware: &Hardware, seed: u64) -> SimulatorBuilder {
    Simulator::builder(registry).hardware(hardware.clone()).schedule_seed(seed)
}

fn simulator(registry: &Registry, hardware: &Hardware, seed: u64) -> Simulator {
    builder(registry, hardware, seed).build()
}

/// Everything that a proved program survives: late, lost, torn, repeated and overtaken messages.
fn rough(registry: &Registry, hardware: &Hardware, seed: u64) -> Simulator {
    let faults = Faults {
        delay: Delay { probability: 0.2, max_us: 30.0 },
        drop: Drop { probability: 0.1, retransmit_us: 20.0 },
        jitter: 1.0,
        reorder: 0.3,
        duplicate: 0.2,
        torn: true,
        ..Faults::default()
    };
    // Other schedules than those of `simulator`.
    builder(registry, hardware, 1_000_003 * (seed + 1)).faults(faults).build()
}

suite!(exact, Config::exact(), simulator);
suite!(rounded_and_rough, Config::rounded(), rough);
// What GPUs are asked.
suite!(aligned, Config::exact().aligned(), simulator, networks = [Mapped]);
suite!(aligned_rounded_and_rough, Config::rounded().aligned(), rough, networks = [Mapped]);
