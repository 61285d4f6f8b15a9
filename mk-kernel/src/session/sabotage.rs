//! For tests of what happens then: a loaded program, broken in ways that a proof excludes.

use super::bound::table;
use super::loaded::Loaded;
use super::memory::piece;
use super::place::Place;
use crate::abi::{Params, StreamRange};
use crate::driver::{self, bytes_of};
use crate::layout::ConstPtr;
use mk_core::{Rank, Task};
use std::mem::offset_of;

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// No post of other ranks reaches this one any more.
    LosePostsTo(Rank),
    /// This rank takes no tasks any more.
    NoTasks(Rank),
    /// The first task of this rank has an opcode that no handler has.
    BadOpcode(Rank),
}

impl Loaded {
    /// Breaks the program on the GPUs; what is bound afterwards is broken.
    pub(super) fn sabotage(&mut self, places: &[Place], how: Sabotage) -> Result<(), driver::Error> {
        self.unbind_host();
        match how {
            Sabotage::LosePostsTo(rank) => self.lose_posts_to(rank, places),
            Sabotage::NoTasks(rank) => self.overwrite(
                rank,
                places,
                |own| own.streams,
                |program, rank| {
                    let lanes = program.lanes[rank.index()] as usize;
                    bytes_of(&vec![StreamRange::default(); 2 * lanes]).to_vec()
                },
            ),
            Sabotage::BadOpcode(rank) => self.overwrite(
                rank,
                places,
                |own| own.tasks + offset_of!(Task, op) as u64,
                |_, _| u16::MAX.to_le_bytes().to_vec(),
            ),
        }
    }

    fn lose_posts_to(&mut self, rank: Rank, places: &[Place]) -> Result<(), driver::Error> {
        let words = vec![0u64; self.program().words() as usize];
        for (i, place) in places.iter().enumerate() {
            let nowhere = table(place, &words, &mut self.tables)?;
            let mut signals = self.signals();
            signals[rank.index()] = nowhere;
            let signals = ConstPtr::new(table(place, &signals, &mut self.tables)?);
            let others = |p: &&mut Params| p.rank != u32::from(rank.0);
            self.launches[i].params.iter_mut().filter(others).for_each(|p| p.signals = signals);
        }
        Ok(())
    }

    #[allow(unsafe_code, reason = "tables are known by their addresses here")]
    fn overwrite(
        &self,
        rank: Rank,
        places: &[Place],
        at: impl Fn(&super::loaded::Own) -> u64,
        bytes: impl Fn(&mk_core::Program, Rank) -> Vec<u8>,
    ) -> Result<(), driver::Error> {
        for own in self.own.iter().filter(|o| o.rank == rank) {
            let bytes = bytes(self.program(), rank);
            // SAFETY: inside of a table of this program.
            let memory = unsafe { piece(at(own), 0, bytes.len() as u64) };
            places[own.place].control.upload(&memory, 0, &bytes)?;
        }
        Ok(())
    }
}
