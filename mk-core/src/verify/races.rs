//! No two accesses without an order overlap, every output byte is written once, nothing stale is read.

use super::facts::{Facts, Item};
use super::order::{Answer, Order};
use super::overlap::Overlap;
use super::report::{Findings, refuted, unproved};
use super::{Finding, FindingKind as Kind};
use smallvec::SmallVec;

use crate::{Io, Mode, Program, Rank, Rect, Region, RegionKind};

/// Checks one program; returns the number of overlapping pairs that are ordered.
pub(super) fn check(facts: &Facts<'_>, findings: &mut Findings) -> u64 {
    let mut check =
        Check { facts, order: Order::within(facts), pairs: 0, left: 10_000_000 + 64 * facts.accesses };
    for (region, ranks) in facts.program.regions.iter().zip(&facts.items) {
        for (rank, items) in ranks.iter().enumerate() {
            let place = Place { region, rank: Rank(rank as u16) };
            let before = findings.0.len();
            check.bucket(place, items, findings);
            check.callers(place, items, findings);
            if region.io == Io::Output && findings.0.len() == before {
                check_covered(place, items, findings);
            }
            if findings.full() {
                return check.pairs;
            }
        }
    }
    check.pairs
}

/// A region on one rank.
#[derive(Clone, Copy)]
struct Place<'a> {
    region: &'a Region,
    rank: Rank,
}

struct Check<'f, 'p> {
    facts: &'f Facts<'p>,
    order: Order<'f, 'p>,
    pairs: u64,
    /// Overlapping pairs that may still be looked at.
    left: u64,
}

/// How two accesses of one epoch are ordered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sense {
    Before,
    After,
    Neither,
    Unknown,
}

impl Check<'_, '_> {
    fn bucket(&mut self, place: Place<'_>, items: &[Item], findings: &mut Findings) {
        let index = Overlap::new(items);
        // What scratch and outputs hold from an earlier epoch is nothing that a program may rely on.
        let fresh_only = matches!(place.region.io, Io::Scratch | Io::Output) && !place.region.shared;
        if index.is_empty() && !fresh_only {
            return;
        }
        for (q, item) in items.iter().enumerate() {
            let asks = fresh_only && item.mode != Mode::Write;
            let mut fresh: SmallVec<[Rect; 8]> = SmallVec::new();
            index.each(&item.rect, |w| {
                let write = &items[w as usize];
                // Two writes are judged once, from the later one.
                let judged = !item.mode.writes() || (w as usize) < q;
                if write.task == item.task || !(judged || asks) {
                    return true;
                }
                let Some(left) = self.left.checked_sub(1) else {
                    findings.push(unproved(Vec::new(), too_irregular(place.region)));
                    return false;
                };
                self.left = left;
                let both = item.rect.intersect(&write.rect).expect("the index found an overlap");
                let sense = self.sense(write, item, &both);
                if sense == Sense::Before && write.mode == Mode::Write {
                    fresh.push(both);
                }
                if judged {
                    self.judge(place, sense, write, item, &both, findings);
                }
                !findings.full()
            });
            if asks && !findings.any() {
                let fresh = union_area(&mut fresh);
                if fresh < item.rect.area() {
                    findings.push(self.stale(place, item, fresh));
                }
            }
            if findings.full() {
                return;
            }
        }
    }

    /// What the caller sees of a region, peers may touch only while its own rank runs: after it has started, for the
    /// caller fills inputs before; and noticed before it ends, for the caller reads outputs after.
    fn callers(&mut self, place: Place<'_>, items: &[Item], findings: &mut Findings) {
        if place.region.io == Io::Scratch || place.region.kind == RegionKind::Bound {
            return;
        }
        for item in items.iter().filter(|i| self.facts.rank_of[i.task.index()] != place.rank) {
            for (when, answer) in [
                ("before that rank has started its run", self.order.after_start(item, place.rank)),
                ("after that rank has ended its run", self.order.before_end(item, place.rank)),
            ] {
                match answer {
                    Answer::Ordered => {}
                    Answer::Unknown => findings.push(self.unknown(item, item)),
                    Answer::Unordered => {
                        let name = self.facts.program.task_name(item.task);
                        let detail = format!(
                            "{name} may touch {} of '{}' on {} {when}: it is the caller's then",
                            item.rect, place.region.name, place.rank
                        );
                        findings.push(refuted(Kind::OutsideRun, vec![name], detail));
                    }
                }
                if findings.full() {
                    return;
                }
            }
        }
    }

    fn sense(&mut self, a: &Item, b: &Item, both: &Rect) -> Sense {
        let before = self.order.before(a, b, both, 0);
        if before == Answer::Ordered {
            return Sense::Before;
        }
        match (before, self.order.before(b, a, both, 0)) {
            (_, Answer::Ordered) => Sense::After,
            (Answer::Unordered, Answer::Unordered) => Sense::Neither,
            _ => Sense::Unknown,
        }
    }

    /// Records what is wrong with two overlapping accesses; counts them if nothing is.
    fn judge(
        &mut self,
        place: Place<'_>,
        sense: Sense,
        a: &Item,
        b: &Item,
        both: &Rect,
        findings: &mut Findings,
    ) {
        if place.region.io == Io::Output && a.mode == Mode::Write && b.mode == Mode::Write {
            findings.push(self.pair(Kind::WrittenTwice, place, a, b, both, "both write", "in one epoch"));
            return;
        }
        let (first, second) = match sense {
            Sense::Before => (a, b),
            Sense::After => (b, a),
            Sense::Neither => {
                findings.push(self.pair(
                    Kind::Race,
                    place,
                    a,
                    b,
                    both,
                    "both touch",
                    "and neither waits for the other",
                ));
                return;
            }
            Sense::Unknown => return findings.push(self.unknown(a, b)),
        };
        // The epoch that uses the same copy next: what came second must have ended before what came first begins.
        // (What came first is before what comes second then, by its own rank's run boundary.)
        let depth = place.region.depth;
        match self.order.before(second, first, both, depth as u8) {
            Answer::Ordered => self.pairs += 1,
            Answer::Unknown => findings.push(self.unknown(second, first)),
            Answer::Unordered => {
                findings.push(self.too_early(place, second, first, both, depth));
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn pair(
        &self,
        kind: Kind,
        place: Place<'_>,
        a: &Item,
        b: &Item,
        both: &Rect,
        what: &str,
        when: &str,
    ) -> Finding {
        let p = self.facts.program;
        let names = vec![p.task_name(a.task), p.task_name(b.task)];
        let detail = format!(
            "{} and {} {what} {both} of '{}' on {}, {when}",
            names[0], names[1], place.region.name, place.rank
        );
        refuted(kind, names, detail)
    }

    /// What comes first in an epoch may begin the next one before what comes second has ended this one.
    fn too_early(&self, place: Place<'_>, second: &Item, first: &Item, both: &Rect, depth: u32) -> Finding {
        let p = self.facts.program;
        let names = vec![p.task_name(second.task), p.task_name(first.task)];
        let verb = |item: &Item| if item.mode == Mode::Read { "read" } else { "write" };
        let detail = format!(
            "{} of epoch e + {depth} may {} {both} of '{}' on {} while {} of epoch e still {}s it: no credit holds it back",
            names[1],
            verb(first),
            place.region.name,
            place.rank,
            names[0],
            verb(second),
        );
        refuted(Kind::Race, names, detail)
    }

    fn stale(&self, place: Place<'_>, item: &Item, fresh: u64) -> Finding {
        let name = self.facts.program.task_name(item.task);
        let detail = format!(
            "{name} reads {} of '{}' on {}, of which only {fresh} of {} elements are written before it in the same epoch",
            item.rect,
            place.region.name,
            place.rank,
            item.rect.area()
        );
        refuted(Kind::Stale, vec![name], detail)
    }

    fn unknown(&self, a: &Item, b: &Item) -> Finding {
        let names = vec![self.facts.program.task_name(a.task), self.facts.program.task_name(b.task)];
        let detail =
            format!("whether {} comes before {} could not be told within the budget", names[0], names[1]);
        unproved(names, detail)
    }
}

pub(super) fn too_irregular(region: &Region) -> String {
    format!("the accesses to '{}' overlap too often to be checked one by one", region.name)
}

/// Elements that at least one of the rectangles has.
fn union_area(rects: &mut [Rect]) -> u64 {
    let Some(first) = rects.first().copied() else { return 0 };
    let merged = |spans: &mut dyn Iterator<Item = (u64, u64)>| {
        let mut end = 0;
        spans.fold(0, |sum, (from, to)| {
            let from = from.max(end);
            end = end.max(to);
            sum + to.saturating_sub(from)
        })
    };
    // Slices of the same rows, or of the same columns: what tiles are made of.
    if rects.iter().all(|r| (r.row, r.rows) == (first.row, first.rows)) {
        rects.sort_unstable_by_key(|r| r.col);
        return first.rows * merged(&mut rects.iter().map(|r| (r.col, r.col_end())));
    }
    rects.sort_unstable_by_key(|r| (r.row, r.col));
    if rects.iter().all(|r| (r.col, r.cols) == (first.col, first.cols)) {
        return first.cols * merged(&mut rects.iter().map(|r| (r.row, r.row_end())));
    }
    let mut rows: Vec<u64> = rects.iter().flat_map(|r| [r.row, r.row_end()]).collect();
    rows.sort_unstable();
    rows.dedup();
    let band = |w: &[u64]| {
        // Sorted by row, so none after the first that starts below reaches up here.
        let reach = rects.partition_point(|r| r.row < w[1]);
        let mut spans: Vec<(u64, u64)> =
            rects[..reach].iter().filter(|r| r.row_end() > w[0]).map(|r| (r.col, r.col_end())).collect();
        spans.sort_unstable();
        (w[1] - w[0]) * merged(&mut spans.into_iter())
    };
    rows.windows(2).map(band).sum()
}

/// Every element of an output is written, given that none is written twice.
fn check_covered(place: Place<'_>, items: &[Item], findings: &mut Findings) {
    let [rows, cols] = place.region.extent(place.rank);
    let written: u64 = items.iter().filter(|i| i.mode == Mode::Write).map(|i| i.rect.area()).sum();
    let all = rows * cols;
    if written >= all {
        return;
    }
    let detail = format!(
        "{} of the {all} elements of output '{}' on {} are never written{}",
        all - written,
        place.region.name,
        place.rank,
        first_gap(items, rows, cols).map_or(String::new(), |(r, c)| format!(", first row {r}, column {c}"))
    );
    findings.push(refuted(Kind::Unwritten, Vec::new(), detail));
}

/// Only as many items are searched for the first gap; beyond that the count has to do.
const GAP_ITEMS: usize = 4096;

/// The first element in row order that no item writes.
fn first_gap(items: &[Item], rows: u64, cols: u64) -> Option<(u64, u64)> {
    let writes: Vec<&Rect> = items.iter().filter(|i| i.mode == Mode::Write).map(|i| &i.rect).collect();
    if writes.len() > GAP_ITEMS {
        return None;
    }
    let mut starts: Vec<u64> = writes.iter().flat_map(|r| [r.row, r.row_end()]).chain([0]).collect();
    starts.sort_unstable();
    starts.dedup();
    for row in starts.into_iter().filter(|&r| r < rows) {
        let mut spans: Vec<(u64, u64)> = writes
            .iter()
            .filter(|r| (r.row..r.row_end()).contains(&row))
            .map(|r| (r.col, r.col_end()))
            .collect();
        spans.sort_unstable();
        let reach =
            spans.iter().fold(0, |reach, &(from, to)| if from <= reach { reach.max(to) } else { reach });
        if reach < cols {
            return Some((row, reach));
        }
    }
    None
}

/// A word to which several ranks post is counted right only if none of them posts for the next epoch before all have
/// posted for this one.
pub(super) fn check_words(facts: &Facts<'_>, findings: &mut Findings) {
    let several = facts.writers.iter().enumerate().filter(|(_, w)| **w == super::facts::Writer::Several);
    let mut order = Order::within(facts);
    for (at, _) in several {
        let (rank, word) = (Rank((at / facts.words) as u16), (at % facts.words) as u32);
        if let Some(finding) = word_alias(&mut order, facts.program, facts.program, rank, word, word) {
            findings.push(finding);
        }
        if findings.full() {
            return;
        }
    }
}

/// Whether the posts of a run of `earlier` to a word all arrive before those of the following run of `later`.
pub(super) fn word_alias(
    order: &mut Order<'_, '_>,
    earlier: &Program,
    later: &Program,
    rank: Rank,
    word: u32,
    later_word: u32,
) -> Option<Finding> {
    let (first, second) = order.posters(rank, word, later_word);
    for y in &first {
        for x in second.iter().filter(|x| x.rank != y.rank) {
            let answer = order.post_before_post(rank, word, y, x);
            if answer == Answer::Ordered {
                continue;
            }
            let names = vec![earlier.task_name(y.task), later.task_name(x.task)];
            let name = earlier.word_name(rank, word);
            if answer == Answer::Unknown {
                let detail =
                    format!("whether the epochs of {name} stay apart could not be told within the budget");
                return Some(unproved(
                    names,
                    format!("{detail}: give each rank that posts a word of its own"),
                ));
            }
            let detail = format!(
                "{} may post to {name} for the next epoch before {} has posted for this one: the count would lie",
                names[1], names[0]
            );
            return Some(refuted(Kind::EpochAlias, names, detail));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_union_counts_each_element_once(
            rects in prop::collection::vec((0u64..9, 0u64..9, 1u64..5, 1u64..5), 0..12), same in 0..3
        ) {
            let rect = |(row, col, rows, cols)| match same {
                0 => Rect::new(row, col, rows, cols),
                1 => Rect::new(2, col, 3, cols),
                _ => Rect::new(row, 2, rows, 3),
            };
            let mut rects: Vec<Rect> = rects.into_iter().map(rect).collect();
            let one = |row, col| rects.iter().any(|r| r.intersect(&Rect::new(row, col, 1, 1)).is_some());
            let count = (0..16).flat_map(|r| (0..16).map(move |c| (r, c))).filter(|&(r, c)| one(r, c)).count();
            prop_assert_eq!(union_area(&mut rects), count as u64);
        }
    }
}
