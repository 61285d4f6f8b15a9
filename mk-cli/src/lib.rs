#![doc = include_str!("../README.md")]

mod args;
mod check;
mod commands;
mod console;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod gpu;
mod input;
mod memory;
mod setup;
mod target;
mod tensors;
mod timeline;

pub use error::Exit;

use args::{Args, Command};
use clap::Parser as _;
use console::Console;
use error::Failure;
use std::ffi::OsString;
use std::io::Write;

/// Runs the command that `args` name (the program's own name first), and says how it ended.
///
/// Results go to `out`, everything else to `err`. Nothing here ends the process or reads its environment, but
/// `mk doctor`, which is asked to look at it, and what may use a GPU, which looks for its driver, for a compiler and for the
/// user's cache. `mk bench gpu` starts this executable once more, to measure how long that takes.
///
/// ```
/// let (mut out, mut err) = (Vec::new(), Vec::new());
/// let exit = mk_cli::run(["mk", "run", "tea"].map(Into::into), &mut out, &mut err);
/// assert_eq!(exit, mk_cli::Exit::Input);
/// assert!(String::from_utf8_lossy(&err).contains("ag-gemm"));
/// ```
pub fn run(args: impl IntoIterator<Item = OsString>, out: &mut dyn Write, err: &mut dyn Write) -> Exit {
    let args: Vec<OsString> = args.into_iter().collect();
    // Before the arguments are understood, their errors must know where to go.
    let json = args.iter().any(|a| a == "--json");
    let mut console = Console::new(json, out, err);
    let result = match Args::try_parse_from(&args) {
        Ok(args) => dispatch(args, &mut console),
        Err(e) if e.use_stderr() => Err(error::usage(&e, &args)),
        Err(help) => {
            console.help(&help);
            Ok(())
        }
    };
    let exit = match result {
        Ok(()) => Exit::Success,
        Err(failure) => {
            console.failure(&failure);
            failure.exit
        }
    };
    match console.finish() {
        // Nobody can tell a result that got lost from one that is empty.
        Err(lost) if exit == Exit::Success => lost.exit,
        _ => exit,
    }
}

fn dispatch(args: Args, console: &mut Console<'_>) -> Result<(), Failure> {
    match args.command {
        Command::Run(run) => match run.operator {
            args::RunOperator::AgGemm(options) => commands::run::ag_gemm(&options, console),
        },
        Command::Plan(plan) => match plan.operator {
            args::PlanOperator::AgGemm(options) => commands::plan::ag_gemm(&options, console),
        },
        Command::Verify(options) => commands::verify::verify(&options, console),
        Command::Trace(options) => commands::trace::trace(&options, console),
        Command::Bench(bench) => commands::bench::bench(&bench.name, console),
        Command::Codegen(options) => commands::codegen::codegen(&options, console),
        Command::Doctor(options) => commands::doctor::doctor(&options, console),
        Command::Selftest(options) => commands::selftest::selftest(&options, console),
        Command::Completions(options) => commands::completions::completions(&options, console),
        Command::Man(options) => commands::man::man(&options, console),
    }
}
