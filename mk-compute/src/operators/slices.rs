//! How K is cut into slices that arrive one after the other.

use crate::Gemm;
use mk_core::{CopyArgs, Limits, Rank, RegionId};

/// K in slices: a row block is sent slice by slice, and a tile waits for slice `j` before its block `j * every`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slices {
    /// How many.
    pub(super) count: u16,
    /// Blocks of a GEMM tile in one slice.
    pub(super) every: u64,
}

impl Slices {
    /// About `wanted` slices of `k` columns, each (but the last) a whole number of [`Gemm::BLOCK_K`] columns: a
    /// slice that ended inside a block could not be waited for before that block.
    ///
    /// Of the numbers of slices that fit, up to twice `wanted`, it takes the nearest, and of two the smaller; one
    /// slice always fits.
    pub(super) fn new(k: u32, wanted: u16) -> Slices {
        let wanted = wanted.max(1).max(least(k));
        let count = (1..=wanted.saturating_mul(2))
            .filter(|&count| fits(k, count))
            .min_by_key(|&count| (count.abs_diff(wanted), count))
            .unwrap_or(1);
        let every = if count == 1 { 1 } else { unit_cols(k, count) / Gemm::BLOCK_K };
        Slices { count, every }
    }
}

/// So many slices that the blocks of one fit into a wait.
fn least(k: u32) -> u16 {
    // At most 2^26 blocks / 65535.
    u64::from(k).div_ceil(Gemm::BLOCK_K * Limits::SPAN) as u16
}

fn fits(k: u32, count: u16) -> bool {
    let unit = unit_cols(k, count);
    let none_is_empty = (u64::from(count) - 1) * unit < u64::from(k);
    count == 1
        || (unit.is_multiple_of(Gemm::BLOCK_K) && unit / Gemm::BLOCK_K <= Limits::SPAN && none_is_empty)
}

/// The width of a slice, as the put that sends it computes it.
fn unit_cols(k: u32, count: u16) -> u64 {
    let none = RegionId(0);
    let put = CopyArgs {
        src: none,
        dst: none,
        peer: Rank(0),
        units: count,
        src_row: 0,
        src_col: 0,
        dst_row: 0,
        dst_col: 0,
        rows: 0,
        cols: k,
    };
    put.unit_cols()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn new(k: u32, wanted: u16) -> (u16, u64) {
        let s = Slices::new(k, wanted);
        (s.count, s.every)
    }

    #[test]
    fn common_sizes_are_cut_as_asked() {
        assert_eq!(new(4096, 4), (4, 16));
        assert_eq!(new(1024, 4), (4, 4));
        assert_eq!(new(192, 4), (3, 1));
        assert_eq!(new(576, 4), (3, 3));
        // A quarter of 320 is 80 columns, not a whole number of blocks; a fifth is 64.
        assert_eq!(new(320, 4), (5, 1));
        assert_eq!(new(64, 4), (1, 1));
        assert_eq!(new(8, 4), (1, 1));
    }

    proptest! {
        #[test]
        fn slice_borders_are_block_borders(k in 1u32..=u32::MAX / 8, wanted in 1u16..40) {
            let k = k * 8;
            let Slices { count, every } = Slices::new(k, wanted);
            prop_assert!((1..=2 * wanted.max(least(k))).contains(&count));
            prop_assert!((1..=Limits::SPAN).contains(&every));
            if count > 1 {
                // The last word guards a block that exists, and unit j starts where block j * every does.
                prop_assert_eq!(unit_cols(k, count), every * 64);
                prop_assert!((u64::from(count) - 1) * every < u64::from(k).div_ceil(64));
                prop_assert!(u64::from(count) * every >= u64::from(k).div_ceil(64));
            }
        }
    }
}
