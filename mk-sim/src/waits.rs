//! Which waits of a task are met.

use crate::engine::Engine;
use crate::plan::waits;
use crate::unit::SLOTS;
use mk_core::{Rank, Wait, WaitAt};

/// A word that is not there yet: its place, and what it should be.
pub(crate) type Unmet = (usize, u64);

impl Engine<'_> {
    /// Up to which block a task may be loaded, more than it is now; or the word that it has to wait for. Blocks that
    /// may be loaded at once are one event.
    #[inline]
    pub(crate) fn ready_blocks(&mut self, u: usize, s: usize) -> Result<u32, Unmet> {
        let (plan, task, _) = self.task(u, s);
        let rank = Rank(self.units[u].rank);
        let slot = &mut self.slots[u * SLOTS + s];
        let mut ready = slot.blocks;
        for (i, w) in waits(task) {
            let at = w.at();
            if at == WaitAt::Store || slot.seen[i] == u32::from(w.count) {
                continue;
            }
            let first = plan.words.at(rank, w.word, w.clock);
            let Some(unmet) = scan(&self.words.values, w, first, slot.target[i], &mut slot.seen[i]) else {
                continue;
            };
            let guarded = if at == WaitAt::Start { 0 } else { slot.seen[i].saturating_mul(w.every.into()) };
            if guarded <= slot.loaded {
                return Err((unmet, slot.target[i]));
            }
            ready = ready.min(guarded);
        }
        Ok(ready)
    }

    /// Whether a task may store; or the word that it has to wait for.
    #[inline]
    pub(crate) fn ready_to_store(&mut self, u: usize, s: usize) -> Result<(), Unmet> {
        let (plan, task, _) = self.task(u, s);
        let rank = Rank(self.units[u].rank);
        let slot = &mut self.slots[u * SLOTS + s];
        for (i, w) in waits(task).filter(|(_, w)| w.at() == WaitAt::Store) {
            let first = plan.words.at(rank, w.word, w.clock);
            if let Some(unmet) = scan(&self.words.values, w, first, slot.target[i], &mut slot.seen[i]) {
                return Err((unmet, slot.target[i]));
            }
        }
        Ok(())
    }
}

/// Counts the words that are met, in order, in `seen`; returns the first that is not.
#[inline]
fn scan(values: &[u64], w: &Wait, first: usize, target: u64, seen: &mut u32) -> Option<usize> {
    while *seen < u32::from(w.count) {
        let at = first + *seen as usize * usize::from(w.stride);
        if values[at] < target {
            return Some(at);
        }
        *seen += 1;
    }
    None
}
