//! A limit on everything that a program may hold, each with its reason.

/// The largest of each thing that a program can name. Exceeding one is a typed error, never a wrap-around.
///
/// ```
/// assert_eq!(mk_core::Limits::RANKS, 65_536);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Limits;

impl Limits {
    /// Ranks in a world: a rank is 16 bits in every record.
    pub const RANKS: u64 = 1 << 16;
    /// NICs of a world: as many as ranks, which is more than one each on any machine known.
    pub const NICS: u64 = 1 << 16;
    /// Regions in a program: a region is 16 bits in the argument structs.
    pub const REGIONS: u64 = 1 << 16;
    /// Lanes of one rank: twice the SMs of the largest GPU known.
    pub const LANES: u64 = 1 << 10;
    /// Handlers in a registry: an opcode is 16 bits, and the table is one `switch`.
    pub const HANDLERS: u64 = 1 << 10;
    /// Signal words of one rank: 8 bytes each, so 2 GiB.
    pub const WORDS: u64 = 1 << 28;
    /// Signal words of all ranks together: the verifier and the simulator keep counters for each.
    pub const ALL_WORDS: u64 = 1 << 30;
    /// Posts that one word receives in an epoch: 32 bits in a task record.
    pub const POSTS_PER_WORD: u64 = u32::MAX as u64;
    /// Words that one strided wait or post can span: 16 bits in a task record.
    pub const SPAN: u64 = u16::MAX as u64;
    /// Blocks between two posts of a unit: 8 bits in a task record.
    pub const POST_EVERY: u64 = u8::MAX as u64;
    /// Tasks in a program: a task is 32 bits in the verifier and in a trace (512 GiB of records).
    pub const TASKS: u64 = u32::MAX as u64;
    /// Waits of one task.
    pub const WAITS: usize = 2;
    /// Posts of one task.
    pub const POSTS: usize = 2;
    /// Epochs that a credit may lie back: 4 bits in a task record.
    pub const LAG: u8 = 15;
    /// Copies of a region that rotate with the epoch; a credit must be able to reach all of them.
    pub const DEPTH: u32 = 8;
    /// Signal groups that programs may share in a session (3 bits in a post; 0 is the program's own epoch).
    pub const SHARED_SIGNALS: u64 = 7;
    /// Bytes of one region on one rank: 2^47, the virtual address space of a GPU.
    pub const REGION_BYTES: u64 = 1 << 47;
    /// Rows or columns of a region. Signed 64-bit arithmetic on two of them can never wrap.
    pub const EXTENT: u64 = 1 << 47;
    /// Bytes of a task's arguments.
    pub const ARG_BYTES: usize = 48;
    /// Bytes of a program file that is read into memory.
    pub const FILE_BYTES: u64 = 8 << 30;
}
