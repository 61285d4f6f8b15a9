//! Bars of a picture: pieces that are too narrow to be seen are drawn together.

use super::view::{Kind, Piece};
use std::collections::BTreeMap;

/// A bar, in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bar {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) kind: Kind,
}

/// The narrowest bar that is seen.
const LEAST_WIDTH: f64 = 0.4;

/// How moments become pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// The moment at pixel 0, in picoseconds.
    pub(crate) from: i64,
    pub(crate) pixels_per_ps: f64,
    /// Pieces narrower than this share a bar, in pixels.
    pub(crate) cell: f64,
}

impl Scale {
    pub(crate) fn x(&self, at: i64) -> f64 {
        at.abs_diff(self.from) as f64 * self.pixels_per_ps
    }

    /// The bars of a track. Pieces narrower than a cell become one bar for each cell, as wide as they are together. Its kind
    /// is the one that the bars so far owe most: so each kind is drawn as wide in sum as it is, to one cell, where the kind
    /// of most of a cell would hide all that is always the smaller part.
    pub(crate) fn bars(&self, pieces: &[Piece]) -> Vec<Bar> {
        let mut bars = Vec::new();
        let mut cell: Option<Cell> = None;
        let mut owed = BTreeMap::new();
        for p in pieces {
            let (from, to) = (self.x(p.from), self.x(p.to));
            let number = (from / self.cell) as u64;
            let wide = to - from >= self.cell;
            if wide || cell.as_ref().is_some_and(|c| c.number != number) {
                bars.extend(cell.take().and_then(|c| c.bar(&mut owed)));
            }
            if wide {
                bars.push(Bar { from, to, kind: p.kind });
                continue;
            }
            cell.get_or_insert(Cell { number, from, width: 0.0 }).width += to - from;
            *owed.entry(p.kind).or_default() += to - from;
        }
        bars.extend(cell.and_then(|c| c.bar(&mut owed)));
        bars
    }
}

/// Narrow pieces that begin in the same cell.
struct Cell {
    number: u64,
    from: f64,
    width: f64,
}

impl Cell {
    /// The bar; what it shows is not owed any more.
    fn bar(self, owed: &mut BTreeMap<Kind, f64>) -> Option<Bar> {
        let (kind, most) = owed.iter_mut().max_by(|a, b| a.1.total_cmp(b.1))?;
        *most -= self.width;
        Some(Bar { from: self.from, to: self.from + self.width.max(LEAST_WIDTH), kind: *kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCALE: Scale = Scale { from: 100, pixels_per_ps: 0.1, cell: 1.0 };

    fn piece(from: i64, to: i64, kind: Kind) -> Piece {
        Piece { from, to, kind }
    }

    #[test]
    fn wide_pieces_stay_as_they_are() {
        let bars = SCALE.bars(&[piece(100, 200, Kind::Task(0)), piece(200, 230, Kind::Wait)]);
        let expected = [
            Bar { from: 0.0, to: 10.0, kind: Kind::Task(0) },
            Bar { from: 10.0, to: 13.0, kind: Kind::Wait },
        ];
        assert_eq!(bars, expected);
    }

    #[test]
    fn narrow_pieces_of_a_cell_are_one_bar() {
        // Pixels 1.0 to 1.2 and 1.6 to 1.9 of one kind, 1.2 to 1.6 of another; then 2.0 to 2.1 in the next cell.
        let pieces = [
            piece(110, 112, Kind::Task(1)),
            piece(112, 116, Kind::Wait),
            piece(116, 119, Kind::Task(1)),
            piece(120, 121, Kind::Wait),
        ];
        let bars = SCALE.bars(&pieces);
        assert_eq!(bars.len(), 2);
        assert_eq!((bars[0].kind, bars[1].kind), (Kind::Task(1), Kind::Wait));
        assert!((bars[0].to - bars[0].from - 0.9).abs() < 1e-9, "{bars:?}");
        assert!((bars[1].to - bars[1].from - LEAST_WIDTH).abs() < 1e-9, "it is widened until it is seen");
    }

    /// Of every pixel, 0.7 are work and 0.3 a wait: 70 of 100 bars work, 30 wait, and at no place is that far off.
    #[test]
    fn what_is_always_the_smaller_part_is_not_hidden() {
        let pieces: Vec<Piece> = (0..100)
            .flat_map(|n| {
                let from = 100 + 10 * n;
                [piece(from, from + 7, Kind::Task(0)), piece(from + 7, from + 10, Kind::Wait)]
            })
            .collect();
        let bars = SCALE.bars(&pieces);
        assert_eq!(bars.len(), 100);
        for n in 0..=100 {
            let waits = bars[..n].iter().filter(|b| b.kind == Kind::Wait).count();
            assert!((waits as f64 - 0.3 * n as f64).abs() <= 1.0, "{waits} of {n}");
        }
    }
}
