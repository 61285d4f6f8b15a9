//! Which launch may run, where launches come one by one on streams of their own: the word that their blocks decide it by.

use crate::explore;
use crate::mistakes::{are_found, failure};
use crate::shared::{pause, random, stall};
use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

/// Blocks of each launch. All must be there before it can end.
const BLOCKS: usize = 3;
/// Launches that come together.
const TOGETHER: usize = 3;

/// A mistake that is planted, to see that the model finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// A block that is refused leaves no trace: a late one of the same launch finds that nobody runs.
    NoTrace,
    /// The launch that ends clears the trace.
    TraceCleared,
    /// Blocks that find the trace of their launch do not count down: it stays.
    TraceStays,
    /// The trace is the latest number that was refused: it and all below are refused, so a recorded launch is for ever.
    LatestRefused,
    /// A launch that finds another's trace is refused without one of its own.
    GivesUp,
    /// Launches that come together have one number.
    OneNumber,
    /// Refused launches are counted by reading and writing.
    CountedInTwoSteps,
    /// Who has told the host how many were refused does not look whether there are more by now.
    RefusedToldOnce,
    /// The host is told an epoch when the next launch may have told it one.
    EpochOverwritten,
    /// A launch is refused because of one that has told the host that it has ended, and is about to leave the word.
    NoPatience,
    /// A block reads the epoch while the answer is under way, which it may come before.
    EpochReadEarly,
}

/// Numbers of launches wrap around, and are never 0. More than come together have different ones.
fn number(bug: Option<Bug>, launch: u64) -> u64 {
    if bug == Some(Bug::OneNumber) { 1 } else { launch % 7 + 1 }
}

/// Who runs; who is being refused, and how many of its blocks have still to come. 0: nobody.
type Word = (u64, u64, u64);

fn word(runs: u64, refused: u64, left: u64) -> Word {
    if left > 0 { (runs, refused, left) } else { (runs, 0, 0) }
}

struct Gpu {
    bug: Option<Bug>,
    admission: Mutex<Word>,
    clock: AtomicU64,
    /// Launches that were refused.
    count: AtomicU64,
    // What the host is told.
    ended: AtomicU64,
    refused: AtomicU64,
    // What only the model knows: the launch that runs; the number of the one that has told the host that it has ended, and is
    // about to leave the word. (0: none.)
    runs: Mutex<Option<u64>>,
    leaves: AtomicU64,
}

/// A launch: what its blocks were told, how many have ended the run, how many have left.
struct Launch {
    id: u64,
    number: u64,
    verdict: Mutex<Option<bool>>,
    left: AtomicU64,
    gone: AtomicU64,
}

impl Launch {
    fn is_admitted(&self) -> bool {
        *self.verdict.lock().expect("whole") == Some(true)
    }

    fn await_gone(&self) {
        while self.gone.load(SeqCst) < BLOCKS as u64 {
            thread::yield_now();
        }
    }
}

impl Gpu {
    fn new(bug: Option<Bug>) -> Arc<Gpu> {
        Arc::new(Gpu {
            bug,
            admission: Mutex::new((0, 0, 0)),
            clock: AtomicU64::new(1),
            count: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            runs: Mutex::new(None),
            leaves: AtomicU64::new(0),
        })
    }

    fn is(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn compare_and_swap(&self, expected: Word, wanted: Word) -> Word {
        let mut word = self.admission.lock().expect("whole");
        let was = *word;
        if was == expected {
            *word = wanted;
        }
        was
    }

    /// The first block of a launch to come takes the word, or leaves the launch's number there as refused, until all of its
    /// blocks have seen it.
    fn is_admitted(&self, me: u64, mut was: Word) -> bool {
        if was == (0, 0, 0) || was.0 == me {
            return true;
        }
        // Who had told the host by now has left before this block's patience ends.
        let leaves = self.leaves.load(SeqCst);
        loop {
            if let Some(verdict) = self.seize(me, &mut was, leaves) {
                return verdict;
            }
            thread::yield_now();
        }
    }

    /// An attempt at what the word was at the last look; or another look.
    fn seize(&self, me: u64, was: &mut Word, leaves: u64) -> Option<bool> {
        let (runs, refused, left) = *was;
        if runs == me {
            return Some(true);
        }
        if self.is(Bug::LatestRefused) && refused >= me {
            return Some(false);
        }
        let wanted = if refused == me {
            word(runs, me, if self.is(Bug::TraceStays) { left } else { left - 1 })
        } else if runs == 0 {
            word(me, refused, left)
        } else if self.waits(runs, refused, leaves) {
            *was = *self.admission.lock().expect("whole");
            return None;
        } else if self.is(Bug::NoTrace) || self.is(Bug::GivesUp) && refused != 0 {
            return Some(false);
        } else {
            word(runs, me, BLOCKS as u64 - 1)
        };
        let found = self.compare_and_swap(*was, wanted);
        let taken = found == *was;
        *was = found;
        taken.then_some(wanted.0 == me)
    }

    /// Whether who runs may be about to leave, or the blocks of yet another launch that is refused have to come first.
    fn waits(&self, runs: u64, refused: u64, leaves: u64) -> bool {
        let is_patient = !self.is(Bug::NoPatience) && (leaves == runs || random(3) == 0);
        let others_first = refused != 0 && !self.is(Bug::GivesUp) && !self.is(Bug::LatestRefused);
        is_patient || others_first
    }

    /// One block, from start to end.
    fn block(&self, launch: &Launch, block: usize) {
        pause(40);
        let early = self.clock.load(SeqCst);
        if self.is(Bug::EpochReadEarly) {
            pause(40);
        }
        let was = self.compare_and_swap((0, 0, 0), (launch.number, 0, 0));
        let admitted = self.is_admitted(launch.number, was);
        let verdict = *launch.verdict.lock().expect("whole").get_or_insert(admitted);
        assert_eq!(admitted, verdict, "blocks of launch {} do not agree", launch.id);
        if admitted {
            self.run(launch, if self.is(Bug::EpochReadEarly) { early } else { self.clock.load(SeqCst) });
        } else if block == 0 {
            self.tell_refused();
        }
        launch.gone.fetch_add(1, SeqCst);
    }

    fn run(&self, launch: &Launch, epoch: u64) {
        let runs = *self.runs.lock().expect("whole").get_or_insert(launch.id);
        assert_eq!(runs, launch.id, "two launches run at once");
        assert_eq!(epoch, self.clock.load(SeqCst), "launch {} runs an epoch that has ended", launch.id);
        pause(40);
        if launch.left.fetch_add(1, SeqCst) != BLOCKS as u64 - 1 {
            return;
        }
        self.clock.store(epoch + 1, SeqCst);
        *self.runs.lock().expect("whole") = None;
        if self.is(Bug::EpochOverwritten) {
            self.release();
            stall();
            self.tell_epoch(epoch);
        } else {
            self.leaves.store(launch.number, SeqCst);
            self.tell_epoch(epoch);
            stall();
            self.release();
            let _ = self.leaves.compare_exchange(launch.number, 0, SeqCst, SeqCst);
        }
    }

    fn release(&self) {
        let mut word = self.admission.lock().expect("whole");
        *word = if self.is(Bug::TraceCleared) { (0, 0, 0) } else { (0, word.1, word.2) };
    }

    fn tell_epoch(&self, epoch: u64) {
        let before = self.ended.swap(epoch, SeqCst);
        assert!(before < epoch, "the host was told of {before} epochs, and now of {epoch}");
    }

    /// Several may be refused at once: whoever counts last tells the host last.
    fn tell_refused(&self) {
        let (mut told, mut now) = (0, self.count_refused());
        while now != told {
            told = now;
            stall();
            self.refused.store(told, SeqCst);
            if self.is(Bug::RefusedToldOnce) {
                return;
            }
            now = self.count.load(SeqCst);
        }
    }

    fn count_refused(&self) -> u64 {
        if self.is(Bug::CountedInTwoSteps) {
            let before = self.count.load(SeqCst);
            stall();
            self.count.store(before + 1, SeqCst);
            return before + 1;
        }
        self.count.fetch_add(1, SeqCst) + 1
    }

    fn told(&self) -> u64 {
        self.ended.load(SeqCst) + self.refused.load(SeqCst)
    }
}

/// Starts a launch whose blocks come in any order.
fn start(gpu: &Arc<Gpu>, id: u64, number: u64) -> Arc<Launch> {
    let launch = Arc::new(Launch {
        id,
        number,
        verdict: Mutex::new(None),
        left: AtomicU64::new(0),
        gone: AtomicU64::new(0),
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

/// Whoever waits for so many launches is told of each of them, one way or the other.
fn await_told(gpu: &Gpu, launches: usize) {
    while gpu.told() < launches as u64 {
        thread::yield_now();
    }
}

fn run(bug: Option<Bug>) {
    let gpu = Gpu::new(bug);
    let first = random(7) as u64;
    let mut all: Vec<_> =
        (first..first + TOGETHER as u64).map(|id| start(&gpu, id, number(bug, id))).collect();
    await_told(&gpu, all.len());
    // Then none of them runs, though a refused one may have blocks that have still to come. A replay of a recorded launch has
    // its number, and waits for its blocks.
    for i in 0..TOGETHER {
        let before = &all[i];
        before.await_gone();
        let again = start(&gpu, first + (TOGETHER + i) as u64, before.number);
        again.await_gone();
        assert!(again.is_admitted(), "refused, though nothing runs");
        all.push(again);
    }
    let next = start(&gpu, first + all.len() as u64, number(bug, first + all.len() as u64));
    all.push(next);
    all.iter().for_each(|l| l.await_gone());
    let ran = all.iter().filter(|l| l.is_admitted()).count();
    assert_eq!(gpu.ended.load(SeqCst), ran as u64, "epochs that the host was told");
    let refused = gpu.refused.load(SeqCst);
    assert_eq!(refused, (all.len() - ran) as u64, "launches that the host was told of as refused");
    assert_eq!(*gpu.admission.lock().expect("whole"), (0, 0, 0), "a trace is left");
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
        Bug::TraceStays,
        Bug::LatestRefused,
        Bug::GivesUp,
        Bug::OneNumber,
        Bug::CountedInTwoSteps,
        Bug::RefusedToldOnce,
        Bug::EpochOverwritten,
        Bug::NoPatience,
        Bug::EpochReadEarly,
    ];
    are_found(&bugs, |bug| failure(move || explore(2000, move || run(Some(bug)))));
}
