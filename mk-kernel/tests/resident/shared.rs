//! What the host and the lanes share, and what the model knows beside it.

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

/// Lanes of the kernel.
pub(crate) const LANES: usize = 3;
/// Entries of the ring of commands.
pub(crate) const COMMANDS: usize = 2;
/// In `Rank::left`: a lane that ended in a fault.
pub(crate) const FAILED: u32 = 1 << 16;
/// In `gone`: the kernel leaves; it does so after a fault.
pub(crate) const LEAVES: u64 = 1;
pub(crate) const LEAVES_AFTER_FAULT: u64 = 2;
/// In place of a launch: the kernel ends.
pub(crate) const STOP: u64 = 0;

/// A mistake that is planted, to see that the model finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A lane waits for the number that follows its last one: one that was outside of a run may never see it.
    NumbersCounted,
    /// The kernel says that it leaves before it looks at the ring for the last time.
    GoneBeforeLastLook,
    /// The host starts the kernel again without clearing the ring.
    RingKept,
    /// The host starts the kernel again and still has the number of the last command that the one before it ended.
    EndedKept,
    /// The host starts the kernel again before it has left.
    StartedTooEarly,
    /// The host starts the kernel again with an empty ring.
    QueueForgotten,
    /// The host gives more commands than the ring has entries.
    RingOverrun,
    /// The host writes a command's number before what is to be run.
    NumberFirst,
    /// Lanes are told that a run has ended before the host is: a later run may tell the host first.
    HostToldLast,
    /// The host waits for a run, but does not look whether the kernel has gone.
    NobodyAttends,
    /// The host starts the kernel again with what it has left after a fault.
    StartedAfterFault,
    /// The last lane of a rank makes it ready for the next run after it has said that this one has ended.
    ReadyTooLate,
    /// The first lane tells the next command before all have ended the last.
    NoRunBoundary,
    /// One rank of a run ends it for all.
    FirstRankEnds,
    /// The first lane waits for a run to end without looking at the abort word.
    DeafToAbort,
    /// The first lane leaves after a fault of its own without telling the others.
    LeavesSilently,
}

impl Bug {
    pub(crate) const ALL: [Bug; 16] = [
        Bug::NumbersCounted,
        Bug::GoneBeforeLastLook,
        Bug::RingKept,
        Bug::EndedKept,
        Bug::StartedTooEarly,
        Bug::QueueForgotten,
        Bug::RingOverrun,
        Bug::NumberFirst,
        Bug::HostToldLast,
        Bug::NobodyAttends,
        Bug::StartedAfterFault,
        Bug::ReadyTooLate,
        Bug::NoRunBoundary,
        Bug::FirstRankEnds,
        Bug::DeafToAbort,
        Bug::LeavesSilently,
    ];

    /// Whether it shows only after an abort.
    pub(crate) fn aborts(self) -> bool {
        matches!(self, Bug::StartedAfterFault | Bug::DeafToAbort | Bug::LeavesSilently)
    }
}

/// A rank of a program, in device memory.
pub(crate) struct Rank {
    /// Its lanes are blocks from here on.
    pub(crate) first: usize,
    pub(crate) lanes: usize,
    pub(crate) left: AtomicU32,
    pub(crate) clock: AtomicU64,
    /// What the host is told of it.
    pub(crate) ended: AtomicU64,
    pub(crate) faulted: AtomicBool,
}

/// A program: its ranks, one behind the other.
pub(crate) struct Program {
    pub(crate) ranks: Vec<Rank>,
}

impl Program {
    fn new(lanes: &[usize]) -> Program {
        let mut first = 0;
        let mut rank = |&lanes: &usize| {
            let rank = Rank {
                first,
                lanes,
                left: AtomicU32::new(0),
                clock: AtomicU64::new(1),
                ended: AtomicU64::new(0),
                faulted: AtomicBool::new(false),
            };
            first += lanes;
            rank
        };
        Program { ranks: lanes.iter().map(&mut rank).collect() }
    }

    /// The rank that a block is a lane of.
    pub(crate) fn rank(&self, block: usize) -> Option<&Rank> {
        self.ranks.iter().find(|r| (r.first..r.first + r.lanes).contains(&block))
    }
}

/// One command: what the ring names it by is its place in `Shared::launches`, from 1.
pub(crate) struct Launch {
    pub(crate) program: usize,
    /// The lane that sees a fault in it.
    pub(crate) faults_on: Option<usize>,
}

/// An entry of the ring.
#[derive(Default)]
pub(crate) struct Command {
    pub(crate) launch: AtomicU64,
    pub(crate) number: AtomicU64,
}

/// All of it.
pub(crate) struct Shared {
    pub(crate) bug: Option<Bug>,
    pub(crate) programs: Vec<Program>,
    pub(crate) launches: Mutex<Vec<Launch>>,
    // In device memory: launch and number, written and read as one; the last command that all ranks have ended.
    pub(crate) told: Mutex<(u64, u64)>,
    pub(crate) ended: AtomicU64,
    /// Ranks of the run that have ended it.
    pub(crate) ranks_ended: AtomicU32,
    pub(crate) abort: AtomicBool,
    // In the host's memory.
    pub(crate) ring: Vec<Command>,
    pub(crate) bell_ended: AtomicU64,
    pub(crate) gone: AtomicU64,
    // What only the model knows: lanes that have not left; by lane, the launches that it has taken; by launch, the lanes that
    // have ended it.
    pub(crate) present: AtomicU32,
    pub(crate) taken: Mutex<Vec<Vec<u64>>>,
    pub(crate) done: Mutex<Vec<usize>>,
}

impl Shared {
    pub(crate) fn new(bug: Option<Bug>) -> Arc<Shared> {
        Arc::new(Shared {
            bug,
            programs: vec![Program::new(&[1]), Program::new(&[2]), Program::new(&[1, 2])],
            launches: Mutex::new(Vec::new()),
            told: Mutex::new((STOP, 0)),
            ended: AtomicU64::new(0),
            ranks_ended: AtomicU32::new(0),
            abort: AtomicBool::new(false),
            ring: (0..COMMANDS).map(|_| Command::default()).collect(),
            bell_ended: AtomicU64::new(0),
            gone: AtomicU64::new(0),
            present: AtomicU32::new(0),
            taken: Mutex::new(vec![Vec::new(); LANES]),
            done: Mutex::new(Vec::new()),
        })
    }

    /// The program of a launch, and the lane that sees a fault in it.
    pub(crate) fn launch(&self, launch: u64) -> (&Program, Option<usize>) {
        let launches = self.launches.lock().expect("whole");
        let l = &launches[launch as usize - 1];
        (&self.programs[l.program], l.faults_on)
    }

    /// A lane takes up a run: for the first time, in order, and all others have ended the one before it.
    pub(crate) fn note_taken(&self, lane: usize, launch: u64) {
        let mut taken = self.taken.lock().expect("whole");
        let last = taken[lane].last().copied().unwrap_or(0);
        assert!(last < launch, "lane {lane} takes {launch} after {last}");
        taken[lane].push(launch);
        for before in 1..launch {
            let lanes: usize = self.launch(before).0.ranks.iter().map(|r| r.lanes).sum();
            let done = self.done.lock().expect("whole")[before as usize - 1];
            assert_eq!(done, lanes, "{launch} begins on lane {lane}: lanes that have ended {before}");
        }
    }

    pub(crate) fn note_done(&self, launch: u64) {
        self.done.lock().expect("whole")[launch as usize - 1] += 1;
    }

    /// Every command has run on all of its lanes.
    pub(crate) fn check_all_ran(&self) {
        let all = self.launches.lock().expect("whole").len() as u64;
        for lane in 0..LANES {
            let want: Vec<u64> = (1..=all).filter(|&l| self.launch(l).0.rank(lane).is_some()).collect();
            assert_eq!(self.taken.lock().expect("whole")[lane], want, "what lane {lane} has run");
        }
    }

    pub(crate) fn aborted(&self) -> bool {
        self.abort.load(SeqCst)
    }
}

pub(crate) fn random(below: usize) -> usize {
    thread_rng().gen_range(0..below)
}

/// A while in which others may get far.
pub(crate) fn pause(at_most: usize) {
    (0..random(at_most)).for_each(|_| thread::yield_now());
}

/// Now and then a thread takes much longer than the others.
pub(crate) fn stall() {
    if random(16) == 0 {
        (0..200).for_each(|_| thread::yield_now());
    }
}
