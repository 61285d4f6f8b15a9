//! The one bound that all waits of a meeting share.

use std::time::{Duration, Instant};

/// Nobody waits longer; a clock cannot count on for ever.
const MOST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// What the host keeps of the bound, to tell the others: an eighth, and no more than this.
const MARGIN: Duration = Duration::from_millis(500);

/// When a meeting has to be over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Instant,
    bound: Duration,
}

impl Deadline {
    /// `bound` from now on.
    pub(crate) fn after(bound: Duration) -> Deadline {
        Deadline { at: Instant::now() + bound.min(MOST), bound }
    }

    /// How long the meeting may take as a whole.
    pub(crate) fn bound(&self) -> Duration {
        self.bound
    }

    /// How much of it is left.
    pub(crate) fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// No later than `patience` from now on.
    pub(crate) fn no_later_than(&mut self, patience: Duration) {
        self.at = self.at.min(Instant::now() + patience.min(MOST));
    }

    /// Some time before it, so that a verdict still arrives.
    pub(crate) fn early(&self) -> Deadline {
        let margin = MARGIN.min(self.bound / 8);
        Deadline { at: self.at.checked_sub(margin).unwrap_or(self.at), bound: self.bound }
    }
}
