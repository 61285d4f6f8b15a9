//! Who reaches whom, by which handler.

use crate::{Caps, Rank, Registry};

/// Who reaches whom, looked up once for each (handler, from, to) in a row.
pub(super) struct Reach<'a> {
    pub(super) registry: &'a Registry,
    pub(super) opcodes: &'a [u16],
    memory: Vec<(u64, Caps)>,
    posts: Vec<(u64, bool)>,
}

const CACHE: usize = 4096;

impl<'a> Reach<'a> {
    pub(super) fn new(registry: &'a Registry, opcodes: &'a [u16]) -> Reach<'a> {
        Reach {
            registry,
            opcodes,
            memory: vec![(u64::MAX, Caps::empty()); CACHE],
            posts: vec![(u64::MAX, false); CACHE],
        }
    }

    /// What a handler can do to the memory and signals of another rank: what its transport offers; without one,
    /// what mapped memory allows.
    pub(super) fn memory(&mut self, opcode: u16, from: Rank, to: Rank) -> Caps {
        let key = (opcode as u64) << 32 | (from.0 as u64) << 16 | to.0 as u64;
        let slot = slot(key);
        if self.memory[slot].0 != key {
            let caps = if self.registry.is_transports(opcode) {
                self.registry.route_of(opcode, from, to).map_or(Caps::empty(), |r| r.caps())
            } else {
                self.registry.route(from, to, Caps::ATOMIC_ADD).map_or(Caps::empty(), |r| r.caps())
            };
            self.memory[slot] = (key, caps);
        }
        self.memory[slot].1
    }

    /// Whether a frame can raise a word of another rank.
    pub(super) fn frame_posts(&mut self, from: Rank, to: Rank) -> bool {
        let key = (from.0 as u64) << 16 | to.0 as u64;
        let slot = slot(key);
        if self.posts[slot].0 != key {
            self.posts[slot] = (key, self.registry.route(from, to, Caps::ATOMIC_ADD).is_ok());
        }
        self.posts[slot].1
    }
}

fn slot(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize
}
