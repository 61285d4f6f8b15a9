//! How a command ends: exit codes, and what is said of a failure.

use crate::args::Args;
use clap::CommandFactory as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use mk_core::{Error, Explanation, Fault, Reason, RunError, Verdict};
use std::ffi::OsString;
use std::fmt::{Debug, Display};
use std::process::ExitCode;

/// How a command ended. Interrupted, a process ends by its signal, which a shell shows as 130.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exit {
    /// 0: it did what was asked.
    Success = 0,
    /// 1: a fault of this program.
    Internal = 1,
    /// 2: the input or the usage is wrong.
    Input = 2,
    /// 3: a proof or a comparison with the reference failed.
    Wrong = 3,
    /// 4: a run ended in a fault: a time-out, a lost peer, a NIC.
    Fault = 4,
    /// 5: hardware or a library is missing.
    Missing = 5,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// Why a command did not do what was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    /// Boxed: failures are rare, results are not.
    pub(crate) says: Box<Explanation>,
    /// What was found out nevertheless: with `--json`, fields of the error's object.
    pub(crate) result: Option<Box<serde_json::Value>>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, says: Explanation) -> Failure {
        Failure { exit, says: Box::new(says), result: None }
    }

    /// Adds what was found out nevertheless.
    pub(crate) fn with(self, result: &impl serde::Serialize) -> Failure {
        Failure { result: serde_json::to_value(result).ok().map(Box::new), ..self }
    }

    /// A file that cannot be used. `what` goes on from its name: `is a folder`.
    pub(crate) fn file(path: &std::path::Path, what: impl Display, hint: impl Into<String>) -> Failure {
        let path = path.display().to_string();
        let message = format!("{path} {what}");
        Error::File { path, message, hint: hint.into() }.into()
    }

    /// Puts the option that names a file before a message that begins with the file.
    pub(crate) fn of_option(mut self, option: &str) -> Failure {
        if self.says.kind == "file" {
            self.says.message = format!("{option} {}", self.says.message);
        }
        self
    }

    /// Puts the name of a file before the message.
    pub(crate) fn of_file(mut self, path: &std::path::Path) -> Failure {
        self.says.message = format!("{}: {}", path.display(), self.says.message);
        self
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        let exit = if matches!(e, Error::NotProved { .. }) { Exit::Wrong } else { Exit::Input };
        let mut says = e.explain();
        if let Error::NotProved { finding, .. } = &e {
            let verdict = if finding.verdict == Verdict::Refuted { "refuted" } else { "not proved" };
            says.message = format!("{verdict} ({}): {}", kind_words(&finding.kind), says.message);
            says.given = finding.tasks.join("; ");
        }
        Failure::new(exit, says)
    }
}

impl From<RunError> for Failure {
    fn from(e: RunError) -> Failure {
        match e {
            RunError::Input(e) => e.into(),
            RunError::Fault(fault) => (*fault).into(),
            RunError::Hardware(says) => Failure { exit: Exit::Missing, says, result: None },
            RunError::Busy => Failure::new(Exit::Fault, busy()),
            other => Failure::new(Exit::Internal, internal(other.to_string())),
        }
    }
}

impl From<mk_kernel::Error> for Failure {
    fn from(e: mk_kernel::Error) -> Failure {
        use mk_kernel::Error;
        let exit = match &e {
            Error::NvrtcMissing { .. } | Error::NvrtcUnusable { .. } | Error::Driver(_) => Exit::Missing,
            Error::Arch { .. } | Error::NotInKernel { .. } => Exit::Input,
            Error::Rejected { .. } => Exit::Wrong,
            _ => Exit::Internal,
        };
        Failure::new(exit, e.explain())
    }
}

impl From<mk_kernel::driver::Error> for Failure {
    fn from(e: mk_kernel::driver::Error) -> Failure {
        Failure::new(Exit::Missing, e.explain())
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Failure {
        let (exit, hint) = match &fault.reason {
            Reason::Timeout(_) => (Exit::Fault, "raise --timeout-ms, or look at --faults"),
            Reason::Kernel(_) => (
                Exit::Fault,
                "the same program runs in the simulator: mk run --backend sim; please report it",
            ),
            Reason::PeerLost(_) | Reason::Nic { .. } => {
                (Exit::Fault, "look at that rank first: the others only report it")
            }
            _ => (
                Exit::Wrong,
                "unless --faults breaks a promise, a proved program does not do this: please report it with --schedule-seed",
            ),
        };
        let says = Explanation {
            kind: "fault",
            message: fault.to_string(),
            given: String::new(),
            allowed: String::new(),
            hint: hint.into(),
        };
        Failure::new(exit, says)
    }
}

/// The name of a kind as words: `OutOfRange` is `out of range`.
fn kind_words(kind: &impl Debug) -> String {
    let mut words = String::new();
    for c in format!("{kind:?}").chars() {
        if c.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(c.to_lowercase());
    }
    words
}

fn busy() -> Explanation {
    Explanation {
        kind: "busy",
        message: RunError::Busy.to_string(),
        given: String::new(),
        allowed: "one run at a time".into(),
        hint: "wait for it to end".into(),
    }
}

/// What is said of a fault of this program.
pub(crate) fn internal(message: String) -> Explanation {
    Explanation {
        kind: "internal",
        message,
        given: String::new(),
        allowed: String::new(),
        hint: "this is a fault of mk: please report it with the command line".into(),
    }
}

/// What is wrong with a command line.
pub(crate) fn usage(e: &clap::Error, args: &[OsString]) -> Failure {
    let path = command_path(args);
    let name = path.iter().map(clap::Command::get_name).collect::<Vec<_>>().join(" ");
    let context = |kind| e.get(kind).map(words).unwrap_or_default();
    let mut says = Explanation {
        kind: "usage",
        message: message(e),
        given: context(ContextKind::InvalidValue),
        allowed: context(ContextKind::ValidValue),
        hint: format!("see `{name} --help`"),
    };
    match e.kind() {
        ErrorKind::InvalidSubcommand
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let last = path.last().map(|c| (c.get_name(), subcommands(c)));
            let (parent, allowed) = last.unwrap_or_default();
            let what = match parent {
                "mk" => "command",
                "bench" => "benchmark",
                _ => "operator",
            };
            says.given = context(ContextKind::InvalidSubcommand);
            let lack = if says.given.is_empty() { "no" } else { "unknown" };
            (says.message, says.allowed) = (format!("{lack} {what}"), allowed);
        }
        ErrorKind::UnknownArgument => {
            says.given = context(ContextKind::InvalidArg);
            let option = says.given.starts_with('-');
            says.message = if option { "unknown option" } else { "unexpected argument" }.into();
            let near = context(ContextKind::SuggestedArg);
            if !near.is_empty() {
                says.hint = format!("did you mean {near}? See `{name} --help`");
            }
        }
        ErrorKind::InvalidUtf8 => {
            says.message = "this is not text (UTF-8)".into();
            says.given = not_text(args);
        }
        ErrorKind::MissingRequiredArgument => says.allowed = context(ContextKind::InvalidArg),
        ErrorKind::ArgumentConflict => {
            says.given = context(ContextKind::InvalidArg);
            says.message = format!("{} cannot be used with {}", says.given, context(ContextKind::PriorArg));
        }
        _ => {}
    }
    Failure::new(Exit::Input, says)
}

/// The first line of what clap says, without its `error: `.
fn message(e: &clap::Error) -> String {
    let text = e.render().to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).trim_end_matches(':').to_string()
}

/// The first argument that is no text, as far as it can be shown, with its option.
fn not_text(args: &[OsString]) -> String {
    let Some(at) = args.iter().position(|a| a.to_str().is_none()) else { return String::new() };
    let shown = args[at].to_string_lossy();
    let option = at.checked_sub(1).and_then(|before| args[before].to_str()).filter(|a| a.starts_with("--"));
    option.map_or_else(|| shown.to_string(), |option| format!("{option} {shown}"))
}

fn words(value: &ContextValue) -> String {
    match value {
        ContextValue::Strings(v) => v.join(", "),
        ContextValue::StyledStrs(v) => v.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

/// The command and the subcommands that the arguments name.
fn command_path(args: &[OsString]) -> Vec<clap::Command> {
    let mut path = vec![Args::command()];
    for arg in args.iter().skip(1).filter_map(|a| a.to_str()).filter(|a| !a.starts_with('-')) {
        let Some(next) = path.last().and_then(|c| c.find_subcommand(arg)).cloned() else { break };
        path.push(next);
    }
    path
}

fn subcommands(command: &clap::Command) -> String {
    command.get_subcommands().map(clap::Command::get_name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use mk_core::verify::FindingKind;

    #[test]
    fn hardware_that_refuses_is_missing_and_a_run_that_does_not_end_well_is_a_fault() {
        let of = |e: RunError| Failure::from(e);
        let says = Explanation { kind: "missing", hint: "buy one".into(), ..busy() };
        let refused = of(RunError::Hardware(Box::new(says.clone())));
        assert_eq!((refused.exit, *refused.says), (Exit::Missing, says));
        assert_eq!(of(RunError::Busy).exit, Exit::Fault);
        for (reason, exit) in [
            (Reason::Timeout(5), Exit::Fault),
            (Reason::Kernel("it has no handler with opcode 9".into()), Exit::Fault),
            (Reason::LostPost, Exit::Wrong),
        ] {
            let (task, signal) = ("tile".into(), "arrival".into());
            let fault =
                Fault { rank: mk_core::Rank(1), task, signal, expected: 2, seen: 1, epoch: 1, reason };
            let failure = of(fault.clone().into());
            assert_eq!((failure.exit, failure.says.message), (exit, fault.to_string()));
        }
    }

    #[test]
    fn kinds_are_shown_as_words() {
        assert_eq!(kind_words(&FindingKind::Race), "race");
        assert_eq!(kind_words(&FindingKind::OutOfRange), "out of range");
    }
}
