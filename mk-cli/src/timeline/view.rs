//! What is drawn: the rows of the ranks that are shown, with their colours.

use super::families::Families;
use super::shown::Shown;
use super::spans::Spans;
use super::summary::{RankShares, Summary};
use super::trace::{Slice, Trace};

/// A trace, and how it is shown.
#[derive(Debug)]
pub(crate) struct View<'a> {
    pub(crate) trace: &'a Trace,
    pub(crate) summary: &'a Summary,
    pub(crate) shown: Shown,
    pub(crate) families: Families,
    pub(crate) title: String,
    pub(crate) ranks: Vec<RankRows<'a>>,
    /// The run, in picoseconds.
    pub(crate) from: i64,
    pub(crate) to: i64,
}

/// The rows of a rank.
#[derive(Debug)]
pub(crate) struct RankRows<'a> {
    pub(crate) shares: RankShares,
    pub(crate) lanes: Vec<LaneRow<'a>>,
}

/// A row: a lane with its two tracks.
#[derive(Debug)]
pub(crate) struct LaneRow<'a> {
    pub(crate) lane: u16,
    pub(crate) compute: &'a [Slice],
    pub(crate) comm: &'a [Slice],
}

impl<'a> View<'a> {
    pub(crate) fn new(trace: &'a Trace, summary: &'a Summary, shown: Shown, title: String) -> View<'a> {
        let (from, to) = trace.span();
        let slices = trace.ranks().zip(&summary.ranks);
        let ranks = slices
            .filter(|(_, shares)| shown.ranks.binary_search(&shares.rank).is_ok())
            .map(|(slices, shares)| RankRows { shares: *shares, lanes: rows(slices) })
            .collect();
        View { trace, summary, shown, families: Families::of(trace), title, ranks, from, to }
    }

    pub(crate) fn rows(&self) -> usize {
        self.ranks.iter().map(|r| r.lanes.len()).sum()
    }

    /// Whether any row has a comm track with something on it.
    pub(crate) fn has_comm(&self) -> bool {
        self.ranks.iter().flat_map(|r| &r.lanes).any(|l| !l.comm.is_empty())
    }

    /// A track in pieces that do not overlap: what its tasks did and when they waited.
    pub(crate) fn pieces(&self, track: &[Slice]) -> Vec<Piece> {
        let waits = Spans::of(track.iter().filter(|s| s.wait).map(|s| (s.from, s.to)));
        let mut pieces: Vec<Piece> =
            waits.iter().map(|(from, to)| Piece { from, to, kind: Kind::Wait }).collect();
        let mut end = i64::MIN;
        for task in track.iter().filter(|s| !s.wait) {
            let Some(family) = self.families.get(task.name, task.comm()) else { continue };
            // The tasks of a track do not overlap where this command wrote the trace; others may have.
            let span = Spans::of([(task.from.max(end), task.to)]);
            end = end.max(task.to);
            let works = span.minus(&waits);
            pieces.extend(works.iter().map(|(from, to)| Piece { from, to, kind: Kind::Task(family) }));
        }
        pieces.sort_unstable_by_key(|p| p.from);
        pieces
    }
}

fn rows(slices: &[Slice]) -> Vec<LaneRow<'_>> {
    let lanes = slices.chunk_by(|a, b| a.lane() == b.lane());
    lanes
        .map(|both| {
            let (compute, comm) = both.split_at(both.partition_point(|s| !s.comm()));
            LaneRow { lane: both[0].lane(), compute, comm }
        })
        .collect()
}

/// A part of a track with one colour, in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) from: i64,
    pub(crate) to: i64,
    pub(crate) kind: Kind,
}

/// What a piece is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A task of a family.
    Task(usize),
    Wait,
}
