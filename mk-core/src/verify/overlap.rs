//! Which accesses overlap: writes in bands of rows, looked up by rows, then by columns.
//!
//! Tiles of a plan share their rows with their neighbours, so there are few bands and the look-up is two binary
//! searches. Rectangles without any such order still work, only slower.

use super::facts::Item;
use crate::Rect;

/// An index of the writing items of one region on one rank.
pub(super) struct Overlap {
    bands: Vec<Band>,
    columns: Vec<Column>,
}

struct Band {
    row: u64,
    row_end: u64,
    /// The largest `row_end` of this band and all before it.
    reach: u64,
    /// Its columns.
    first: usize,
    last: usize,
}

struct Column {
    col: u64,
    col_end: u64,
    /// The largest `col_end` of this column and all before it in its band.
    reach: u64,
    item: u32,
}

impl Overlap {
    /// An index of those of `items` that write.
    pub(super) fn new(items: &[Item]) -> Overlap {
        let mut writes: Vec<u32> =
            (0..items.len() as u32).filter(|&i| items[i as usize].mode.writes()).collect();
        let key = |i: u32| {
            let r = items[i as usize].rect;
            (r.row, r.row_end(), r.col)
        };
        writes.sort_unstable_by_key(|&i| key(i));
        let (mut bands, mut columns): (Vec<Band>, Vec<Column>) =
            (Vec::new(), Vec::with_capacity(writes.len()));
        for &item in &writes {
            let r = items[item as usize].rect;
            let (row, row_end, col, col_end) = (r.row, r.row_end(), r.col, r.col_end());
            let before = bands.last().map_or(0, |b| b.reach);
            let mut reach = col_end;
            match bands.last_mut().filter(|b| b.row == row && b.row_end == row_end) {
                Some(band) => {
                    band.last += 1;
                    reach = reach.max(columns.last().map_or(0, |c| c.reach));
                }
                None => bands.push(Band {
                    row,
                    row_end,
                    reach: before.max(row_end),
                    first: columns.len(),
                    last: columns.len() + 1,
                }),
            }
            columns.push(Column { col, col_end, reach, item });
        }
        Overlap { bands, columns }
    }

    /// Whether nothing writes.
    pub(super) fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    /// Calls `found` with each writing item that has an element in common with `rect`, until it returns `false`.
    #[inline]
    pub(super) fn each(&self, rect: &Rect, mut found: impl FnMut(u32) -> bool) {
        let bands = self.bands.partition_point(|b| b.row < rect.row_end());
        for band in self.bands[..bands].iter().rev() {
            if band.reach <= rect.row {
                return;
            }
            if band.row_end <= rect.row {
                continue;
            }
            let columns = &self.columns[band.first..band.last];
            let before = columns.partition_point(|c| c.col < rect.col_end());
            for c in columns[..before].iter().rev() {
                if c.reach <= rect.col {
                    break;
                }
                if c.col_end > rect.col && !found(c.item) {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mode, Phase, TaskId, Walk};
    use proptest::prelude::*;

    fn item((row, col, rows, cols, write): (u64, u64, u64, u64, bool)) -> Item {
        Item {
            rect: Rect::new(row, col, rows, cols),
            walk: Walk::Whole,
            task: TaskId(0),
            block: None,
            mode: if write { Mode::Write } else { Mode::Read },
            at: Phase::Comm,
        }
    }

    proptest! {
        #[test]
        fn finds_exactly_what_a_loop_over_all_pairs_finds(
            items in prop::collection::vec((0u64..12, 0u64..12, 1u64..6, 1u64..6, any::<bool>()), 0..40)
        ) {
            let items: Vec<Item> = items.into_iter().map(item).collect();
            let index = Overlap::new(&items);
            for q in &items {
                let mut found = Vec::new();
                index.each(&q.rect, |i| { found.push(i); true });
                found.sort_unstable();
                let all: Vec<u32> = (0..items.len() as u32)
                    .filter(|&i| {
                        let o = &items[i as usize];
                        o.mode.writes() && o.rect.intersect(&q.rect).is_some()
                    })
                    .collect();
                prop_assert_eq!(found, all);
            }
        }
    }
}
