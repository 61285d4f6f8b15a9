//! Where output goes: results to stdout, progress and notes to stderr, one JSON object where that was asked for.

use crate::error::Failure;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::io::{IsTerminal as _, Write};
use std::time::Duration;

/// Version of the JSON objects: raised when a field changes its meaning.
const SCHEMA: u32 = 1;

/// The two streams of a command. A reader that has gone away (`| head`) is not an error.
pub(crate) struct Console<'a> {
    json: bool,
    out: &'a mut dyn Write,
    err: &'a mut dyn Write,
}

#[derive(Serialize)]
struct Object<'a, T: Serialize> {
    schema: u32,
    ok: bool,
    #[serde(flatten)]
    rest: &'a T,
}

impl<'a> Console<'a> {
    pub(crate) fn new(json: bool, out: &'a mut dyn Write, err: &'a mut dyn Write) -> Console<'a> {
        Console { json, out, err }
    }

    /// A line for people. Nothing where JSON was asked for.
    pub(crate) fn say(&mut self, what: &str, text: impl AsRef<str>) {
        if !self.json {
            let _ = writeln!(self.out, "{what}: {}", text.as_ref());
        }
    }

    /// A line on stderr, always.
    pub(crate) fn note(&mut self, text: impl AsRef<str>) {
        let _ = writeln!(self.err, "mk: {}", text.as_ref());
    }

    /// The result as one JSON object, where that was asked for.
    pub(crate) fn object(&mut self, result: &impl Serialize) {
        if self.json {
            self.write_object(true, result);
        }
    }

    fn write_object(&mut self, ok: bool, rest: &impl Serialize) {
        if let Ok(text) = serde_json::to_string(&Object { schema: SCHEMA, ok, rest }) {
            let _ = writeln!(self.out, "{text}");
        }
    }

    /// Help and version, as clap wrote them.
    pub(crate) fn help(&mut self, help: &clap::Error) {
        let styled = help.render();
        let _ = if std::io::stdout().is_terminal() {
            write!(self.out, "{}", styled.ansi())
        } else {
            write!(self.out, "{styled}")
        };
    }

    /// Says what went wrong.
    pub(crate) fn failure(&mut self, failure: &Failure) {
        let says = &failure.says;
        if self.json {
            return self.write_object(false, &**says);
        }
        let _ = writeln!(self.err, "error: {}", says.message);
        for (what, text) in [("given", &says.given), ("allowed", &says.allowed), ("hint", &says.hint)] {
            if !text.is_empty() {
                let _ = writeln!(self.err, "  {what:<8} {text}");
            }
        }
    }

    /// Shows that something is under way, until the guard is dropped. Nothing unless stderr is a terminal.
    pub(crate) fn step(&self, what: impl Into<String>) -> Step {
        if !std::io::stderr().is_terminal() {
            return Step(ProgressBar::hidden());
        }
        let bar = ProgressBar::new_spinner().with_message(what.into());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        Step(bar)
    }
}

/// Something under way.
pub(crate) struct Step(ProgressBar);

impl Drop for Step {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
