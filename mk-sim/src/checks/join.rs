//! Which rectangles overlap: a join that is near-linear for tilings.

use mk_core::Rect;

/// Rectangles of the same rows.
struct Band {
    row: u64,
    row_end: u64,
    /// Where its entries are.
    from: usize,
    to: usize,
    /// The widest of them.
    cols: u64,
}

/// Rectangles, by rows and then by columns.
pub(crate) struct Join {
    bands: Vec<Band>,
    /// `reach[i]`: where the bands up to `i` end at most.
    reach: Vec<u64>,
    /// First column and number of each rectangle.
    entries: Vec<(u64, u64, u32)>,
}

impl Join {
    /// Of these rectangles, none of them empty; `each` calls them by their place.
    pub(crate) fn new(rects: impl Iterator<Item = (u32, Rect)>) -> Join {
        let mut all: Vec<(u32, Rect)> = rects.collect();
        all.sort_unstable_by_key(|(i, r)| (r.row, r.rows, r.col, *i));
        let mut join = Join { bands: Vec::new(), reach: Vec::new(), entries: Vec::with_capacity(all.len()) };
        for (i, r) in all {
            let at = join.entries.len();
            join.entries.push((r.col, r.col_end(), i));
            match join.bands.last_mut() {
                Some(b) if (b.row, b.row_end) == (r.row, r.row_end()) => {
                    b.to = at + 1;
                    b.cols = b.cols.max(r.cols);
                }
                _ => join.bands.push(Band {
                    row: r.row,
                    row_end: r.row_end(),
                    from: at,
                    to: at + 1,
                    cols: r.cols,
                }),
            }
        }
        let mut reach = 0;
        for b in &join.bands {
            reach = reach.max(b.row_end);
            join.reach.push(reach);
        }
        join
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bands.is_empty()
    }

    /// Whether no two of its rectangles overlap, as far as a look at neighbours tells: so it is for tilings.
    pub(crate) fn is_disjoint(&self) -> bool {
        let apart = |b: &Band| self.entries[b.from..b.to].windows(2).all(|e| e[0].1 <= e[1].0);
        self.bands.windows(2).all(|b| b[0].row_end <= b[1].row) && self.bands.iter().all(apart)
    }

    /// Calls `found` with each rectangle that overlaps `rect`.
    pub(crate) fn each(&self, rect: &Rect, mut found: impl FnMut(u32)) {
        if rect.is_empty() {
            return;
        }
        let first = self.reach.partition_point(|r| *r <= rect.row);
        for band in self.bands[first..].iter().take_while(|b| b.row < rect.row_end()) {
            if band.row_end <= rect.row {
                continue;
            }
            let entries = &self.entries[band.from..band.to];
            // None that begins further left reaches `rect`.
            let left = rect.col.saturating_sub(band.cols);
            let from = entries.partition_point(|e| e.0 < left);
            for &(_, end, i) in entries[from..].iter().take_while(|e| e.0 < rect.col_end()) {
                if end > rect.col {
                    found(i);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn it_finds_what_a_plain_search_finds() {
        let mut random = Random::new(3);
        for _ in 0..50 {
            let mut rect = || {
                let mut n = |below| random.below(below);
                Rect::new(n(20), n(20), 1 + n(8), 1 + n(8))
            };
            let rects: Vec<Rect> = (0..40).map(|_| rect()).collect();
            let join = Join::new(rects.iter().copied().enumerate().map(|(i, r)| (i as u32, r)));
            assert!(!join.is_disjoint());
            for _ in 0..20 {
                let query = rect();
                let mut found = Vec::new();
                join.each(&query, |i| found.push(i as usize));
                found.sort();
                let expected: Vec<usize> =
                    (0..rects.len()).filter(|&i| rects[i].intersect(&query).is_some()).collect();
                assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn a_tiling_is_disjoint_and_a_shifted_tile_is_not() {
        let tiles = |moved: Option<u64>| {
            (0..12u64)
                .map(move |i| (i as u32, Rect::new(i / 4 * 2, i % 4 * 3 - u64::from(moved == Some(i)), 2, 3)))
        };
        assert!(Join::new(tiles(None)).is_disjoint());
        assert!(!Join::new(tiles(Some(6))).is_disjoint());
        assert!(
            !Join::new([(0, Rect::new(0, 0, 3, 1)), (1, Rect::new(2, 0, 3, 1))].into_iter()).is_disjoint()
        );
    }
}
