//! Units: what executes tasks, and the tasks that it is at.

/// Most tasks of a unit that overlap.
pub(crate) const SLOTS: usize = 4;

/// Nothing: no time, no waiter.
pub(crate) const NEVER: u64 = u64::MAX;

/// Which role of a task waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Role {
    /// Load warp, or the comm warp as it reads.
    Load = 0,
    /// Store warp.
    Store = 1,
}

/// A lane's compute or comm warps, and the stream that they take tasks from. A lane that claims tickets is one more
/// unit beside that of its own stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unit {
    pub(crate) plan: u32,
    pub(crate) stream: u32,
    pub(crate) rank: u16,
    pub(crate) lane: u16,
    pub(crate) comm: bool,
    pub(crate) ticket: bool,
    /// Its load role has a task.
    pub(crate) loading: bool,
    /// Its store role is at work.
    pub(crate) storing: bool,
    /// Tasks begun, ended, and (compute) stored; the task number `n` is in slot `n % SLOTS`.
    pub(crate) begun: u64,
    pub(crate) ended: u64,
    /// When its math role is free.
    pub(crate) math_free: u64,
    /// Until when it has something to do.
    pub(crate) busy_until: u64,
    /// The last arrival of a post to its own rank.
    pub(crate) last_post: u64,
}

/// A task at work.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slot {
    pub(crate) task: u32,
    pub(crate) blocks: u32,
    /// Blocks loaded, or read.
    pub(crate) loaded: u32,
    /// Blocks landed, without a gap.
    pub(crate) landed: u32,
    /// Words met of each wait.
    pub(crate) seen: [u32; 2],
    /// Where each wait is met.
    pub(crate) target: [u64; 2],
    /// Posts made, of each.
    pub(crate) made: [u32; 2],
    /// Place of its first post in the log.
    pub(crate) log: usize,
    /// When its first block can be touched at the earliest.
    pub(crate) ready: u64,
    /// When its first block was loaded.
    pub(crate) first: u64,
    /// When it began, for the trace.
    pub(crate) began: u64,
    /// Since when each role has waited; `NEVER` if it does not.
    pub(crate) since: [u64; 2],
    /// When the last of its data was acknowledged.
    pub(crate) acked: u64,
    /// Its duration is multiplied by this.
    pub(crate) factor: f32,
    /// Math is over.
    pub(crate) computed: bool,
    /// Everything is over.
    pub(crate) done: bool,
    /// Its store role waits for a word.
    pub(crate) parked: bool,
    /// What lands is in memory already, but for the last time.
    pub(crate) early: bool,
}
