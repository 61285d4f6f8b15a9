//! Which launch may run, where launches come one by one on streams of their own: the word that their blocks decide it by.

use crate::shared::{pause, random, stall};
use crate::{explore, missed};
use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

/// Blocks of each launch. All must be there before it can end.
const BLOCKS: usize = 2;
/// Launches that come together.
const TOGETHER: usize = 3;

/// A mistake that is planted, to see that the model finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// A block that is refused leaves no trace: a late one of the same launch finds that nobody runs.
    NoTrace,
    /// The launch that ends clears the trace.
    TraceCleared,
    /// A trace of any other launch refuses.
    AnyTraceRefuses,
    /// Numbers of launches wrap around, and are compared as if they did not.
    NumbersWrap,
    /// Refused launches are counted by reading and writing.
    CountedInTwoSteps,
    /// The host is told an epoch after the next launch may have told it one.
    EpochOverwritten,
    /// The host is told that a run has ended before the next may run.
    ToldTooEarly,
}

/// Numbers of launches, as the kernel has them: in the planted mistake they have a bit that is always 1 and seven that count.
fn number(bug: Option<Bug>, launch: u64) -> u64 {
    if bug == Some(Bug::NumbersWrap) { (launch & 0x7f) | 0x80 } else { launch }
}

struct Gpu {
    bug: Option<Bug>,
    /// The launch that runs, 0 if none does, and the latest one that was refused, as one.
    admission: Mutex<(u64, u64)>,
    // What the host is told.
    ended: AtomicU64,
    refused: AtomicU64,
    // What only the model knows.
    clock: AtomicU64,
    runs: Mutex<Option<u64>>,
}

/// A launch: what its blocks were told, and how many have come.
struct Launch {
    number: u64,
    verdict: Mutex<Option<bool>>,
    left: AtomicU64,
    over: AtomicBool,
}

impl Gpu {
    fn new(bug: Option<Bug>) -> Arc<Gpu> {
        Arc::new(Gpu {
            bug,
            admission: Mutex::new((0, 0)),
            ended: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            clock: AtomicU64::new(1),
            runs: Mutex::new(None),
        })
    }

    fn compare_and_swap(&self, expected: (u64, u64), wanted: (u64, u64)) -> (u64, u64) {
        let mut word = self.admission.lock().expect("whole");
        let was = *word;
        if was == expected {
            *word = wanted;
        }
        was
    }

    /// The first block of a launch to come takes the word, or leaves the launch's number there as refused.
    fn is_admitted(&self, me: u64) -> bool {
        let (mut expected, mut wanted) = ((0, 0), (me, 0));
        let mut was = self.compare_and_swap(expected, wanted);
        while was != expected {
            let (runs, refused) = was;
            if runs == me {
                return true;
            }
            let left_a_trace = match self.bug {
                Some(Bug::AnyTraceRefuses) => refused != 0,
                _ => refused != 0 && me <= refused,
            };
            if left_a_trace || (runs != 0 && self.bug == Some(Bug::NoTrace)) {
                return false;
            }
            expected = was;
            wanted = if runs == 0 { (me, refused) } else { (runs, me) };
            was = self.compare_and_swap(expected, wanted);
        }
        wanted.0 == me
    }

    /// One block, from start to end.
    fn block(&self, launch: &Launch, block: usize) {
        pause(40);
        let admitted = self.is_admitted(launch.number);
        let verdict = *launch.verdict.lock().expect("whole").get_or_insert(admitted);
        assert_eq!(admitted, verdict, "blocks of launch {} do not agree", launch.number);
        if admitted {
            self.run(launch);
        } else if block == 0 {
            self.count_refused();
            launch.over.store(true, SeqCst);
        }
    }

    fn run(&self, launch: &Launch) {
        let runs = *self.runs.lock().expect("whole").get_or_insert(launch.number);
        assert_eq!(runs, launch.number, "two launches run at once");
        let epoch = self.clock.load(SeqCst);
        pause(40);
        if launch.left.fetch_add(1, SeqCst) != BLOCKS as u64 - 1 {
            return;
        }
        self.clock.store(epoch + 1, SeqCst);
        *self.runs.lock().expect("whole") = None;
        if self.bug == Some(Bug::ToldTooEarly) {
            self.tell_epoch(epoch);
            stall();
            self.release();
        } else {
            self.release();
            stall();
            self.tell_epoch(epoch);
        }
        launch.over.store(true, SeqCst);
    }

    fn release(&self) {
        let mut word = self.admission.lock().expect("whole");
        let trace = if self.bug == Some(Bug::TraceCleared) { 0 } else { word.1 };
        *word = (0, trace);
    }

    /// A launch on another stream may already have told its own.
    fn tell_epoch(&self, epoch: u64) {
        if self.bug == Some(Bug::EpochOverwritten) {
            self.ended.store(epoch, SeqCst);
        } else {
            self.ended.fetch_max(epoch, SeqCst);
        }
    }

    fn count_refused(&self) {
        if self.bug == Some(Bug::CountedInTwoSteps) {
            let before = self.refused.load(SeqCst);
            self.refused.store(before + 1, SeqCst);
        } else {
            self.refused.fetch_add(1, SeqCst);
        }
    }

    fn told(&self) -> u64 {
        self.ended.load(SeqCst) + self.refused.load(SeqCst)
    }
}

/// Starts a launch whose blocks come in any order.
fn start(gpu: &Arc<Gpu>, launch: u64) -> Arc<Launch> {
    let launch = Arc::new(Launch {
        number: number(gpu.bug, launch),
        verdict: Mutex::new(None),
        left: AtomicU64::new(0),
        over: AtomicBool::new(false),
    });
    let late = random(200);
    for block in 0..BLOCKS {
        let (gpu, launch) = (gpu.clone(), launch.clone());
        thread::spawn(move || {
            (0..late).for_each(|_| thread::yield_now());
            gpu.block(&launch, block);
        });
    }
    launch
}

fn run(bug: Option<Bug>) {
    let gpu = Gpu::new(bug);
    let first = 0x7d + random(3) as u64;
    let together: Vec<_> = (0..TOGETHER as u64).map(|i| start(&gpu, first + i)).collect();
    // Whoever waits is told of each of them, one way or the other.
    while gpu.told() < TOGETHER as u64 {
        thread::yield_now();
    }
    // Then none of them runs, and late blocks of refused ones do not matter.
    let next = start(&gpu, first + TOGETHER as u64);
    while !together.iter().chain([&next]).all(|l| l.over.load(SeqCst)) {
        thread::yield_now();
    }
    let admitted = |l: &Launch| *l.verdict.lock().expect("whole") == Some(true);
    assert!(admitted(&next), "refused, though nothing runs");
    let ran = together.iter().filter(|l| admitted(l)).count() as u64 + 1;
    assert_eq!(gpu.ended.load(SeqCst), ran, "epochs that the host was told");
    assert_eq!(
        gpu.refused.load(SeqCst),
        TOGETHER as u64 + 1 - ran,
        "launches that the host was told of as refused"
    );
}

#[test]
fn launches_that_come_at_once_run_one_at_a_time_and_none_is_refused_when_nothing_runs() {
    explore(1500, || run(None));
}

#[test]
fn planted_mistakes_are_found() {
    let bugs = [
        Bug::NoTrace,
        Bug::TraceCleared,
        Bug::AnyTraceRefuses,
        Bug::NumbersWrap,
        Bug::CountedInTwoSteps,
        Bug::EpochOverwritten,
        Bug::ToldTooEarly,
    ];
    let missed = missed(&bugs, |bug| run(Some(bug)));
    assert!(missed.is_empty(), "not found: {missed:?}");
}
