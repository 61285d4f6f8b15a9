//! Families of tasks: those whose names differ only in numbers have one colour.

use super::trace::Trace;
use std::collections::BTreeMap;

/// Colours of compute tasks and of comm tasks; one more of each is for all that is left.
pub(crate) const COLOURS: [usize; 2] = [7, 4];

/// What has one colour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Family {
    pub(crate) name: String,
    pub(crate) comm: bool,
    /// Its colour among those of its kind.
    pub(crate) colour: usize,
}

/// The families of a trace, compute first, by name: the same tasks have the same colours in each of two pictures.
#[derive(Clone, Debug, Default)]
pub(crate) struct Families {
    pub(crate) list: Vec<Family>,
    /// By name of a task: its family as a compute task and as a comm task.
    of_name: Vec<[Option<usize>; 2]>,
}

impl Families {
    pub(crate) fn of(trace: &Trace) -> Families {
        let names: Vec<String> = trace.names.list().iter().map(|n| family(n)).collect();
        let mut times: [BTreeMap<&str, u64>; 2] = Default::default();
        for s in trace.slices.iter().filter(|s| !s.wait) {
            let time = times[usize::from(s.comm())].entry(&names[s.name as usize]).or_default();
            *time = time.saturating_add(s.ps());
        }
        let mut families = Families { list: Vec::new(), of_name: vec![[None; 2]; names.len()] };
        for (comm, times) in times.iter().enumerate() {
            families.add(comm, times, &names);
        }
        families
    }

    fn add(&mut self, comm: usize, times: &BTreeMap<&str, u64>, names: &[String]) {
        let mut longest: Vec<(&str, u64)> = times.iter().map(|(name, time)| (*name, *time)).collect();
        longest.sort_by_key(|(name, time)| (std::cmp::Reverse(*time), *name));
        longest.truncate(COLOURS[comm]);
        longest.sort_unstable();
        let first = self.list.len();
        self.list.extend(longest.iter().enumerate().map(|(colour, (name, _))| Family {
            name: (*name).to_string(),
            comm: comm == 1,
            colour,
        }));
        let rest = times.len() > longest.len();
        if rest {
            let name = format!("{} other kinds of tasks", times.len() - longest.len());
            self.list.push(Family { name, comm: comm == 1, colour: COLOURS[comm] });
        }
        for (number, name) in names.iter().enumerate().filter(|(_, name)| times.contains_key(name.as_str())) {
            let at = longest.binary_search_by_key(&name.as_str(), |l| l.0).unwrap_or(longest.len());
            self.of_name[number][comm] = Some(first + at);
        }
    }

    /// The family of a task with this name. There is one for every task of the trace.
    pub(crate) fn get(&self, name: u32, comm: bool) -> Option<usize> {
        self.of_name.get(name as usize)?[usize::from(comm)]
    }
}

/// A name with `n` for every number that is a word: `tile from rank n gemm`.
fn family(name: &str) -> String {
    let mut family = String::with_capacity(name.len());
    let words = name.split_inclusive(|c: char| !c.is_alphanumeric());
    for word in words {
        let digits = word.trim_end_matches(|c: char| !c.is_alphanumeric());
        if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
            family.push('n');
            family.push_str(&word[digits.len()..]);
        } else {
            family.push_str(word);
        }
    }
    family
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_words_stay() {
        for (name, expected) in [
            ("tile from rank 12 gemm", "tile from rank n gemm"),
            ("tile [3,14]", "tile [n,n]"),
            ("cast bf16 7", "cast bf16 n"),
            ("", ""),
            ("5", "n"),
        ] {
            assert_eq!(family(name), expected);
        }
    }
}
