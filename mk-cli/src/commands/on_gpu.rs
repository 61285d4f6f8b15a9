//! Running a proved program on the GPU of this machine.

use super::problem::Product;
use crate::args::ExecutionArgs;
use crate::console::{Console, count};
use crate::error::Failure;
use crate::gpu::{FirstGpu, How};
use crate::target;
use mk_core::{Bindings, Session as _, Verified};
use mk_kernel::{Gpu, Limits};
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

/// What a run was like.
#[derive(Serialize)]
pub(crate) struct OnGpu {
    /// `GPU 0 (NVIDIA H200)`.
    device: String,
    multiprocessors: u32,
    /// Ranks that shared them.
    ranks: u32,
    /// Microseconds from the call to the result, copies of A, B and C included, once the program was loaded.
    us: f64,
    /// Multiplications and additions of the GPU per second of that time, 10^12.
    tflops: f64,
    /// Seconds to compile the kernel, or to find it in the cache, and to load kernel and program.
    load_seconds: f64,
}

impl OnGpu {
    /// For people.
    pub(crate) fn text(&self) -> String {
        let OnGpu { device, ranks, us, load_seconds, .. } = self;
        let ranks = count((*ranks).into(), "rank");
        format!(
            "{us:.1} us on {device} for {ranks}, copies to and from it included; loaded in {load_seconds:.2} s"
        )
    }
}

/// Runs one epoch. A trace is written even if the run ends in a fault: that is when it is needed.
pub(crate) fn run(
    gpu: &FirstGpu,
    product: &Product,
    verified: &Verified,
    bindings: &Bindings,
    args: &ExecutionArgs,
    console: &Console<'_>,
) -> Result<(OnGpu, Bindings), Failure> {
    let start = Instant::now();
    let mut session = {
        let _step = console.step("compiling and loading the kernel");
        let how = if args.trace.is_some() { How::Traced } else { How::Launched };
        let mut session = gpu.session(&product.registry, limits(args), how)?;
        session.load(verified)?;
        session
    };
    let (loaded, _step) = (Instant::now(), console.step("running"));
    let result = session.run(verified, bindings);
    let us = loaded.elapsed().as_secs_f64() * 1e6;
    if let Some(path) = &args.trace {
        write_trace(path, &session, verified, result.is_ok())?;
    }
    let outputs = result?;
    let ran = OnGpu {
        device: gpu.name(),
        multiprocessors: gpu.multiprocessors(),
        ranks: product.registry.world().size(),
        us,
        tflops: product.flops() as f64 / us / 1e6,
        load_seconds: (loaded - start).as_secs_f64(),
    };
    Ok((ran, outputs))
}

/// That there is no trace must not hide what went wrong with the run.
fn write_trace(path: &Path, session: &Gpu, verified: &Verified, ran: bool) -> Result<(), Failure> {
    match session.trace(verified) {
        Ok(trace) if ran || !trace.slices().is_empty() => target::write(path, |to| trace.to_json(to)),
        Err(why) if ran => Err(why.into()),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// The bound of a wait, where one is given; that of the first wait of a run is longer and stays.
fn limits(args: &ExecutionArgs) -> Limits {
    let limits = Limits::default();
    // A conversion that does not fit gives the largest number.
    let run_us = args.timeout_ms.map_or(limits.run_us, |ms| (ms * 1000.0).ceil() as u64);
    Limits { run_us, ..limits }
}
