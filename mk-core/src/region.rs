//! Named memory: regions, and rectangles inside them.

use crate::{DType, Error, Limits, ids::Rank};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Who owns a region's memory, and who may reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RegionKind {
    /// Symmetric memory of the session: peers may reach it.
    Heap,
    /// The caller's own tensor, bound at each run without a copy; only its own rank reaches it.
    Bound,
    /// A transport's buffer, in memory that a NIC can reach.
    Staging,
}

/// What a region is to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Io {
    /// Given by the caller, never written.
    Input,
    /// Every byte is written exactly once in an epoch.
    Output,
    /// Given by the caller and updated.
    InOut,
    /// Nobody outside the program sees it.
    Scratch,
}

/// Rows and columns of a region, in elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// The same on every rank: `[rows, cols]`.
    Uniform([u64; 2]),
    /// `[rows, cols]` of each rank; the region is allocated for the largest.
    PerRank(Vec<[u64; 2]>),
}

/// A named, row-major matrix that exists on every rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Region {
    /// Unique in its program; bindings use it.
    pub name: String,
    /// Whose memory it is.
    pub kind: RegionKind,
    /// What it is to the caller.
    pub io: Io,
    /// Type of its elements.
    pub dtype: DType,
    /// Its extent on each rank.
    pub shape: Shape,
    /// Copies of it that rotate with the epoch (1: the same memory in every epoch).
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub depth: u32,
    /// Programs of one session that declare a shared region of this name use the same memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
}

fn one() -> u32 {
    1
}
fn is_one(depth: &u32) -> bool {
    *depth == 1
}

impl Region {
    /// A region of this kind; see the short-hands [`Region::input`], [`Region::output`], [`Region::heap`].
    pub fn new(name: &str, kind: RegionKind, io: Io, dtype: DType, shape: Shape) -> Region {
        Region { name: name.into(), kind, io, dtype, shape, depth: 1, shared: false }
    }

    /// A tensor that the caller binds and the program only reads.
    pub fn input(name: &str, dtype: DType, shape: Shape) -> Region {
        Region::new(name, RegionKind::Bound, Io::Input, dtype, shape)
    }

    /// A tensor that the caller binds and the program writes completely.
    pub fn output(name: &str, dtype: DType, shape: Shape) -> Region {
        Region::new(name, RegionKind::Bound, Io::Output, dtype, shape)
    }

    /// Symmetric scratch memory that peers may reach.
    pub fn heap(name: &str, dtype: DType, shape: Shape) -> Region {
        Region::new(name, RegionKind::Heap, Io::Scratch, dtype, shape)
    }

    /// The same region with `depth` copies that rotate with the epoch.
    pub fn rotating(self, depth: u32) -> Region {
        Region { depth, ..self }
    }

    /// The same region, shared by name between the programs of a session.
    pub fn shared(self) -> Region {
        Region { shared: true, ..self }
    }

    /// Whether two programs that share a region of this name mean the same memory by it.
    pub fn agrees(&self, other: &Region) -> bool {
        let key = |r: &Region| (r.kind, r.io, r.dtype, r.depth);
        key(self) == key(other) && self.shape == other.shape
    }

    /// `[rows, cols]` on `rank`; `[0, 0]` for a rank outside the world.
    #[inline]
    pub fn extent(&self, rank: Rank) -> [u64; 2] {
        match &self.shape {
            Shape::Uniform(e) => *e,
            Shape::PerRank(v) => v.get(rank.index()).copied().unwrap_or([0, 0]),
        }
    }

    /// `[rows, cols]` that is allocated on every rank.
    pub fn allocated(&self) -> [u64; 2] {
        match &self.shape {
            Shape::Uniform(e) => *e,
            Shape::PerRank(v) => v.iter().fold([0, 0], |m, e| [m[0].max(e[0]), m[1].max(e[1])]),
        }
    }

    /// Bytes of one copy on one rank, or an error where that exceeds [`Limits::REGION_BYTES`].
    pub fn bytes(&self) -> Result<u64, Error> {
        let [rows, cols] = self.allocated();
        rows.checked_mul(cols)
            .and_then(|n| n.checked_mul(self.dtype.bytes()))
            .filter(|&n| n <= Limits::REGION_BYTES)
            .ok_or_else(|| {
                Error::input(
                    format!("region '{}' is too large", self.name),
                    format!("{rows} x {cols} x {}", self.dtype),
                    format!("at most {} bytes a rank", Limits::REGION_BYTES),
                    "use more ranks, or a smaller matrix",
                )
            })
    }

    /// The whole of it on `rank`.
    pub fn whole(&self, rank: Rank) -> Rect {
        let [rows, cols] = self.extent(rank);
        Rect { row: 0, col: 0, rows, cols }
    }
}

/// A rectangle of elements: `rows` rows from `row`, `cols` columns from `col`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Rect {
    /// First row.
    pub row: u64,
    /// First column.
    pub col: u64,
    /// Number of rows.
    pub rows: u64,
    /// Number of columns.
    pub cols: u64,
}

impl Rect {
    /// `rows` rows from `row`, `cols` columns from `col`.
    pub const fn new(row: u64, col: u64, rows: u64, cols: u64) -> Rect {
        Rect { row, col, rows, cols }
    }

    /// No element at all.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.rows == 0 || self.cols == 0
    }

    /// Number of elements (saturating).
    #[inline]
    pub const fn area(&self) -> u64 {
        self.rows.saturating_mul(self.cols)
    }

    /// One past the last row (saturating).
    #[inline]
    pub const fn row_end(&self) -> u64 {
        self.row.saturating_add(self.rows)
    }

    /// One past the last column (saturating).
    #[inline]
    pub const fn col_end(&self) -> u64 {
        self.col.saturating_add(self.cols)
    }

    /// Whether all of it lies inside a matrix of `[rows, cols]`. An empty rectangle lies inside anything.
    #[inline]
    pub fn fits(&self, extent: [u64; 2]) -> bool {
        self.is_empty()
            || (self.row.checked_add(self.rows).is_some_and(|e| e <= extent[0])
                && self.col.checked_add(self.cols).is_some_and(|e| e <= extent[1]))
    }

    /// The elements that both have; `None` if there are none.
    #[inline]
    pub fn intersect(&self, o: &Rect) -> Option<Rect> {
        let (row, col) = (self.row.max(o.row), self.col.max(o.col));
        let (row_end, col_end) = (self.row_end().min(o.row_end()), self.col_end().min(o.col_end()));
        (row < row_end && col < col_end).then(|| Rect::new(row, col, row_end - row, col_end - col))
    }
}

impl fmt::Debug for Rect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Rect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rows {}..{} x cols {}..{}", self.row, self.row_end(), self.col, self.col_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_beyond_u32_are_exact_and_beyond_the_limit_are_refused() {
        let region = |rows, cols| Region::heap("x", DType::Bf16, Shape::Uniform([rows, cols]));
        assert_eq!(region(524_289, 4096).bytes().unwrap(), 4_294_975_488);
        assert!(region(1 << 33, 1 << 33).bytes().is_err());
        assert!(region(u64::MAX, 2).bytes().is_err());
    }

    #[test]
    fn a_rectangle_at_the_end_of_the_number_line_does_not_wrap() {
        assert!(!Rect::new(u64::MAX, 0, 2, 1).fits([10, 10]));
        assert!(Rect::new(8, 8, 2, 2).fits([10, 10]));
        assert!(!Rect::new(8, 8, 2, 3).fits([10, 10]));
        assert_eq!(Rect::new(0, 0, 4, 4).intersect(&Rect::new(4, 0, 4, 4)), None);
        assert_eq!(Rect::new(0, 0, 4, 4).intersect(&Rect::new(2, 3, 4, 4)), Some(Rect::new(2, 3, 2, 1)));
    }
}
