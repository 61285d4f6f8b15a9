//! The `mk` command. All of it is in the library, where tests and fuzzers reach it.

use std::io;
use std::process::ExitCode;

fn main() -> ExitCode {
    let run = || mk_cli::run(std::env::args_os(), &mut io::stdout().lock(), &mut io::stderr());
    // A panic has printed its message already; that it is our fault is said by the exit code.
    std::panic::catch_unwind(run).unwrap_or(mk_cli::Exit::Internal).into()
}
