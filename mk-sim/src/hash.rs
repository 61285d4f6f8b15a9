//! Hash maps for numbers of our own: words, ranks, pairs of them.
//!
//! The standard hasher guards against keys that an enemy chose, at a price that shows where there are millions of
//! lookups. Nothing here depends on the order of a map, so its numbers need no secret.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// A map with keys of a few numbers.
pub(crate) type Map<K, V> = HashMap<K, V, BuildHasherDefault<Fold>>;
/// A set of a few numbers each.
pub(crate) type Set<K> = HashSet<K, BuildHasherDefault<Fold>>;

/// Multiplies to 128 bits and folds the halves, as wyhash does (Wang Yi, 2019).
#[derive(Default)]
pub(crate) struct Fold(u64);

impl Fold {
    #[inline]
    fn add(&mut self, n: u64) {
        // Its factor is 2^64 over the golden ratio, which spreads runs of numbers evenly.
        let product = u128::from(self.0 ^ n ^ 0x2545_f491_4f6c_dd1d) * 0x9e37_79b9_7f4a_7c15;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

impl Hasher for Fold {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut n = [0; 8];
            n[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(n));
        }
    }

    #[inline]
    fn write_u8(&mut self, n: u8) {
        self.add(n.into());
    }

    #[inline]
    fn write_u16(&mut self, n: u16) {
        self.add(n.into());
    }

    #[inline]
    fn write_u32(&mut self, n: u32) {
        self.add(n.into());
    }

    #[inline]
    fn write_u64(&mut self, n: u64) {
        self.add(n);
    }

    #[inline]
    fn write_usize(&mut self, n: usize) {
        self.add(n as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::Hash;

    #[test]
    fn neighbours_are_spread_over_both_ends_of_the_hash() {
        let hash = |key: (u32, u16, u16)| {
            let mut h = Fold::default();
            key.hash(&mut h);
            h.finish()
        };
        let hashes: Vec<u64> = (0..64).flat_map(|a| (0..64).map(move |b| hash((1, a, b)))).collect();
        // Maps take the place from the low bits and a tag from the high ones.
        for shift in [0, 57] {
            let mut counts = [0; 128];
            hashes.iter().for_each(|h| counts[(h >> shift) as usize & 127] += 1);
            assert!(counts.iter().all(|n| (8..80).contains(n)), "32 each, by chance: {counts:?}");
        }
    }
}
