//! What comes before the first task: the kernel is built, a session opened, a program loaded; and all of it in a process of its
//! own, as a user sees it.

use super::super::Measurement;
use super::super::record::Case;
use super::super::rig::machine::{Machine, registry};
use crate::commands::problem::Product;
use crate::error::{Exit, Failure, internal};
use crate::setup;
use mk_core::{Session as _, Verified};
use mk_kernel::{Cache, Gpu, Limits, Options, Source};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Seconds to compile; milliseconds to find what was compiled; seconds of a small `mk run`.
const COLD_S: f64 = 20.0;
const CACHED_MS: f64 = 50.0;
const RUN_S: f64 = 1.0;
/// The ranks and the side of the product that is loaded.
const RANKS: u64 = 2;
const SIDE: u64 = 4096;
/// A product that takes no time: what is left is the way to its first task.
const RUN: [&str; 14] = [
    "run",
    "ag-gemm",
    "--backend",
    "gpu",
    "--ranks",
    "2",
    "--m",
    "256",
    "--n",
    "256",
    "--k",
    "256",
    "--no-check",
    "--json",
];

/// Measures all of it.
pub(super) fn measure(m: &mut Measurement<'_, '_>, machine: &Machine) -> Result<(), Failure> {
    kernel(m, machine)?;
    session(m, machine)?;
    process(m)
}

/// Seconds of something.
fn seconds<T>(f: impl FnOnce() -> Result<T, Failure>) -> Result<(f64, T), Failure> {
    let start = Instant::now();
    let value = f()?;
    Ok((start.elapsed().as_secs_f64(), value))
}

/// Generates the source and makes machine code of it; whether that was cached.
fn build(machine: &Machine, folder: &Path) -> Result<bool, Failure> {
    let source = Source::of(&registry(1)?)?;
    Ok(Cache::at(folder).build(machine.gpu.compiler(), &source, &Options::default())?.cached)
}

fn kernel(m: &mut Measurement<'_, '_>, machine: &Machine) -> Result<(), Failure> {
    let mut cached = Vec::new();
    let cold = {
        let _step = m.step("building the kernel");
        let folder = tempfile::tempdir().map_err(|e| failed(format!("no temporary folder: {e}")))?;
        // Once: the compiler remembers what it has compiled in this process.
        let (cold, found) = seconds(|| build(machine, folder.path()))?;
        expect(!found, "a new cache had the kernel")?;
        for _ in 0..m.samples() {
            let (time, found) = seconds(|| build(machine, folder.path()))?;
            expect(found, "the cache did not keep the kernel")?;
            cached.push(time * 1e3);
        }
        cold
    };
    m.keep(Case::new("kernel build, nothing cached", Value::Null, "s", vec![cold]).at_most(COLD_S));
    m.keep(Case::new("kernel build, cached", Value::Null, "ms", cached).at_most(CACHED_MS));
    Ok(())
}

/// A session with a cached kernel, and a program of some size in it.
fn session(m: &mut Measurement<'_, '_>, machine: &Machine) -> Result<(), Failure> {
    let product = Product::sized([SIDE; 3], setup::uniform(1, RANKS)?)?;
    let product = product.sharing(machine.hardware.lanes(), None);
    let program = product.plan()?.verify(&product.registry, &machine.hardware)?;
    let (mut opened, mut loaded) = (Vec::new(), Vec::new());
    {
        let _step = m.step("opening sessions and loading a program");
        // The first one compiles, if the user's cache has no such kernel.
        drop(open(machine, &product)?);
        for _ in 0..m.samples() {
            let (time, mut gpu) = seconds(|| open(machine, &product))?;
            opened.push(time * 1e3);
            loaded.push(seconds(|| Ok(gpu.load(&program)?))?.0 * 1e3);
        }
    }
    let params = params(&program);
    m.keep(Case::new("opening a session, kernel cached", Value::Null, "ms", opened));
    m.keep(Case::new(format!("loading AllGather+GEMM of {SIDE}, {RANKS} ranks"), params, "ms", loaded));
    Ok(())
}

fn open(machine: &Machine, product: &Product) -> Result<Gpu, Failure> {
    Ok(Gpu::open(&product.registry, machine.gpu.device(), Limits::default())?)
}

fn params(program: &Verified) -> Value {
    json!({ "tasks": program.program().tasks.len(), "ranks": RANKS, "side": SIDE })
}

/// `mk run`, from its start to its end: more than to its first task.
fn process(m: &mut Measurement<'_, '_>) -> Result<(), Failure> {
    let times = {
        let _step = m.step("mk run, from start to end");
        let run = |_| Ok(seconds(small_run)?.0);
        (0..=m.few_samples()).map(run).collect::<Result<Vec<f64>, Failure>>()?
    };
    // The first may have to compile.
    let case =
        Case::new("mk run, start to end, kernel cached", json!({ "args": RUN }), "s", times[1..].to_vec());
    m.keep(case.at_most(RUN_S));
    Ok(())
}

/// Starts this executable once more.
fn small_run() -> Result<(), Failure> {
    let mk = std::env::current_exe().map_err(|e| failed(format!("this executable is not found: {e}")))?;
    let done = Command::new(mk).args(RUN).output().map_err(|e| failed(format!("mk does not start: {e}")))?;
    let said = String::from_utf8_lossy(&done.stdout);
    expect(done.status.success(), &format!("`mk {}` failed: {}", RUN.join(" "), said.trim()))
}

fn expect(holds: bool, what: &str) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(failed(what.into())) }
}

fn failed(what: String) -> Failure {
    Failure::new(Exit::Internal, internal(what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command, RunOperator};
    use clap::Parser as _;
    use mk_core::Hardware;

    #[test]
    fn the_small_run_is_one_of_this_command_on_a_gpu() {
        let args = Args::try_parse_from([&["mk"][..], &RUN].concat()).unwrap();
        let Command::Run(run) = args.command else { panic!("another command") };
        let RunOperator::AgGemm(options) = run.operator;
        assert_eq!(options.execution.backend, crate::args::Backend::Gpu);
        assert!(options.data.no_check);
    }

    #[test]
    fn the_program_that_is_loaded_is_proved() {
        let product = Product::sized([SIDE; 3], setup::uniform(1, RANKS).unwrap()).unwrap();
        let product = product.sharing(132, None);
        let program = product.plan().unwrap().verify(&product.registry, &Hardware::h200()).unwrap();
        assert!(program.program().tasks.len() > 500, "{}", params(&program));
        assert!(program.program().lanes.iter().all(|lanes| *lanes <= 66));
    }
}
