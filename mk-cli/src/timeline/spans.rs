//! Sets of moments: sorted spans of time that do not touch.

/// In picoseconds, sorted, disjoint, none empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spans(Vec<(i64, i64)>);

impl Spans {
    /// The moments in any of `spans`, which are sorted by their start.
    pub(crate) fn of(spans: impl IntoIterator<Item = (i64, i64)>) -> Spans {
        let mut union: Vec<(i64, i64)> = Vec::new();
        for (from, to) in spans {
            match union.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ if from < to => union.push((from, to)),
                _ => {}
            }
        }
        Spans(union)
    }

    /// The moments in any of `all`.
    pub(crate) fn union(all: impl IntoIterator<Item = Spans>) -> Spans {
        let mut spans: Vec<_> = all.into_iter().flat_map(|s| s.0).collect();
        spans.sort_unstable();
        Spans::of(spans)
    }

    /// The moments in `self` and not in `other`.
    pub(crate) fn minus(&self, other: &Spans) -> Spans {
        let (mut rest, mut first) = (Vec::new(), 0);
        for &(mut from, to) in &self.0 {
            while other.0.get(first).is_some_and(|o| o.1 <= from) {
                first += 1;
            }
            for &(off, on) in other.0[first..].iter().take_while(|o| o.0 < to) {
                if from < off {
                    rest.push((from, off));
                }
                from = on;
            }
            if from < to {
                rest.push((from, to));
            }
        }
        Spans(rest)
    }

    /// How long they are together, in picoseconds.
    pub(crate) fn ps(&self) -> u64 {
        self.0.iter().map(|(from, to)| to.abs_diff(*from)).sum()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn union_and_difference_agree_with_sets_of_moments() {
        // Every pair of sets of moments 0..6, spelled as spans of one moment each.
        let spans = |bits: u32| Spans::of((0..6).filter(|b| bits >> b & 1 == 1).map(|b| (b, b + 1)));
        let bits = |s: &Spans| s.iter().flat_map(|(a, b)| a..b).fold(0_u32, |set, b| set | 1 << b);
        for a in 0..64 {
            for b in 0..64 {
                assert_eq!(bits(&Spans::union([spans(a), spans(b)])), a | b);
                assert_eq!(bits(&spans(a).minus(&spans(b))), a & !b);
                assert_eq!(spans(a).ps(), u64::from(a.count_ones()));
            }
        }
    }

    #[test]
    fn what_touches_is_one_span_and_what_is_empty_is_none() {
        assert_eq!(Spans::of([(0, 2), (2, 3), (4, 4), (5, 9), (6, 7)]), Spans(vec![(0, 3), (5, 9)]));
    }
}
