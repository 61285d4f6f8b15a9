//! `mk completions`: scripts with which shells complete commands and options.

use crate::args::{Args, CompletionsArgs};
use crate::console::Console;
use crate::error::Failure;
use clap::CommandFactory as _;
use serde_json::json;

/// `mk completions`.
pub(crate) fn completions(args: &CompletionsArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "mk", &mut script);
    let script = String::from_utf8_lossy(&script);
    console.text(&script);
    console.object(&json!({ "command": "completions", "shell": args.shell.to_string(), "script": script }));
    Ok(())
}
