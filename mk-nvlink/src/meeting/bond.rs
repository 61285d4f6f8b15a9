//! What a meeting leaves: mapped memory, and signs of life.

use super::life::{Life, Watch};
use crate::heap::Mapped;
use mk_core::{Heap, Rank};

/// Memory of several processes. To drop it in good order is to leave; the others' memory stays mapped where it is.
#[derive(Debug)]
pub(crate) struct Bond {
    pub(crate) mapped: Mapped,
    pub(crate) watch: Watch,
    /// Until it is dropped.
    pub(crate) life: Option<Life>,
}

impl Heap for Bond {
    fn address(&self, rank: Rank) -> Option<u64> {
        self.mapped.address(rank)
    }

    fn lost(&self) -> Option<Rank> {
        self.watch.lost()
    }
}

impl Drop for Bond {
    fn drop(&mut self) {
        // A process that panics is lost: what it owed the others will not come.
        if !std::thread::panicking()
            && let Some(life) = self.life.take()
        {
            life.leave();
        }
    }
}
