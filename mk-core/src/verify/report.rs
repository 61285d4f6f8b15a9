//! What the verifier says.

use crate::verify::{Finding, FindingKind, Verdict};

/// Findings of one verification; the first few are kept.
#[derive(Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

/// More than this many findings help nobody.
const KEPT: usize = 16;

impl Findings {
    pub(super) fn push(&mut self, finding: Finding) {
        if !self.full() {
            self.0.push(finding);
        }
    }

    pub(super) fn any(&self) -> bool {
        !self.0.is_empty()
    }

    pub(super) fn full(&self) -> bool {
        self.0.len() >= KEPT
    }
}

pub(super) fn refuted(kind: FindingKind, tasks: Vec<String>, detail: String) -> Finding {
    Finding { verdict: Verdict::Refuted, kind, tasks, detail }
}

pub(super) fn unproved(tasks: Vec<String>, detail: String) -> Finding {
    Finding { verdict: Verdict::Unproved, kind: FindingKind::Budget, tasks, detail }
}
