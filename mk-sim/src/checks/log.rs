//! What the engine writes down for the detectors.

use mk_core::{Access, Mode, Phase, Proxy, Rank, Rect, RegionId, Walk};

/// Made, but it has not arrived.
const UNDER_WAY: u64 = u64::MAX;

/// One access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) rect: Rect,
    pub(crate) walk: Walk,
    pub(crate) task: u32,
    pub(crate) mode: Mode,
    pub(crate) at: Phase,
}

impl Item {
    pub(crate) fn new(access: &Access, task: u32) -> Item {
        Item { rect: access.rect, walk: access.walk, task, mode: access.mode, at: access.at }
    }

    fn access(&self) -> Access {
        let (region, rank, proxy) = (RegionId(0), Rank(0), Proxy::Generic);
        Access { region, rank, rect: self.rect, mode: self.mode, at: self.at, walk: self.walk, proxy }
    }

    /// As [`Access::first_block`].
    #[inline]
    pub(crate) fn first_block(&self, part: &Rect) -> u32 {
        self.access().first_block(part)
    }

    /// As [`Access::last_block`].
    #[inline]
    pub(crate) fn last_block(&self, part: &Rect, blocks: u32) -> u32 {
        self.access().last_block(part, blocks)
    }

    /// What blocks `from..to` touch.
    pub(crate) fn blocks(&self, from: u32, to: u32) -> Rect {
        let (first, last) = (self.access().block_rect(from), self.access().block_rect(to.max(1) - 1));
        let (row, col) = (first.row, first.col);
        Rect::new(row, col, last.row_end().max(row) - row, last.col_end().max(col) - col)
    }
}

/// One post to one word, in one epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostLog {
    /// What it made the word; 0: it was not made.
    value: u64,
    /// Blocks whose reads it covers.
    pub(crate) reads: u32,
    /// Blocks whose writes it covers.
    pub(crate) writes: u32,
    /// Its place among all posts that arrived, from 1.
    pub(crate) order: u32,
}

impl PostLog {
    /// Its place among the posts to its word, from 1, if it has arrived.
    #[inline]
    pub(crate) fn arrived(&self) -> Option<u64> {
        (self.value != 0 && self.value != UNDER_WAY).then_some(self.value)
    }

    pub(crate) fn made(&self) -> bool {
        self.value != 0
    }
}

/// What happened in a run.
#[derive(Default)]
pub(crate) struct Log {
    /// Every post of every epoch: epoch by epoch, task by task.
    pub(crate) posts: Vec<PostLog>,
    /// Posts that have arrived. It stops at the largest number, where the order is no longer told: nothing relies on
    /// two numbers being different.
    arrivals: u32,
    /// Epochs one after the other: whether a task's writes have landed.
    written: Vec<u64>,
}

impl Log {
    pub(crate) fn new(posts: usize, tasks: usize) -> Log {
        let none = PostLog { value: 0, reads: 0, writes: 0, order: 0 };
        Log { posts: vec![none; posts], arrivals: 0, written: vec![0; tasks.div_ceil(64)] }
    }

    /// A post leaves; it covers the reads and writes of that many blocks.
    #[inline]
    pub(crate) fn made(&mut self, post: usize, reads: u32, writes: u32) {
        self.posts[post] = PostLog { value: UNDER_WAY, reads, writes, order: 0 };
    }

    /// It arrives, and makes the word `value`.
    #[inline]
    pub(crate) fn arrived(&mut self, post: usize, value: u64) {
        self.arrivals = self.arrivals.saturating_add(1);
        let log = &mut self.posts[post];
        (log.value, log.order) = (value, self.arrivals);
    }

    /// How many posts have arrived.
    pub(crate) fn arrivals(&self) -> u32 {
        self.arrivals
    }

    /// All of a task's writes have landed.
    #[inline]
    pub(crate) fn wrote(&mut self, task: usize) {
        self.written[task / 64] |= 1 << (task % 64);
    }

    /// Whether they have.
    #[inline]
    pub(crate) fn has_written(&self, task: usize) -> bool {
        self.written[task / 64] >> (task % 64) & 1 == 1
    }
}
