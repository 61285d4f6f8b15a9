//! One line of the answer.

use serde::Serialize;

/// What a check is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Group {
    Simulator,
    Gpu,
    Network,
    Launcher,
}

impl Group {
    pub(super) const ALL: [Group; 4] = [Group::Simulator, Group::Gpu, Group::Network, Group::Launcher];

    /// Its heading.
    pub(super) fn title(self) -> &'static str {
        match self {
            Group::Simulator => "simulator (needs no hardware)",
            Group::Gpu => "GPU",
            Group::Network => "network (RDMA between servers)",
            Group::Launcher => "launcher",
        }
    }
}

/// The verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    /// As it should be.
    Ok,
    /// Works, or is not always needed; but look at it.
    Warning,
    /// The group does not work without it.
    Missing,
}

impl Status {
    pub(super) fn word(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Warning => "warning",
            Status::Missing => "missing",
        }
    }
}

/// What was looked at, what was found, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    pub(super) group: Group,
    pub(super) name: &'static str,
    pub(super) status: Status,
    pub(super) found: String,
    pub(super) needed: String,
    /// What to do; empty where all is well.
    pub(super) hint: String,
}

impl Check {
    /// A check that is well until something else is said of it.
    pub(super) fn new(group: Group, name: &'static str, needed: impl Into<String>) -> Check {
        let (found, hint) = (String::new(), String::new());
        Check { group, name, status: Status::Ok, found, needed: needed.into(), hint }
    }

    pub(super) fn ok(self, found: impl Into<String>) -> Check {
        Check { found: found.into(), ..self }
    }

    pub(super) fn warning(self, found: impl Into<String>, hint: impl Into<String>) -> Check {
        Check { status: Status::Warning, found: found.into(), hint: hint.into(), ..self }
    }

    pub(super) fn missing(self, found: impl Into<String>, hint: impl Into<String>) -> Check {
        Check { status: Status::Missing, found: found.into(), hint: hint.into(), ..self }
    }
}
