//! How a dimension is divided among ranks, and a shard into blocks.

use std::ops::Range;

/// The units that `rank` of `world` ranks holds: `floor(rank * units / world) .. floor((rank + 1) * units / world)`.
///
/// Shards differ by at most one unit, and may be empty. A rank outside the world holds nothing.
///
/// ```
/// use mk_compute::shard;
/// assert_eq!([0, 1, 2].map(|rank| shard(520, 3, rank)), [0..173, 173..346, 346..520]);
/// assert_eq!([0, 1, 2].map(|rank| shard(1, 3, rank)), [0..0, 0..0, 0..1]);
/// ```
pub fn shard(units: u64, world: u32, rank: u32) -> Range<u64> {
    let world = u128::from(world.max(1));
    // At most `units`, so it fits.
    let before = |ranks: u128| (ranks.min(world) * u128::from(units) / world) as u64;
    before(u128::from(rank))..before(u128::from(rank) + 1)
}

/// `range` in blocks of `size`; the last may be smaller.
pub(super) fn blocks(range: Range<u64>, size: u64) -> impl Iterator<Item = Range<u64>> + Clone {
    (0..block_count(&range, size)).map(move |i| {
        let start = range.start + i * size;
        start..range.end.min(start.saturating_add(size))
    })
}

/// How many blocks of `size` there are in `range`.
pub(super) fn block_count(range: &Range<u64>, size: u64) -> u64 {
    (range.end - range.start).div_ceil(size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shards_follow_one_another_and_differ_by_one_unit(units: u64, world in 1u32..=65_536, rank: u16) {
            let rank = u32::from(rank) % world;
            let own = shard(units, world, rank);
            prop_assert_eq!(shard(units, world, 0).start, 0);
            prop_assert_eq!(shard(units, world, world - 1).end, units);
            prop_assert!(own.end - own.start - units / u64::from(world) <= 1);
            if rank + 1 < world {
                prop_assert_eq!(own.end, shard(units, world, rank + 1).start);
            }
        }

        #[test]
        fn blocks_cover_a_range_once(start in 0u64..1000, len in 0u64..1000, size in 1u64..300) {
            let mut next = start;
            for block in blocks(start..start + len, size) {
                prop_assert_eq!(block.start, next);
                prop_assert!(block.end - block.start <= size && !block.is_empty());
                next = block.end;
            }
            prop_assert_eq!(next, start + len);
        }
    }

    #[test]
    fn a_rank_outside_the_world_holds_nothing() {
        assert!(shard(10, 2, 2).is_empty());
        assert!(shard(u64::MAX, 0, 7).is_empty());
    }
}
