//! Running a proved program in the simulator.

use super::problem::Product;
use crate::args::ExecutionArgs;
use crate::error::Failure;
use crate::{setup, target};
use mk_core::{Bindings, Session as _, Verified};
use mk_sim::{Faults, Mode, Progress, Report, Simulator};
use serde::Serialize;
use std::path::Path;

/// What a run was like.
#[derive(Serialize)]
pub(crate) struct Simulated {
    /// Simulated time, microseconds.
    us: f64,
    /// Multiplications and additions of each rank per second, 10^12.
    tflops_per_rank: f64,
    /// The part of compute lanes' time in which they worked, the rest being waits for bytes. 1: all communication was
    /// hidden; `None`: there was no work.
    busy: Option<f64>,
    tasks: u64,
    events: u64,
    /// Hash of the order of events, in hexadecimal.
    order: String,
    schedule_seed: u64,
    /// Bytes that crossed links.
    link_bytes: u64,
}

impl Simulated {
    fn of(product: &Product, report: &Report) -> Simulated {
        let sum = |f: fn(&mk_sim::RankReport) -> u64| report.ranks.iter().map(f).sum::<u64>() as f64;
        let (worked, waited) = (sum(|r| r.compute_ns), sum(|r| r.compute_wait_ns));
        let ranks = f64::from(product.registry.world().size());
        // Operations a nanosecond are 10^9 a second.
        let rate = product.flops() as f64 / (report.time_ns.max(1) as f64 * ranks * 1000.0);
        Simulated {
            us: report.time_ns as f64 / 1000.0,
            tflops_per_rank: rate,
            busy: (worked > 0.0).then(|| worked / (worked + waited)),
            tasks: report.tasks,
            events: report.events,
            order: format!("{:016x}", report.order),
            schedule_seed: report.schedule_seed,
            link_bytes: report.links.iter().map(|l| l.bytes).sum(),
        }
    }

    /// For people.
    pub(crate) fn text(&self, hardware: &str) -> String {
        let Simulated { us, tflops_per_rank, busy, events, .. } = self;
        let lanes = busy.map_or_else(String::new, |busy| {
            let busy = (100.0 * busy).round();
            format!("compute lanes busy {busy} %, waiting for bytes {} %; ", 100.0 - busy)
        });
        format!("{us:.1} us on {hardware}, {tflops_per_rank:.1} TFLOP/s a rank; {lanes}{events} events")
    }
}

/// Runs one epoch. A trace is written even if the run ends in a fault: that is when it is needed.
pub(crate) fn simulate(
    product: &Product,
    verified: &Verified,
    bindings: &Bindings,
    faults: Faults,
    args: &ExecutionArgs,
    progress: Progress,
) -> Result<(Simulated, Bindings), Failure> {
    let mut builder = Simulator::builder(&product.registry)
        .hardware(product.hardware.clone())
        .mode(if args.timing { Mode::Timing } else { Mode::Data })
        .schedule_seed(args.schedule_seed.unwrap_or(0))
        .faults(faults)
        .progress(progress)
        .trace(args.trace.is_some());
    if let Some(ms) = args.timeout_ms {
        // A conversion that does not fit gives the largest number; the simulator's clock counts whole microseconds.
        builder = builder.run_bound_us((ms * 1000.0).ceil() as u64);
    }
    let mut simulator = builder.build();
    let result = simulator.run(verified, bindings);
    if let (Some(path), Some(trace)) = (&args.trace, simulator.trace()) {
        target::write(path, |to| trace.to_json(to))?;
    }
    let outputs = result?;
    Ok((Simulated::of(product, simulator.report()), outputs))
}

/// The faults of a file; none without one.
pub(crate) fn faults(path: Option<&Path>) -> Result<Faults, Failure> {
    let Some(path) = path else { return Ok(Faults::default()) };
    Faults::from_toml(&setup::text_file(path)?).map_err(|e| Failure::from(e).of_file(path))
}
