//! Where output goes: results to stdout, progress and notes to stderr, one JSON object where that was asked for.

use crate::error::{Exit, Failure};
use indicatif::{ProgressBar, ProgressStyle};
use mk_core::Explanation;
use serde::Serialize;
use std::borrow::Cow;
use std::io::{self, IsTerminal as _, Write};
use std::sync::Arc;
use std::time::Duration;

/// Version of the JSON objects: raised when a field changes its meaning.
const SCHEMA: u32 = 1;

/// A number of things: `1 rank`, `4 ranks`.
pub(crate) fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// The two streams of a command. A reader that has gone away (`| head`) is not an error; a full disk is.
pub(crate) struct Console<'a> {
    json: bool,
    out: &'a mut dyn Write,
    err: &'a mut dyn Write,
    /// The first error of `out`.
    lost: Option<io::Error>,
}

#[derive(Serialize)]
struct Object<'a, T: Serialize> {
    schema: u32,
    ok: bool,
    #[serde(flatten)]
    rest: &'a T,
}

#[derive(Serialize)]
struct Failed<'a> {
    #[serde(flatten)]
    says: &'a Explanation,
    #[serde(flatten)]
    result: Option<&'a serde_json::Value>,
}

impl<'a> Console<'a> {
    pub(crate) fn new(json: bool, out: &'a mut dyn Write, err: &'a mut dyn Write) -> Console<'a> {
        Console { json, out, err, lost: None }
    }

    /// A line for people. Nothing where JSON was asked for.
    pub(crate) fn say(&mut self, what: &str, text: impl AsRef<str>) {
        if !self.json {
            let result = writeln!(self.out, "{what}: {}", printable(text.as_ref()));
            self.keep(result);
        }
    }

    /// A text for another program, as it is. Nothing where JSON was asked for.
    pub(crate) fn text(&mut self, text: &str) {
        if !self.json {
            let result = self.out.write_all(text.as_bytes());
            self.keep(result);
        }
    }

    /// A line on stderr, always.
    pub(crate) fn note(&mut self, text: impl AsRef<str>) {
        let _ = writeln!(self.err, "mk: {}", printable(text.as_ref()));
    }

    /// The result as one JSON object, where that was asked for.
    pub(crate) fn object(&mut self, result: &impl Serialize) {
        if self.json {
            self.write_object(true, result);
        }
    }

    fn write_object(&mut self, ok: bool, rest: &impl Serialize) {
        let text = serde_json::to_string(&Object { schema: SCHEMA, ok, rest });
        let result = text.map_err(io::Error::from).and_then(|text| writeln!(self.out, "{text}"));
        self.keep(result);
    }

    fn keep(&mut self, result: io::Result<()>) {
        let gone = |e: &io::Error| e.kind() == io::ErrorKind::BrokenPipe;
        if let Err(e) = result
            && !gone(&e)
        {
            self.lost.get_or_insert(e);
        }
    }

    /// Says on stderr if results got lost on their way to stdout.
    pub(crate) fn finish(mut self) -> Result<(), Failure> {
        let flushed = self.out.flush();
        self.keep(flushed);
        let Some(e) = self.lost.take() else { return Ok(()) };
        let failure = Failure::new(
            Exit::Internal,
            Explanation {
                kind: "output",
                message: format!("stdout cannot be written, so results are lost: {e}"),
                given: String::new(),
                allowed: String::new(),
                hint: "check the space and the rights of the file that stdout goes to".into(),
            },
        );
        self.explain(&failure);
        Err(failure)
    }

    /// Help and version, as clap wrote them.
    pub(crate) fn help(&mut self, help: &clap::Error) {
        let styled = help.render();
        let result = if io::stdout().is_terminal() {
            write!(self.out, "{}", styled.ansi())
        } else {
            write!(self.out, "{styled}")
        };
        self.keep(result);
    }

    /// Says what went wrong.
    pub(crate) fn failure(&mut self, failure: &Failure) {
        if self.json {
            self.write_object(false, &Failed { says: &failure.says, result: failure.result.as_deref() });
        } else {
            self.explain(failure);
        }
    }

    /// What went wrong, for people.
    fn explain(&mut self, failure: &Failure) {
        let says = &failure.says;
        let _ = writeln!(self.err, "error: {}", printable(&says.message));
        for (what, text) in [("given", &says.given), ("allowed", &says.allowed), ("hint", &says.hint)] {
            // A file that cannot be used is named already.
            let said = says.kind == "file" && what == "given" && says.message.contains(text.as_str());
            if !text.is_empty() && !said {
                let _ = writeln!(self.err, "  {what:<8} {}", printable(text));
            }
        }
    }

    /// Shows that something is under way, until the guard is dropped. Nothing unless stderr is a terminal.
    pub(crate) fn step(&self, what: impl Into<String>) -> Step {
        show(ProgressBar::new_spinner(), what.into(), "{spinner} {msg} {elapsed}")
    }

    /// Shows how far something is that has so many parts.
    pub(crate) fn bar(&self, what: impl Into<String>, parts: u64) -> Step {
        show(
            ProgressBar::new(parts),
            what.into(),
            "{spinner} {msg} [{bar:30}] {percent} % {elapsed}, {eta} to go",
        )
    }
}

fn show(bar: ProgressBar, what: String, template: &str) -> Step {
    if !io::stderr().is_terminal() {
        return Step(ProgressBar::hidden());
    }
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(what);
    bar.enable_steady_tick(Duration::from_millis(100));
    Step(bar)
}

/// `text` as one line that a terminal shows as it is: names and contents of files may hold control characters, which could
/// move its cursor, and marks that turn the direction of writing around, which could make it read differently.
fn printable(text: &str) -> Cow<'_, str> {
    let acts = |c: char| {
        c.is_control()
            || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let show = |c: char| if acts(c) { c.escape_default().to_string() } else { c.to_string() };
    Cow::Owned(text.chars().map(show).collect())
}

/// Something under way.
pub(crate) struct Step(ProgressBar);

impl Step {
    /// Moves the bar: so many parts are done.
    pub(crate) fn at(&self, done: u64) {
        self.0.set_position(done);
    }

    /// Moves the bar as a simulation tells.
    pub(crate) fn listener(&self) -> mk_sim::Progress {
        let bar = self.0.clone();
        Arc::new(move |done, _| bar.set_position(done))
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_many() {
        assert_eq!([count(0, "rank"), count(1, "rank")], ["0 ranks", "1 rank"]);
    }

    #[test]
    fn what_acts_on_a_terminal_is_shown_escaped() {
        assert_eq!(printable("a\u{1b}[2J\0\n\u{9b}\u{202e}b"), r"a\u{1b}[2J\u{0}\n\u{9b}\u{202e}b");
        assert_eq!(printable("zwölf µs, 'c:\\d'"), "zwölf µs, 'c:\\d'");
    }
}
