//! A row of the table.

use super::bounded::Ended;
use conformance::Check;
use serde::Serialize;

/// What became of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    /// It was run, and all was right.
    Run,
    Skipped,
    Failed,
}

#[derive(Serialize)]
pub(super) struct Row {
    pub(super) check: &'static str,
    pub(super) backend: &'static str,
    pub(super) status: Status,
    seconds: f64,
    /// Why it failed, or was skipped though others were not.
    pub(super) reason: Option<String>,
}

impl Row {
    pub(super) fn skipped(check: &Check, backend: &'static str) -> Row {
        Row { check: check.name, backend, status: Status::Skipped, seconds: 0.0, reason: None }
    }

    pub(super) fn of(check: &Check, backend: &'static str, ended: Ended) -> Row {
        let row = Row::skipped(check, backend);
        match ended {
            Ended::Right(seconds) => Row { status: Status::Run, seconds, ..row },
            Ended::Wrong(seconds, reason) => Row {
                status: Status::Failed,
                seconds,
                reason: Some(format!("{}: {reason}", check.name)),
                ..row
            },
            Ended::NotBegun => Row { reason: Some("a check before it did not end".into()), ..row },
        }
    }

    /// For people.
    pub(super) fn line(&self) -> String {
        let status = match self.status {
            Status::Run => "run",
            Status::Skipped => "skipped",
            Status::Failed => "failed",
        };
        let seconds = match self.status {
            Status::Skipped => "-".into(),
            _ => format!("{:.1}", self.seconds),
        };
        line(&self.check.replace('_', " "), self.backend, status, &seconds)
    }
}

/// The names of the columns.
pub(super) fn head() -> String {
    line("check", "backend", "result", "seconds")
}

fn line(check: &str, backend: &str, result: &str, seconds: &str) -> String {
    format!("{check:<38} {backend:<10} {result:<8} {seconds:>7}\n")
}
