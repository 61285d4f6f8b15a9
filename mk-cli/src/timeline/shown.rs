//! Which ranks are shown: those that were asked for, as many as a picture holds.

use super::text::ranges;
use super::trace::Trace;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Ranks as people write them: `0-3,8`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RankList(Vec<RangeInclusive<u16>>);

impl FromStr for RankList {
    type Err = String;

    fn from_str(s: &str) -> Result<RankList, String> {
        let wrong = || "allowed are ranks and ranges of them, such as 0-3,8".to_string();
        let rank = |s: &str| s.trim().parse::<u16>().map_err(|_| wrong());
        let range = |part: &str| match part.split_once('-') {
            Some((from, to)) => Ok(rank(from)?..=rank(to)?),
            None => rank(part).map(|r| r..=r),
        };
        let ranges = s.split(',').map(range).collect::<Result<Vec<_>, String>>()?;
        if ranges.iter().any(RangeInclusive::is_empty) {
            return Err(format!("a range runs from the lower rank to the higher: {}", wrong()));
        }
        Ok(RankList(ranges))
    }
}

/// What a picture holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(crate) lanes: usize,
    pub(crate) slices: usize,
}

/// The ranks that are shown, and those that are not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) ranks: Vec<u16>,
    /// Those that the picture does not hold.
    pub(crate) folded: Vec<u16>,
}

impl Shown {
    /// As many of the wanted ranks as fit, at least one; all ranks are wanted unless some are named.
    ///
    /// # Errors
    /// A rank that the trace does not have, and those that it has.
    pub(crate) fn choose(
        trace: &Trace,
        wanted: Option<&RankList>,
        budget: Budget,
    ) -> Result<Shown, (String, String)> {
        let all: Vec<u16> = trace.ranks().map(|r| r[0].rank).collect();
        if let Some(RankList(ranges_wanted)) = wanted {
            let missing = ranges_wanted.iter().cloned().flatten().find(|r| all.binary_search(r).is_err());
            if let Some(rank) = missing {
                return Err((format!("rank {rank}"), format!("ranks {}", ranges(&all))));
            }
        }
        let is_wanted = |rank: u16| wanted.is_none_or(|w| w.0.iter().any(|r| r.contains(&rank)));
        let mut shown = Shown { ranks: Vec::new(), folded: Vec::new() };
        let mut left = Some(budget);
        for rank in trace.ranks() {
            let number = rank[0].rank;
            if is_wanted(number) {
                let lanes = rank.chunk_by(|a, b| a.lane() == b.lane()).count();
                left = left.and_then(|b| b.less(lanes, rank.len()));
                if left.is_some() || shown.ranks.is_empty() {
                    shown.ranks.push(number);
                    continue;
                }
            }
            shown.folded.push(number);
        }
        Ok(shown)
    }

    /// What is not shown, for people; `None` where all is.
    pub(crate) fn folded_text(&self) -> Option<String> {
        let (shown, folded) = (self.ranks.len(), self.folded.len());
        (folded > 0).then(|| {
            let word = if shown == 1 { "rank" } else { "ranks" };
            let listed = list(&self.ranks);
            format!("shown: {word} {listed} of {}; --ranks chooses others", shown + folded)
        })
    }
}

/// At most as much of a list as fits on a line.
fn list(ranks: &[u16]) -> String {
    super::text::clean(&ranges(ranks), 60)
}

impl Budget {
    fn less(self, lanes: usize, slices: usize) -> Option<Budget> {
        Some(Budget { lanes: self.lanes.checked_sub(lanes)?, slices: self.slices.checked_sub(slices)? })
    }
}
