//! A trace in memory.

use std::collections::HashMap;

/// Picoseconds in a microsecond.
pub(crate) const PS_PER_US: f64 = 1e6;

/// Names, each kept once; a slice holds its number.
#[derive(Debug, Default)]
pub(crate) struct Names {
    list: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Names {
    pub(crate) fn number(&mut self, name: &str) -> u32 {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let number = self.list.len() as u32;
        self.list.push(name.to_string());
        self.numbers.insert(name.to_string(), number);
        number
    }

    pub(crate) fn get(&self, number: u32) -> &str {
        self.list.get(number as usize).map_or("", String::as_str)
    }

    pub(crate) fn list(&self) -> &[String] {
        &self.list
    }
}

/// Something that took its time on one track: a task, or a wait of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    /// Picoseconds on the trace's own clock.
    pub(crate) from: i64,
    pub(crate) to: i64,
    pub(crate) epoch: Option<u64>,
    pub(crate) task: Option<u32>,
    pub(crate) name: u32,
    pub(crate) program: Option<u32>,
    pub(crate) rank: u16,
    /// Twice the lane; one more for its comm stream.
    pub(crate) tid: u16,
    pub(crate) wait: bool,
}

impl Slice {
    pub(crate) fn lane(&self) -> u16 {
        self.tid / 2
    }

    pub(crate) fn comm(&self) -> bool {
        self.tid % 2 == 1
    }

    /// Picoseconds that it took.
    pub(crate) fn ps(&self) -> u64 {
        self.to.abs_diff(self.from)
    }
}

/// What a run did when.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    /// By rank, track and time; a wait after the task that it lies in.
    pub(crate) slices: Vec<Slice>,
    pub(crate) names: Names,
    pub(crate) programs: Names,
    /// Events that are neither slices nor names.
    pub(crate) left_out: u64,
}

impl Trace {
    /// Puts slices in order; what the rest of this module takes for granted.
    pub(crate) fn sort(&mut self) {
        // Everything that tells two slices apart is in the key, so that the order of the file does not matter.
        self.slices.sort_by_key(|s| {
            (s.rank, s.tid, s.from, s.wait, std::cmp::Reverse(s.to), s.task, s.epoch, s.name, s.program)
        });
    }

    /// The slices of each rank that has any, in order.
    pub(crate) fn ranks(&self) -> impl Iterator<Item = &[Slice]> {
        self.slices.chunk_by(|a, b| a.rank == b.rank)
    }

    /// First start and last end, in picoseconds; zeros where nothing ran.
    pub(crate) fn span(&self) -> (i64, i64) {
        let from = self.slices.iter().map(|s| s.from).min().unwrap_or(0);
        let to = self.slices.iter().map(|s| s.to).max().unwrap_or(0);
        (from, to)
    }

    /// The programs that ran; empty where the trace does not say.
    pub(crate) fn title(&self) -> String {
        match self.programs.list() {
            [] => String::new(),
            [one] => one.clone(),
            [first, rest @ ..] => format!("{first} and {} more", rest.len()),
        }
    }
}
