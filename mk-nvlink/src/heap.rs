//! Mapped memory of an island, by rank.

use crate::memory::Piece;
use mk_core::{Heap, Rank};
use mk_cuda::{Mapping, Memory as _};
use std::collections::BTreeMap;

/// The memory of all ranks in reach.
#[derive(Debug)]
pub(crate) struct Mapped {
    pieces: BTreeMap<Rank, Mapping>,
}

impl Mapped {
    pub(crate) fn new(pieces: impl IntoIterator<Item = Piece>) -> Mapped {
        Mapped { pieces: pieces.into_iter().map(|p| (p.rank, p.mapping)).collect() }
    }
}

impl Heap for Mapped {
    fn address(&self, rank: Rank) -> Option<u64> {
        self.pieces.get(&rank).map(|mapping| mapping.address())
    }

    /// Nobody: all ranks are this process's.
    fn lost(&self) -> Option<Rank> {
        None
    }
}
