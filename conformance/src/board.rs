//! Where rectangles lie in a region.

use crate::config::Config;
use crate::random::Random;
use mk_core::{DType, Rect};

/// Elements of the largest gap between two rectangles, and around all of them.
const GAP: u64 = 5;
/// Elements that fill 16 bytes in every type.
const WHOLE_ROW: u64 = 8;

/// A region on one rank that grows as rectangles are placed in it, none over another, with gaps between them.
#[derive(Clone, Debug)]
pub(crate) struct Board {
    extent: [u64; 2],
    /// Rectangles begin at multiples of so many columns.
    grain: u64,
}

impl Board {
    /// A region of this type, still empty.
    pub(crate) fn new(config: Config, dtype: DType) -> Board {
        Board { extent: [0, 0], grain: config.grain(&[dtype]) }
    }

    /// A place below all others; at this column, or at any.
    pub(crate) fn below(&mut self, random: &mut Random, [rows, cols]: [u64; 2], col: Option<u64>) -> Rect {
        let row = self.extent[0] + random.below(GAP);
        let col = col.unwrap_or_else(|| random.below(GAP + 6).next_multiple_of(self.grain));
        self.cover(Rect::new(row, col, rows, cols))
    }

    /// A place to the right of all others, from the first row on.
    pub(crate) fn beside(&mut self, random: &mut Random, [rows, cols]: [u64; 2]) -> Rect {
        let col = (self.extent[1] + random.below(GAP)).next_multiple_of(self.grain);
        self.cover(Rect::new(0, col, rows, cols))
    }

    /// Makes room for this rectangle.
    pub(crate) fn cover(&mut self, rect: Rect) -> Rect {
        self.extent = [self.extent[0].max(rect.row_end()), self.extent[1].max(rect.col_end())];
        rect
    }

    /// Rows and columns of the region, with something around the rectangles. Its rows are `odd`, if they may be, or
    /// multiples of 8 elements.
    pub(crate) fn finish(&self, random: &mut Random, odd: bool) -> [u64; 2] {
        if self.extent == [0, 0] && random.one_in(2) {
            return [0, 0];
        }
        let [rows, cols] = [self.extent[0] + random.below(GAP), self.extent[1] + 1 + random.below(GAP)];
        match odd && self.grain == 1 {
            true => [rows, cols | 1],
            false => [rows, cols.next_multiple_of(WHOLE_ROW)],
        }
    }
}
