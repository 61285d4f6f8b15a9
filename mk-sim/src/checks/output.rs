//! Outputs: every byte is written in every epoch.

use super::{Item, Log};
use crate::plan::Plan;
use mk_core::{Fault, Io, Rank, Reason, Rect};

/// An epoch of a program.
pub(crate) struct Epoch {
    pub(crate) number: u64,
    /// Place of its first task in the log.
    pub(crate) first_task: usize,
}

/// What nobody wrote in these epochs of a program.
pub(crate) fn check(plan: &Plan, epochs: &[Epoch], log: &Log) -> Vec<Fault> {
    let mut faults = Vec::new();
    let program = plan.program();
    for (region, by_rank) in program.regions.iter().zip(&plan.items) {
        if region.io != Io::Output {
            continue;
        }
        for (rank, items) in by_rank.iter().enumerate() {
            let rank = Rank(rank as u16);
            let writes: Vec<&Item> = items.iter().filter(|i| i.mode.writes()).collect();
            let complete = first_gap(writes.iter().map(|i| i.rect), region.extent(rank));
            for epoch in epochs {
                let done = |i: &&&Item| log.has_written(epoch.first_task + i.task as usize);
                // Where all tasks wrote, every epoch is like the first.
                let gap = match writes.iter().all(|i| done(&i)) {
                    true => complete,
                    false => first_gap(writes.iter().filter(done).map(|i| i.rect), region.extent(rank)),
                };
                if let Some((row, col)) = gap {
                    faults.push(unwritten(&region.name, rank, epoch.number, row, col));
                }
            }
        }
    }
    faults
}

fn unwritten(region: &str, rank: Rank, epoch: u64, row: u64, col: u64) -> Fault {
    let bytes = format!("from row {row}, column {col}");
    let reason = Reason::Unwritten { region: region.into(), bytes };
    Fault { rank, task: String::new(), signal: String::new(), expected: 0, seen: 0, epoch, reason }
}

/// The first element of a matrix, in row order, that no rectangle covers.
fn first_gap(rects: impl Iterator<Item = Rect>, [rows, cols]: [u64; 2]) -> Option<(u64, u64)> {
    if rows == 0 || cols == 0 {
        return None;
    }
    let mut rects: Vec<Rect> = rects.collect();
    rects.sort_unstable_by_key(|r| (r.row, r.col));
    let (mut next, mut row, mut active) = (0, 0, Vec::<Rect>::new());
    // Strips of rows between which no rectangle begins or ends.
    while row < rows {
        active.retain(|r| r.row_end() > row);
        while next < rects.len() && rects[next].row <= row {
            if rects[next].row_end() > row {
                active.push(rects[next]);
            }
            next += 1;
        }
        active.sort_unstable_by_key(|r| r.col);
        let reach =
            active.iter().fold(0, |reach, r| if r.col <= reach { reach.max(r.col_end()) } else { reach });
        if reach < cols {
            return Some((row, reach));
        }
        let ends = active.iter().map(|r| r.row_end());
        row = ends.chain(rects.get(next).map(|r| r.row)).min().unwrap_or(rows);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn it_finds_the_first_gap_that_a_bitmap_finds() {
        let mut random = Random::new(5);
        let mut gaps = 0;
        for _ in 0..500 {
            let count = random.below(14);
            let mut n = |below| random.below(below);
            let rects: Vec<Rect> = (0..count).map(|_| Rect::new(n(5), n(5), 1 + n(5), 1 + n(5))).collect();
            let bitmap = |r, c| rects.iter().any(|x| x.intersect(&Rect::new(r, c, 1, 1)).is_some());
            let expected = (0..6).flat_map(|r| (0..6).map(move |c| (r, c))).find(|&(r, c)| !bitmap(r, c));
            gaps += usize::from(expected.is_some());
            assert_eq!(first_gap(rects.iter().copied(), [6, 6]), expected, "{rects:?}");
        }
        assert!(gaps > 50 && gaps < 500, "both happen: {gaps}");
        assert_eq!(first_gap(std::iter::empty(), [0, 6]), None);
    }
}
