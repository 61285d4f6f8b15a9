//! What the host and the kernel share, besides the handlers' arguments: written here, and nowhere in CUDA.
//!
//! `mk/abi.cuh` is generated from these types, with an assertion for the size of each and the offset of each field.
//! All addresses are the device's.

use crate::layout::{ConstPtr, MutPtr, device_codes, device_struct, layout};
use mk_core::{Limits, OpId, Post, PostAt, Task, Wait, WaitAt};

layout! {
    /// Waits for words of the task's own rank: in epoch e each must stand at (e - 1 - lag) * total + upto or more.
    Wait {
        /// First word.
        word: u32,
        /// Posts that each word receives in an epoch; 0: not used.
        total: u32,
        /// How many of them it waits for.
        upto: u32,
        /// Number of words.
        count: u16,
        /// Distance between two of them.
        stride: u16,
        /// Blocks between two of them (WAIT_AT_BLOCK).
        every: u16,
        /// Whose epoch: an index into Params::clocks.
        clock: u8,
        /// Low 4 bits: WAIT_AT_*; high 4 bits: lag.
        bits: u8,
    }
}

layout! {
    /// Raises words: ADD by 1; SET and PACKET to (e - 1) * total + ordinal.
    Post {
        /// First word (one more for each further post of POST_AT_BLOCK).
        word: u32,
        /// Posts that the word receives in an epoch; 0: not used.
        total: u32,
        /// Its place among them, from 1; 0 for ADD.
        ordinal: u32,
        /// Whose words.
        rank: u16,
        /// Blocks between two posts (POST_AT_BLOCK).
        every: u8,
        /// Bits 0..2: POST_AT_*; 2..4: SIGNAL_*; 4..7: clock.
        bits: u8,
    }
}

layout! {
    /// What to run, what it waits for, what it posts.
    Task {
        /// Its opcode: OP_*.
        op: OpId,
        /// What it waits for, posts and shares: TASK_*, filled in when it is loaded.
        flags: u16,
        /// Index into the program's labels.
        label: u32,
        /// What it waits for.
        waits: [Wait; Limits::WAITS],
        /// What it posts.
        posts: [Post; Limits::POSTS],
        /// One of the argument structs.
        args: [u8; Limits::ARG_BYTES],
    }
}

device_struct! {
    /// An address map of the tensor memory accelerator, as the driver encodes it.
    #[repr(align(64))]
    pub struct TensorMap {
        /// Known to the hardware only.
        pub opaque: [u64; 16],
    }
}

device_struct! {
    /// The tasks of one stream: of a lane, or of a queue that the rank's lanes share.
    pub struct StreamRange {
        /// Its first task, in Params::tasks.
        pub first: u32,
        /// How many they are.
        pub count: u32,
    }
}

device_struct! {
    /// A region, as a rank sees it. What says where an element lies on this rank comes first, and is read by two loads.
    #[repr(align(16))]
    pub struct RegionInfo {
        /// Where it lies on this rank.
        pub own: MutPtr<u8>,
        /// From one rotating copy to the next.
        pub copy_bytes: u64,
        /// From one row to the next.
        pub pitch_bytes: u64,
        /// Copies that rotate with the epoch: epoch e (from 1) uses copy e % depth.
        pub depth: u32,
        /// Of its elements: DTYPE_*.
        pub dtype: u16,
        /// Bytes of an element.
        pub element_bytes: u16,
        /// Rows on this rank.
        pub rows: u64,
        /// Columns on this rank, in elements.
        pub cols: u64,
    }
}

device_struct! {
    /// How long a wait may take, in SM clocks.
    pub struct Bounds {
        /// Until the first wait of a launch is met: a peer may still be starting.
        pub start_clocks: u64,
        /// Any later wait.
        pub run_clocks: u64,
    }
}

device_struct! {
    /// The first fault of a rank. Whoever raises `abort` from 0 writes the rest, `reason` last.
    pub struct Fault {
        /// 0: all is well; 1: this rank's own fault; 2: that of a peer or of the host. Then waits end, and roles leave.
        pub abort: u32,
        /// FAULT_*; 0: not complete yet.
        pub reason: u32,
        /// The rank that saw it.
        pub rank: u32,
        /// The lane that saw it.
        pub lane: u32,
        /// ROLE_*.
        pub role: u32,
        /// Its task, in Params::tasks.
        pub task: u32,
        /// Opcode of that task.
        pub op: u32,
        /// The signal word, barrier, region or opcode that the reason is about.
        pub word: u32,
        /// What was waited for.
        pub expected: u64,
        /// What was there.
        pub seen: u64,
        /// Epoch of the program.
        pub epoch: u64,
        /// Params::generation.
        pub generation: u64,
    }
}

device_struct! {
    /// One event of the trace ring (only in kernels that are built with tracing).
    pub struct TraceEvent {
        /// When it began, in nanoseconds of the GPU's global timer.
        pub start_ns: u64,
        /// When it ended.
        pub end_ns: u64,
        /// Nanoseconds of it in waits for signals.
        pub waited_ns: u64,
        /// The program's epoch, which tells the runs in a ring apart.
        pub epoch: u64,
        /// Its task, in Params::tasks.
        pub task: u32,
        /// Opcode of the task.
        pub op: u16,
        /// ROLE_*.
        pub role: u16,
    }
}

device_struct! {
    /// What the host is told of a rank's runs. In pinned memory of the host: it looks without a call of the driver's.
    pub struct Outcome {
        /// Epochs that have ended well.
        pub ended: u64,
        /// Launches that were refused since another one had not ended.
        pub refused: u64,
        /// 1: a run has ended in a fault; its record is in device memory.
        pub faulted: u64,
    }
}

device_struct! {
    /// Which launch runs on a GPU, for all programs of a session. In device memory.
    pub struct Admission {
        /// Bits 40..64: the launch that runs, 0 if none does; 16..40: one that is being refused; 0..16: how many blocks of it
        /// have still to come. (Numbers of grids.)
        pub running: u64,
        /// Ranks of that launch that have ended their run; the last one puts it back to 0.
        pub ended: u32,
        /// Reserved, 0.
        pub reserved: u32,
    }
}

device_struct! {
    /// All that the lanes of one rank need. Each lane keeps it in shared memory while it runs the program.
    #[repr(align(16))]
    pub struct Params {
        /// The rank's task records.
        pub tasks: ConstPtr<Task>,
        /// By lane * STREAMS + STREAM_*: tasks of the lane alone.
        pub streams: ConstPtr<StreamRange>,
        /// By STREAM_*: tasks that the rank's lanes claim one by one, after their own.
        pub queues: [StreamRange; STREAMS],
        /// By STREAM_*: the next task of a queue to be claimed; back at 0 when each of the rank's lanes has claimed past its end.
        pub tickets: MutPtr<u32>,
        /// By region.
        pub regions: ConstPtr<RegionInfo>,
        /// By rank * region_count + region: where it lies, own or mapped; null if it is out of reach.
        pub bases: ConstPtr<MutPtr<u8>>,
        /// By rank: its signal words, own or mapped; null if they are out of reach.
        pub signals: ConstPtr<MutPtr<u64>>,
        /// By clock: where its epoch is kept, from 1; null for a clock that is not used. 0 is the program's own.
        pub clocks: [MutPtr<u64>; CLOCKS],
        /// By region * MAP_KINDS + MAP_*.
        pub maps: ConstPtr<TensorMap>,
        /// The rank's fault record and abort word.
        pub fault: MutPtr<Fault>,
        /// By rank: its fault record, own or mapped; null if it is out of reach.
        pub faults: ConstPtr<MutPtr<Fault>>,
        /// Lanes of the rank that have ended the run; the last one puts it back to 0. Behind it: launches that were refused.
        pub left: MutPtr<u32>,
        /// What the host is told.
        pub outcome: MutPtr<Outcome>,
        /// Of this GPU.
        pub admission: MutPtr<Admission>,
        /// By (lane * ROLES + ROLE_*) * trace_events: rings of events.
        pub trace: MutPtr<TraceEvent>,
        /// By lane * ROLES + ROLE_*: events written so far.
        pub trace_counts: MutPtr<u64>,
        /// How long a wait may take.
        pub bounds: Bounds,
        /// Of the session; it tells a rebuilt session's records from the old one's.
        pub generation: u64,
        /// This rank.
        pub rank: u32,
        /// Ranks in the world.
        pub ranks: u32,
        /// Regions of the program.
        pub region_count: u32,
        /// First block of this rank in the launch.
        pub first_block: u32,
        /// Blocks of this rank in the launch.
        pub lanes: u32,
        /// Ranks of the launch that have lanes.
        pub launch_ranks: u32,
        /// Events that fit into one trace ring.
        pub trace_events: u32,
        /// Reserved, 0.
        pub reserved: [u32; 3],
    }
}

device_struct! {
    /// One run of a program: the ranks that a GPU runs, each a range of blocks.
    pub struct Launch {
        /// How many of `params` are used; 0 in a resident kernel's parameter, whose runs come as commands.
        pub count: u32,
        /// Blocks of all of them.
        pub blocks: u32,
        /// By rank of this launch: its first block.
        pub first_blocks: [u32; LAUNCH_RANKS],
        /// Of a resident kernel; null: this is a launch for one run.
        pub resident: MutPtr<Resident>,
        /// By rank of this launch.
        pub params: [Params; LAUNCH_RANKS],
    }
}

device_struct! {
    /// An entry of the ring of commands, in pinned memory of the host, which writes `number` last.
    pub struct Command {
        /// What to run, in device memory; null: the kernel ends.
        pub launch: ConstPtr<Launch>,
        /// Its number, from 1, which says that the entry is complete.
        pub number: u64,
    }
}

device_struct! {
    /// What the host is told of a resident kernel, in its own pinned memory.
    pub struct Bell {
        /// Number of the last command that all ranks have ended.
        pub ended: u64,
        /// 1: the kernel leaves, by itself or because it was told to; 2: because of a fault.
        pub gone: u64,
    }
}

device_struct! {
    /// What the lanes of a resident kernel share, in device memory. Its first lane reads the host's commands and tells them
    /// to all, one at a time.
    #[repr(align(16))]
    pub struct Resident {
        /// The command that all lanes are told, written and read as one.
        pub told: Command,
        /// Number of the last command that all ranks have ended.
        pub ended: u64,
        /// The ring of commands: command n is entry n % COMMANDS.
        pub commands: ConstPtr<Command>,
        /// What the host is told.
        pub bell: MutPtr<Bell>,
        /// SM clocks without a command after which the kernel leaves by itself.
        pub idle_clocks: u64,
    }
}

/// Bits of `Task::flags`: so that no role has to look at waits and posts that are none.
#[derive(Clone, Copy, Debug)]
pub struct TaskFlags;

impl TaskFlags {
    /// It waits before its load or before a block of it.
    pub const GUARDS: u16 = 1;
    /// It waits before it stores.
    pub const STORE_WAITS: u16 = 2;
    /// It posts when it has loaded.
    pub const LOADED_POSTS: u16 = 4;
    /// It posts when it is done.
    pub const DONE_POSTS: u16 = 8;
    /// It posts block by block.
    pub const BLOCK_POSTS: u16 = 16;
    /// Times the number, from 1, of an operand that two lanes load once for both.
    pub const SHARES: u16 = 256;
    /// Of that number.
    pub const SHARES_MASK: u16 = 3;

    /// Those of a task, but for what it shares: that depends on what another lane does.
    pub fn of(task: &Task) -> u16 {
        let waits = task.waits.iter().filter(|w| w.total > 0).map(|w| match w.at() {
            WaitAt::Start | WaitAt::Block => TaskFlags::GUARDS,
            WaitAt::Store => TaskFlags::STORE_WAITS,
        });
        let posts = task.posts.iter().filter(|p| p.total > 0).map(|p| match p.at() {
            PostAt::Loaded => TaskFlags::LOADED_POSTS,
            PostAt::Block => TaskFlags::BLOCK_POSTS,
            PostAt::Done => TaskFlags::DONE_POSTS,
        });
        waits.chain(posts).fold(0, |bits, bit| bits | bit)
    }

    /// Name and value of each, for C.
    pub(crate) const ALL: [(&'static str, u16, &'static str); 7] = [
        ("TASK_GUARDS", TaskFlags::GUARDS, "it waits before its load, or before a block of it"),
        ("TASK_STORE_WAITS", TaskFlags::STORE_WAITS, "it waits before it stores"),
        ("TASK_LOADED_POSTS", TaskFlags::LOADED_POSTS, "it posts when it has loaded"),
        ("TASK_DONE_POSTS", TaskFlags::DONE_POSTS, "it posts when it is done"),
        ("TASK_BLOCK_POSTS", TaskFlags::BLOCK_POSTS, "it posts block by block"),
        (
            "TASK_SHARES",
            TaskFlags::SHARES,
            "times the number of an operand that two lanes load once for both",
        ),
        ("TASK_SHARES_MASK", TaskFlags::SHARES_MASK, "of that number"),
    ];
}

/// Epochs that a program counts by: its own, and those of shared signals.
pub const CLOCKS: usize = Limits::SHARED_SIGNALS as usize + 1;

/// Streams of a lane.
pub const STREAMS: usize = 2;

/// Commands that a resident kernel can have before it has ended the first of them.
pub const COMMANDS: usize = 64;

/// Ranks that one launch can run, each on its own blocks of one GPU. Eight of them fit into 4 KB of parameters.
pub const LAUNCH_RANKS: usize = 8;

device_codes! {
    /// The warps of a lane, by what they do.
    pub enum Role as "ROLE_" {
        /// Reads task records ahead.
        Fetch = 0 => "FETCH",
        /// Brings operands in.
        Load = 1 => "LOAD",
        /// Computes.
        Math = 2 => "MATH",
        /// Writes results, then posts.
        Store = 3 => "STORE",
        /// Moves bytes between ranks.
        Comm = 4 => "COMM",
    }
}

device_codes! {
    /// Why a lane gave up.
    pub enum FaultReason as "FAULT_" {
        /// A signal word did not reach its target within the bound.
        Signal = 1 => "SIGNAL",
        /// A barrier between roles was not reached within the bound: a fault of the kernel, not of the program.
        Barrier = 2 => "BARRIER",
        /// An opcode that the kernel does not have.
        Opcode = 3 => "OPCODE",
        /// A region, or the signal words of a rank, that this rank cannot reach.
        Unreachable = 4 => "UNREACHABLE",
        /// An access that does not consist of 16-byte rows.
        Alignment = 5 => "ALIGNMENT",
        /// Arguments that the handler cannot take on a GPU.
        Arguments = 6 => "ARGUMENTS",
        /// As `Signal`, of the first wait of a run that was not met at once: the bound of the start.
        Start = 7 => "START",
    }
}

device_codes! {
    /// For what a tensor map of a region is made.
    pub enum MapKind as "MAP_" {
        /// Either operand: boxes of 64 rows x 64 columns, 128-byte swizzle.
        Rows64 = 0 => "ROWS64",
        /// Left operand: boxes of 128 rows x 64 columns, 128-byte swizzle.
        Rows128 = 1 => "ROWS128",
        /// Left operand of few rows: boxes of 16 rows x 64 columns, 128-byte swizzle.
        Rows16 = 2 => "ROWS16",
    }
}

/// The shape of a block, the same in Rust and CUDA. Each size with its reason.
#[derive(Clone, Copy, Debug)]
pub struct Geometry;

impl Geometry {
    /// Bytes of a page: 128 rows of a 128-byte swizzle.
    pub const PAGE_BYTES: u32 = 16 * 1024;
    /// Pages of the ring; every group size divides it, so that a group never wraps.
    pub const RING_PAGES: u32 = 12;
    /// Pages in which math warps stage results.
    pub const STAGING_PAGES: u32 = 1;
    /// Pages of the comm warp's ring.
    pub const COMM_PAGES: u32 = 1;
    /// Task records that are read ahead, per stream.
    pub const TASK_SLOTS: u32 = 8;
    /// Threads of a block: one warpgroup for load, fetch, comm and store; two for math.
    pub const THREADS: u32 = 384;
    /// Registers of a math thread, by `setmaxnreg`: a wgmma of 256 columns has 128 sums, and all handlers fit into 200.
    pub const MATH_REGISTERS: u32 = 216;
    /// Registers of any other thread, by `setmaxnreg`: handlers fit into 56, with room for one more. 128 * 72 + 256 * 216 is
    /// what a block of 384 threads has at its start.
    pub const OTHER_REGISTERS: u32 = 72;
    /// Most dynamic shared memory of a block on Hopper.
    pub const SHARED_BYTES: u32 = 232_448;

    /// Name and value of each, for C.
    pub(crate) const ALL: [(&'static str, u64, &'static str); 9] = [
        ("PAGE_BYTES", Geometry::PAGE_BYTES as u64, "bytes of a page"),
        ("RING_PAGES", Geometry::RING_PAGES as u64, "pages of the ring; every group size divides it"),
        ("STAGING_PAGES", Geometry::STAGING_PAGES as u64, "pages in which math warps stage results"),
        ("COMM_PAGES", Geometry::COMM_PAGES as u64, "pages of the comm warp's ring"),
        ("TASK_SLOTS", Geometry::TASK_SLOTS as u64, "task records that are read ahead, per stream"),
        ("THREADS", Geometry::THREADS as u64, "threads of a block"),
        ("MATH_REGISTERS", Geometry::MATH_REGISTERS as u64, "registers of a math thread"),
        ("OTHER_REGISTERS", Geometry::OTHER_REGISTERS as u64, "registers of any other thread"),
        ("SHARED_BYTES", Geometry::SHARED_BYTES as u64, "most dynamic shared memory of a block"),
    ];
}

/// The kernel's name in the module.
pub const ENTRY: &str = "mk_kernel";

/// A `__device__ const u32` of this name holds the dynamic shared memory that the kernel wants, in bytes: the compiler's
/// report does not tell it.
pub const SHARED_SYMBOL: &str = "mk_shared_bytes";

const _: () =
    assert!(size_of::<Fault>() == 64 && size_of::<RegionInfo>() == 48 && size_of::<TraceEvent>() == 40);
const _: () = assert!(size_of::<Launch>() <= 4096, "parameters beyond 4 KB need a driver of CUDA 12.1");
