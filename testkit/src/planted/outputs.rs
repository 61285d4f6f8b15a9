//! Outputs written twice or not at all, and reads of what nobody wrote.

use super::{Planted, plant};
use crate::kit::Kit;
use mk_core::{Error, verify::FindingKind};

type Result<T = Planted> = std::result::Result<T, Error>;

/// Rows of an output are written by one task each, `hole` by none.
fn missing_rows(ranks: u16, rows: u32, hole: u32) -> Result {
    let mut k = Kit::new(format!("missing row({ranks}, {rows}, {hole})"), 1, ranks.into())?;
    let (x, y) = (k.input("x", rows.into(), 2)?, k.output("y", rows.into(), 2)?);
    for r in 0..ranks {
        for row in 0..rows {
            if (r, row) != (ranks - 1, hole) {
                k.map((r, 0), "row", (x, row, 0), (y, row, 0), [1, 2])?;
            }
        }
    }
    plant(k, FindingKind::Unwritten, &[])
}

/// The last columns of an output are left out.
fn missing_columns(cols: u32, missing: u32) -> Result {
    let mut k = Kit::new(format!("missing columns({cols}, {missing})"), 1, 1)?;
    let (x, y) = (k.input("x", 2, cols.into())?, k.output("y", 2, cols.into())?);
    k.map((0, 0), "most", (x, 0, 0), (y, 0, 0), [2, cols - missing])?;
    plant(k, FindingKind::Unwritten, &[])
}

/// Two ordered tasks write the same rows, shifted by `shift`.
fn twice(rows: u32, shift: u32, ranks: u16) -> Result {
    let mut k = Kit::new(format!("written twice({rows}, {shift}, {ranks})"), 1, ranks.into())?;
    let all = rows + shift;
    let (x, y) = (k.input("x", all.into(), 2)?, k.output("y", all.into(), 2)?);
    for r in 0..ranks {
        let first = k.map((r, 0), "first", (x, 0, 0), (y, 0, 0), [rows, 2])?;
        let second = k.map((r, 1), "second", (x, shift, 0), (y, shift, 0), [rows, 2])?;
        k.b.edge(&[first], second)?;
    }
    plant(k, FindingKind::WrittenTwice, &["first", "second"])
}

/// Scratch rows are read of which `missing` were never written.
fn stale(rows: u32, missing: u32, walked: bool) -> Result {
    let mut k = Kit::new(format!("stale({rows}, {missing}, {walked})"), 1, 1)?;
    let (x, mid) = (k.input("x", rows.into(), 2)?, k.local("mid", rows.into(), 2)?);
    let y = k.output("y", rows.into(), 2)?;
    let fill = k.map((0, 0), "fill", (x, 0, 0), (mid, 0, 0), [rows - missing, 2])?;
    let take = k.walk((0, 1), "take", (mid, 0, 0), (y, 0, 0), [rows, 2], 1, walked)?;
    k.b.edge(&[fill], take)?;
    plant(k, FindingKind::Stale, &["take"])
}

/// All of them.
///
/// # Errors
/// None: the builder does not look at what is written.
pub fn all() -> Result<Vec<Planted>> {
    let mut all = Vec::new();
    for n in 1..=5 {
        for ranks in [1, 3] {
            all.push(missing_rows(ranks, n, n / 2)?);
        }
        all.push(missing_columns(n + 3, n)?);
        all.push(missing_columns(9, n)?);
        for shift in 0..n.min(3) {
            for ranks in [1, 2] {
                all.push(twice(n, shift, ranks)?);
            }
        }
        for missing in 1..=n.min(3) {
            all.push(stale(n + 1, missing, true)?);
            all.push(stale(n + 1, missing, false)?);
        }
    }
    Ok(all)
}
