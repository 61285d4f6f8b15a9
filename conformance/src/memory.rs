//! One rank's tensors of one epoch: what the caller gives, and what must come back.

use crate::case::Epoch;
use crate::expect::Expected;
use crate::random::Random;
use crate::value::{Around, filled, part, put};
use mk_core::{Io, Program, Rank, Rect, Tensor};
use std::collections::BTreeMap;

/// One rank's tensors. Before anything is put into them, inputs are poison and what is updated is canaries.
pub(crate) struct Memory {
    rank: Rank,
    given: BTreeMap<String, Tensor>,
    want: BTreeMap<String, Expected>,
}

impl Memory {
    pub(crate) fn new(random: &mut Random, program: &Program, rank: Rank) -> Memory {
        let mut memory = Memory { rank, given: BTreeMap::new(), want: BTreeMap::new() };
        for region in &program.regions {
            let around = match region.io {
                Io::Input => Around::Poison,
                Io::InOut => Around::Canary,
                Io::Output | Io::Scratch => continue,
            };
            let tensor = filled(region.dtype, region.extent(rank), around, random.next());
            if region.io == Io::InOut {
                memory.want.insert(region.name.clone(), Expected::new(tensor.clone()));
            }
            memory.given.insert(region.name.clone(), tensor);
        }
        memory
    }

    /// The caller puts data there.
    pub(crate) fn fill(&mut self, region: &str, at: Rect, data: &Tensor) {
        put(self.given.get_mut(region).expect("the caller gives this region"), at, data);
        if let Some(want) = self.want.get_mut(region) {
            want.bytes(at, data);
        }
    }

    /// What the caller gave.
    pub(crate) fn given(&self, region: &str, at: Rect) -> Tensor {
        part(&self.given[region], at)
    }

    /// What must come back.
    pub(crate) fn want(&mut self, region: &str) -> &mut Expected {
        self.want.get_mut(region).expect("this region comes back")
    }

    /// Both, as this rank's part of a run.
    pub(crate) fn finish(self, epoch: &mut Epoch) {
        for (name, tensor) in self.given {
            epoch.given.set(self.rank, &name, tensor);
        }
        epoch.want.extend(self.want.into_iter().map(|(name, want)| ((self.rank, name), want)));
    }
}
