//! One block of the kernel: ring, slots, barriers, and the threads that are its roles.

use crate::barrier::Barrier;
use crate::runs::Runs;
use crate::{Bug, Scenario, roles};
use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

/// Pages of the ring: divisible by every group size.
pub(crate) const RING: u32 = 4;
/// Task records that the roles have not done with; those that fetch publishes at once; and the most that were claimed.
pub(crate) const SLOTS: u32 = 4;
pub(crate) const BATCH: usize = 2;
pub(crate) const CLAIMED_TASKS: u32 = 2;
/// Warpgroups of math, and warps of each.
pub(crate) const GROUPS: u32 = 2;
pub(crate) const WARPS: u32 = 2;
/// Math warps.
pub(crate) const MATH: u32 = GROUPS * WARPS;
/// Slots of the comm warp's ring, and chunks of each of its tasks.
pub(crate) const COMM_SLOTS: u32 = 2;
pub(crate) const CHUNKS: u32 = 3;

/// What a task is like; each stands for the handlers that use the frame in its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Load, math; math stores from its own staging and tells the store role when it is done.
    Gemm,
    /// The same, of a tile so small that the second warpgroup has no part in it.
    SmallGemm,
    /// As `Gemm`, but it may store only when a peer has seen that it has loaded everything.
    Gated,
    /// As `Gemm`, but nobody is told when it is done, so the store role passes over it.
    Unposted,
    /// Load, math in place, store from the page.
    Activate,
    /// Load, store; no math.
    Copy,
    /// Nothing.
    Nop,
}

impl Kind {
    /// Pages of a group.
    pub(crate) fn pages(self) -> u32 {
        if matches!(self, Kind::Copy | Kind::Nop) { 1 } else { 2 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) kind: Kind,
    pub(crate) groups: u32,
    pub(crate) id: u32,
    /// By ticket, not of the lane's own stream.
    pub(crate) is_claimed: bool,
}

/// What fetch publishes: the task (none: leave), and the page at which its first group starts.
pub(crate) type Record = (Option<Task>, u32);

/// What a page holds: the task and its group; and whether math has worked on it.
pub(crate) type Content = (u32, u32, bool);

/// A copy under way: it lands in these pages, and then arrives at `full`.
struct Copy {
    pages: Vec<u32>,
    content: Content,
    full: Full,
}

/// Which barrier a copy completes.
#[derive(Clone, Copy)]
pub(crate) enum Full {
    Math(u32),
    Store(u32),
    Comm(u32),
}

/// A point where all warps of a warpgroup meet: a named barrier, or a wgmma, which is of all of them.
pub(crate) struct Meeting(Mutex<(u32, u64, bool, bool)>);

impl Meeting {
    fn new() -> Meeting {
        Meeting(Mutex::new((0, 0, false, false)))
    }

    /// Comes, and waits for the others; whether any of them said yes.
    pub(crate) fn any(&self, yes: bool) -> bool {
        let turn = {
            let mut m = self.0.lock().expect("whole");
            let turn = m.1;
            m.0 += 1;
            m.2 |= yes;
            if m.0 == WARPS {
                *m = (0, turn + 1, false, m.2);
            }
            turn
        };
        loop {
            let m = *self.0.lock().expect("whole");
            if m.1 != turn {
                return m.3;
            }
            thread::yield_now();
        }
    }
}

/// Now and then a thread takes much longer than the others.
pub(crate) fn stall() {
    let mut random = shuttle::rand::thread_rng();
    if shuttle::rand::Rng::gen_range(&mut random, 0..10) == 0 {
        (0..500).for_each(|_| thread::yield_now());
    }
}

/// Everything that roles share.
pub(crate) struct Block {
    /// By run. Ids count on over runs; those of each begin with an even one.
    pub(crate) tasks: Vec<Vec<Task>>,
    pub(crate) bug: Option<Bug>,
    pub(crate) scenario: Scenario,
    pub(crate) runs: Runs,
    pub(crate) aborted: AtomicBool,
    pub(crate) pages: Vec<Mutex<Content>>,
    pub(crate) slots: Vec<Mutex<Record>>,
    pub(crate) full_math: Vec<Barrier>,
    pub(crate) full_store: Vec<Barrier>,
    pub(crate) empty: Vec<Barrier>,
    pub(crate) done: Vec<Barrier>,
    pub(crate) slot_full: Vec<Barrier>,
    pub(crate) slot_empty: Vec<Barrier>,
    pub(crate) math_done: Vec<Barrier>,
    pub(crate) loaded: Vec<Barrier>,
    pub(crate) may_store: Vec<Barrier>,
    pub(crate) meetings: Vec<Meeting>,
    pub(crate) comm_full: Vec<Barrier>,
    /// Signal words: of comm tasks, one for two compute tasks; and of compute tasks.
    pub(crate) comm_words: Vec<Mutex<u64>>,
    pub(crate) words: Vec<Mutex<u64>>,
    /// By task: it has loaded everything; a peer has seen that.
    pub(crate) loaded_words: Vec<Mutex<u64>>,
    pub(crate) go_words: Vec<Mutex<u64>>,
    copies: Mutex<Vec<Copy>>,
    /// All roles have left.
    left: AtomicBool,
}

impl Block {
    pub(crate) fn new(tasks: Vec<Vec<Task>>, bug: Option<Bug>, scenario: Scenario) -> Arc<Block> {
        let each = |n: u32, make: fn() -> Barrier| (0..n).map(|_| make()).collect::<Vec<_>>();
        let words = |n: usize| (0..n).map(|_| Mutex::new(0)).collect::<Vec<_>>();
        let ids = tasks.iter().flatten().map(|t| t.id as usize + 1).max().unwrap_or(0);
        Arc::new(Block {
            comm_words: words(ids.div_ceil(2)),
            words: words(ids),
            loaded_words: words(ids),
            go_words: words(ids),
            meetings: (0..GROUPS).map(|_| Meeting::new()).collect(),
            comm_full: each(COMM_SLOTS, || Barrier::new("comm slot full", 2, 1)),
            tasks,
            bug,
            scenario,
            runs: Runs::new(),
            aborted: AtomicBool::new(false),
            pages: (0..RING + COMM_SLOTS).map(|_| Mutex::new((u32::MAX, 0, false))).collect(),
            slots: (0..SLOTS).map(|_| Mutex::new((None, 0))).collect(),
            // The load role announces the bytes, and the copy lands.
            full_math: each(RING, || Barrier::new("full for math", 2, MATH as usize)),
            full_store: each(RING, || Barrier::new("full for store", 2, 1)),
            // One arrival a warpgroup; the store role arrives for both.
            empty: each(RING, || Barrier::free("empty", GROUPS, 1)),
            done: each(RING, || Barrier::new("done", MATH, 1)),
            slot_full: each(SLOTS, || Barrier::new("slot full", 1, MATH as usize + 2)),
            slot_empty: each(SLOTS, || Barrier::free("slot empty", MATH + 2, 1)),
            math_done: each(SLOTS, || Barrier::new("math done", MATH, 1)),
            loaded: each(SLOTS, || Barrier::new("loaded", MATH, 1)),
            may_store: each(SLOTS, || Barrier::new("may store", 1, MATH as usize)),
            copies: Mutex::new(Vec::new()),
            left: AtomicBool::new(false),
        })
    }

    /// Runs all roles until they have left.
    pub(crate) fn run(self: Arc<Block>) {
        let spawn = |role: fn(&Block, usize), i: usize| {
            let block = self.clone();
            thread::spawn(move || role(&block, i))
        };
        let engine = spawn(|block, _| block.copy_engine(), 0);
        let host = spawn(|block, _| block.host(), 0);
        let peer = spawn(|block, _| block.peer(), 0);
        let mut all = vec![
            spawn(roles::fetch, 0),
            spawn(roles::load, 0),
            spawn(roles::store, MATH as usize + 1),
            spawn(roles::comm, 0),
        ];
        all.extend((0..MATH as usize).map(|w| spawn(roles::math, w + 1)));
        for role in all {
            role.join().expect("a role leaves");
        }
        let any = self.copies_under_way() || self.comm_full.iter().any(Barrier::under_way);
        assert!(!any, "the block has left, but copies into its memory are under way");
        if self.scenario == Scenario::Undisturbed {
            self.check_all_done();
        }
        self.left.store(true, Ordering::SeqCst);
        engine.join().expect("the engine stops");
        host.join().expect("the host stops");
        peer.join().expect("the peer stops");
    }

    /// Every task has posted, once.
    fn check_all_done(&self) {
        for task in self.tasks.iter().flatten() {
            let posts = *self.words[task.id as usize].lock().expect("whole");
            assert_eq!(posts, 1, "posts of {task:?}");
        }
    }

    /// Raises the abort word at some time, if that is to happen.
    fn host(&self) {
        let within = match self.scenario {
            Scenario::Undisturbed => 0,
            Scenario::Abort => 600,
            Scenario::Stuck => 1500,
        };
        if within > 0 {
            let mut random = shuttle::rand::thread_rng();
            let later = shuttle::rand::Rng::gen_range(&mut random, 0..within);
            (0..later).for_each(|_| thread::yield_now());
            self.aborted.store(true, Ordering::SeqCst);
        }
    }

    /// A peer, which lets gated tasks store when they have loaded.
    fn peer(&self) {
        for task in self.tasks.iter().flatten().filter(|t| t.kind == Kind::Gated) {
            let id = task.id as usize;
            while *self.loaded_words[id].lock().expect("whole") == 0 {
                if self.left.load(Ordering::SeqCst) {
                    return;
                }
                thread::yield_now();
            }
            *self.go_words[id].lock().expect("whole") += 1;
        }
    }

    /// The engine that copies: in any order, at any time.
    fn copy_engine(&self) {
        while !self.left.load(Ordering::SeqCst) {
            let copy = {
                let mut copies = self.copies.lock().expect("whole");
                let n = copies.len();
                (n > 0).then(|| {
                    let i = shuttle::rand::Rng::gen_range(&mut shuttle::rand::thread_rng(), 0..n);
                    copies.swap_remove(i)
                })
            };
            match copy {
                Some(copy) => {
                    stall();
                    self.land(&copy);
                }
                None => thread::yield_now(),
            }
        }
    }

    fn land(&self, copy: &Copy) {
        for &page in &copy.pages {
            *self.pages[page as usize].lock().expect("whole") = copy.content;
        }
        self.full(copy.full).arrive(1);
    }

    pub(crate) fn full(&self, full: Full) -> &Barrier {
        match full {
            Full::Math(page) => &self.full_math[page as usize],
            Full::Store(page) => &self.full_store[page as usize],
            Full::Comm(slot) => &self.comm_full[slot as usize],
        }
    }

    /// Starts a copy into a group of pages.
    pub(crate) fn copy(&self, first: u32, pages: u32, content: Content, full: Full) {
        self.full(full).arrive(1);
        self.copies.lock().expect("whole").push(Copy {
            pages: (first..first + pages).collect(),
            content,
            full,
        });
    }

    /// A math handler that does not return before long after an abort: of the last task of the first run.
    pub(crate) fn linger(&self, task: Task) {
        let last = self.tasks.first().and_then(|tasks| tasks.last());
        if self.scenario != Scenario::Stuck || last != Some(&task) {
            return;
        }
        while !self.aborted.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        (0..300).for_each(|_| thread::yield_now());
    }

    /// Waits for them.
    pub(crate) fn let_copies_land(&self) {
        while self.bug != Some(Bug::CopiesLeftBehind) && self.copies_under_way() {
            thread::yield_now();
        }
    }

    /// Whether copies that the load role has started are still under way.
    pub(crate) fn copies_under_way(&self) -> bool {
        self.full_math.iter().chain(&self.full_store).any(Barrier::under_way)
    }

    /// What the pages of a group hold must be this.
    pub(crate) fn check(&self, first: u32, pages: u32, content: Content) {
        for page in first..first + pages {
            let holds = *self.pages[page as usize].lock().expect("whole");
            assert_eq!(holds, content, "page {page} holds something else");
        }
    }
}
