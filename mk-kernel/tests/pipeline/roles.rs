//! The roles, as `device/kernel.cuh` and the handlers run them.

use crate::Bug;
use crate::barrier::Barrier;
use crate::block::{
    BATCH, Block, CHUNKS, CLAIMED_TASKS, COMM_SLOTS, Full, GROUPS, Kind, RING, Record, SLOTS, Task, WARPS,
    stall,
};
use crate::runs::{COMM, FIRST_MATH, LOAD, Lane, STORE};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex;
use shuttle::sync::atomic::Ordering;
use shuttle::thread;

/// What a role keeps in its registers, from run to run.
pub(crate) struct Frame<'a> {
    pub(crate) block: &'a Block,
    /// Its number among those that wait for task slots; slot and parity. Not of fetch.
    waiter: usize,
    slot: u32,
    slot_parity: u64,
    /// The page at which it is in its task.
    page: u32,
    /// Parities of page barriers, a bit a page: of `empty` (load) or `full` (math, store); of `done`; of the slots' `math_done`.
    seen: u64,
    done_seen: u64,
    math_seen: u64,
    loaded_seen: u64,
    may_store_seen: u64,
    /// Laps of the ring, for the planted mistake.
    laps: u64,
    pub(crate) dead: bool,
    /// The run that it is in, and the parity of the next one's beginning.
    pub(crate) run: u64,
    pub(crate) run_parity: u64,
}

impl<'a> Frame<'a> {
    fn new(block: &'a Block, waiter: usize) -> Frame<'a> {
        let (slot, slot_parity, page) = (0, 0, 0);
        Frame {
            block,
            waiter,
            slot,
            slot_parity,
            page,
            seen: 0,
            done_seen: 0,
            math_seen: 0,
            loaded_seen: 0,
            may_store_seen: 0,
            laps: 0,
            dead: false,
            run: 0,
            run_parity: 0,
        }
    }

    /// Waits, unless the block is dead. True if what it waited for has come.
    fn wait(&mut self, barrier: &Barrier, waiter: usize, parity: u64) -> bool {
        self.keep_waiting(|| barrier.test(waiter, parity))
    }

    fn keep_waiting(&mut self, came: impl Fn() -> bool) -> bool {
        while !self.dead {
            if came() {
                return true;
            }
            let deaf = self.block.bug == Some(Bug::DeafToAbort);
            self.dead = !deaf && self.block.aborted.load(Ordering::SeqCst);
            thread::yield_now();
        }
        false
    }

    /// Waits for a signal word, unless the block is dead.
    fn wait_word(&mut self, word: &Mutex<u64>) {
        while *word.lock().expect("whole") == 0 && !self.dead {
            self.dead = self.block.aborted.load(Ordering::SeqCst);
            thread::yield_now();
        }
    }

    fn post(&self, word: &Mutex<u64>) {
        if !self.dead {
            *word.lock().expect("whole") += 1;
        }
    }

    /// A role that has seen a fault is silent.
    fn arrive(&self, barrier: &Barrier, arrivals: u32) {
        if !self.dead {
            barrier.arrive(arrivals);
        }
    }

    fn parity(&self, seen: u64) -> u64 {
        if self.block.bug == Some(Bug::ParityByLap) { self.laps & 1 } else { seen >> self.page & 1 }
    }

    fn step(&mut self, kind: Kind) {
        self.page += kind.pages();
        if self.page >= RING {
            self.page = 0;
            self.laps += 1;
        }
    }

    fn next_slot(&mut self) {
        self.slot += 1;
        if self.slot == SLOTS {
            self.slot = 0;
            self.slot_parity ^= 1;
        }
    }

    fn record(&self) -> Record {
        *self.block.slots[self.slot as usize].lock().expect("whole")
    }

    /// The next task, or none if the role leaves.
    fn next_task(&mut self) -> Option<Task> {
        let block = self.block;
        let came = self.wait(&block.slot_full[self.slot as usize], self.waiter - 1, self.slot_parity);
        if !came || self.dead {
            return None;
        }
        self.read_parameters();
        let (task, page) = self.record();
        self.page = page;
        task
    }

    /// The record that says that the stream has ended has a slot like any other.
    fn end_stream(&mut self) {
        if self.block.bug != Some(Bug::LeaveNotFreed) {
            self.arrive(&self.block.slot_empty[self.slot as usize], 1);
        }
        self.next_slot();
    }

    /// The role has read the record for the last time.
    fn end_task(&mut self, task: Task) {
        if !self.dead {
            assert_eq!(self.record().0, Some(task), "the slot was refilled while a role read it");
        }
        self.arrive(&self.block.slot_empty[self.slot as usize], 1);
        self.next_slot();
    }

    /// Runs every task of the run.
    fn role(&mut self, mut run: impl FnMut(&mut Self, Task)) {
        while let Some(task) = self.next_task() {
            if self.block.bug == Some(Bug::SlotFreedEarly) {
                self.block.slot_empty[self.slot as usize].arrive(1);
                run(self, task);
                assert_eq!(self.record().0, Some(task), "the slot was refilled while a role read it");
                self.next_slot();
                continue;
            }
            run(self, task);
            self.end_task(task);
        }
        self.end_stream();
    }
}

pub(crate) fn fetch(block: &Block, _: usize) {
    let mut f = Frame::new(block, 0);
    let mut lane = Lane::new(block);
    let mut fetch = Fetch { turn: 0, page: 0 };
    while let Some(tasks) = lane.take(&mut f) {
        lane.begin();
        fetch.run(&mut f, tasks);
        lane.end(&mut f);
    }
    lane.stop();
}

/// Reads records ahead, some at once, and says where in the ring each task starts, so that roles may skip tasks.
struct Fetch {
    /// Tasks since the beginning: slot and parity follow from it.
    turn: u32,
    /// The next one of the ring.
    page: u32,
}

impl Fetch {
    fn run(&mut self, f: &mut Frame<'_>, tasks: &[Task]) {
        let bug = f.block.bug;
        for batch in taken_at_once(tasks) {
            let limited = batch[0].is_claimed && bug != Some(Bug::ClaimsUnlimited);
            let limit = if limited { CLAIMED_TASKS } else { SLOTS };
            if !self.are_free(f, self.turn + batch.len() as u32, limit) {
                return;
            }
            self.publish(f, batch);
        }
        if self.are_free(f, self.turn + 1, SLOTS) {
            self.publish_leave(f);
        }
    }

    /// Waits until of those before `end` the roles have `limit` still to do, or fewer. They do them in order. Fetch that has seen
    /// the abort before goes on as far as there is room; nobody hears of it.
    fn are_free(&self, f: &mut Frame<'_>, end: u32, limit: u32) -> bool {
        let bug = f.block.bug;
        let awaited = if bug == Some(Bug::FirstOfBatchAwaited) { self.turn + 1 } else { end };
        let last = awaited.wrapping_sub(1 + limit);
        let lap = if bug == Some(Bug::LapOfPublished) { (end - 1) / SLOTS + 1 } else { last / SLOTS };
        let (empty, parity) = (&f.block.slot_empty[(last % SLOTS) as usize], u64::from(lap & 1));
        // Before the first task all slots are free.
        let meant = if last > self.turn { 0 } else { u64::from(last / SLOTS) + 1 };
        let came = || empty.test_for(parity, meant);
        bug == Some(Bug::SlotNotAwaited) || came() || f.keep_waiting(came)
    }

    fn publish(&mut self, f: &Frame<'_>, batch: &[Task]) {
        let done: u64 = f.block.slot_empty.iter().map(Barrier::completed).sum();
        let fits = u64::from(self.turn) < done + u64::from(CLAIMED_TASKS);
        assert!(f.dead || fits || !batch[0].is_claimed, "more claimed tasks than are allowed");
        let first_told = f.block.bug == Some(Bug::ToldBeforeWritten);
        if first_told {
            self.tell(f, batch.len() as u32);
        }
        for (task, turn) in batch.iter().zip(self.turn..) {
            let first = self.page.next_multiple_of(task.kind.pages()) % RING;
            write_record(f.block, turn, (Some(*task), first));
            let groups = if task.kind == Kind::Nop { 0 } else { task.groups };
            self.page = (first + groups * task.kind.pages()) % RING;
        }
        if !first_told {
            self.tell(f, batch.len() as u32);
        }
        self.turn += batch.len() as u32;
    }

    /// The record that says that there are no more.
    fn publish_leave(&mut self, f: &Frame<'_>) {
        write_record(f.block, self.turn, (None, 0));
        self.tell(f, 1);
        if f.block.bug != Some(Bug::LeaveNotCounted) {
            self.turn += 1;
        }
    }

    /// A thread for each, in whatever order.
    fn tell(&self, f: &Frame<'_>, count: u32) {
        let first = thread_rng().gen_range(0..count);
        for turn in (0..count).map(|i| self.turn + (first + i) % count) {
            f.arrive(&f.block.slot_full[(turn % SLOTS) as usize], 1);
        }
    }
}

fn write_record(block: &Block, turn: u32, record: Record) {
    *block.slots[(turn % SLOTS) as usize].lock().expect("whole") = record;
}

/// Of a lane's own stream some at once, behind those each one that is claimed.
fn taken_at_once(tasks: &[Task]) -> impl Iterator<Item = &[Task]> {
    let (own, claimed) = tasks.split_at(tasks.partition_point(|t| !t.is_claimed));
    own.chunks(BATCH).chain(claimed.chunks(1))
}

pub(crate) fn load(block: &Block, _: usize) {
    let mut f = Frame::new(block, 1);
    while f.begin_run(LOAD) {
        f.role(load_task);
        if f.dead {
            block.let_copies_land();
        }
        f.end_run();
    }
}

fn load_task(f: &mut Frame<'_>, task: Task) {
    // Every other task needs what a comm task brings.
    f.wait_word(&f.block.comm_words[task.id as usize / 2]);
    for group in 0..if task.kind == Kind::Nop { 0 } else { task.groups } {
        acquire(f, task.kind);
        if !f.dead {
            let full = if task.kind == Kind::Copy { Full::Store(f.page) } else { Full::Math(f.page) };
            f.block.copy(f.page, task.kind.pages(), (task.id, group, false), full);
        }
        f.step(task.kind);
    }
}

/// Waits until all pages of a group are free.
fn acquire(f: &mut Frame<'_>, kind: Kind) {
    let block = f.block;
    for page in f.page..f.page + kind.pages() {
        let parity = match block.bug {
            Some(Bug::ParityByLap) => !f.laps & 1,
            _ => !f.seen >> page & 1,
        };
        if f.wait(&block.empty[page as usize], 0, parity) {
            f.seen ^= 1 << page;
        }
    }
}

pub(crate) fn math(block: &Block, warp: usize) {
    let mut f = Frame::new(block, warp + 1);
    let me = warp - 1;
    while f.begin_run(FIRST_MATH + me) {
        math_run(&mut f, me);
        f.end_stream();
        f.end_run();
    }
}

fn math_run(f: &mut Frame<'_>, me: usize) {
    let (block, group) = (f.block, me as u32 / WARPS);
    loop {
        let task = f.next_task();
        // All warps of a warpgroup leave after the same task.
        if block.meetings[group as usize].any(task.is_none()) {
            return;
        }
        let task = task.expect("none of the group has none");
        block.linger(task);
        match task.kind {
            Kind::Gemm | Kind::Gated | Kind::Unposted => multiply(f, task, me),
            Kind::SmallGemm if group == 0 => multiply(f, task, me),
            Kind::SmallGemm => pass_over(f, task, me),
            Kind::Activate => activate(f, task, me),
            Kind::Copy | Kind::Nop => {}
        }
        f.end_task(task);
    }
}

fn await_full(f: &mut Frame<'_>, full: Full, waiter: usize) {
    stall();
    let parity = f.parity(f.seen);
    f.wait(f.block.full(full), waiter, parity);
    f.seen ^= 1 << f.page;
}

/// This warpgroup will not read the pages again; its first warp says so.
fn release(f: &Frame<'_>, first: u32, me: usize) {
    if (me as u32).is_multiple_of(WARPS) {
        (first..first + 2).for_each(|p| f.arrive(&f.block.empty[p as usize], 1));
    }
}

fn check(f: &Frame<'_>, first: u32, pages: u32, content: (u32, u32, bool)) {
    if !f.dead {
        f.block.check(first, pages, content);
    }
}

/// One group is read while the next one's products are issued: a page is released one group later.
fn multiply(f: &mut Frame<'_>, task: Task, me: usize) {
    let meeting = &f.block.meetings[me / WARPS as usize];
    let mut before = None;
    for group in 0..task.groups {
        await_full(f, Full::Math(f.page), me);
        let content = (task.id, group, false);
        check(f, f.page, 2, content);
        // A wgmma is of all warps: none goes on before all have come.
        meeting.any(false);
        if f.block.bug == Some(Bug::PageFreedEarly) {
            release(f, f.page, me);
            thread::yield_now();
            check(f, f.page, 2, content);
        } else if let Some(first) = before.replace(f.page) {
            release(f, first, me);
        }
        f.step(task.kind);
    }
    meeting.any(false);
    if let Some(first) = before {
        release(f, first, me);
    }
    if task.kind == Kind::Gated {
        begin_output(f, me);
    }
    if task.kind != Kind::Unposted {
        f.arrive(&f.block.math_done[f.slot as usize], 1);
    }
}

/// This warp has consumed everything, and waits until it may store.
fn begin_output(f: &mut Frame<'_>, me: usize) {
    let slot = f.slot as usize;
    f.arrive(&f.block.loaded[slot], 1);
    let parity = (f.may_store_seen >> slot) & 1;
    f.wait(&f.block.may_store[slot], me, parity);
    f.may_store_seen ^= 1 << slot;
}

/// The groups of a tile that this warpgroup has no part in.
fn pass_over(f: &mut Frame<'_>, task: Task, me: usize) {
    for _ in 0..task.groups {
        await_full(f, Full::Math(f.page), me);
        if f.block.bug != Some(Bug::PassedOverAlone) {
            f.block.meetings[me / WARPS as usize].any(false);
        }
        release(f, f.page, me);
        f.step(task.kind);
    }
    f.arrive(&f.block.math_done[f.slot as usize], 1);
}

/// Works in place; the first warp stands for what all write.
fn activate(f: &mut Frame<'_>, task: Task, me: usize) {
    for group in 0..task.groups {
        await_full(f, Full::Math(f.page), me);
        if me == 0 && !f.dead {
            f.block.check(f.page, 2, (task.id, group, false));
            for page in f.page..f.page + 2 {
                f.block.pages[page as usize].lock().expect("whole").2 = true;
            }
        }
        f.arrive(&f.block.done[f.page as usize], 1);
        f.step(task.kind);
    }
}

pub(crate) fn store(block: &Block, waiter: usize) {
    let mut f = Frame::new(block, waiter + 1);
    while f.begin_run(STORE) {
        f.role(store_task);
        f.end_run();
    }
}

fn store_task(f: &mut Frame<'_>, task: Task) {
    match task.kind {
        Kind::Gemm | Kind::SmallGemm | Kind::Gated => {
            if task.kind == Kind::Gated {
                open_store(f, task);
            }
            let slot = f.slot;
            f.wait(&f.block.math_done[slot as usize], 0, f.math_seen >> slot & 1);
            f.math_seen ^= 1 << slot;
        }
        Kind::Activate => store_pages(f, task, true),
        Kind::Copy => store_pages(f, task, false),
        Kind::Unposted => return,
        Kind::Nop => {}
    }
    f.post(&f.block.words[task.id as usize]);
}

/// Tells the peer that everything is loaded, which may be what the peer waits for before it lets this task store.
fn open_store(f: &mut Frame<'_>, task: Task) {
    let (block, slot, id) = (f.block, f.slot as usize, task.id as usize);
    let go = |f: &Frame<'_>| *f.block.go_words[id].lock().expect("whole") > 0;
    let mut due = true;
    while due && !f.dead && !go(f) && block.bug != Some(Bug::LoadedHeldBack) {
        if block.loaded[slot].test(0, (f.loaded_seen >> slot) & 1) {
            due = false;
            f.post(&block.loaded_words[id]);
        }
        f.dead |= block.aborted.load(Ordering::SeqCst);
        thread::yield_now();
    }
    f.wait_word(&block.go_words[id]);
    f.arrive(&block.may_store[slot], 1);
    if due && f.wait(&block.loaded[slot], 0, (f.loaded_seen >> slot) & 1) {
        f.post(&block.loaded_words[id]);
    }
    f.loaded_seen ^= 1 << slot;
}

fn store_pages(f: &mut Frame<'_>, task: Task, worked: bool) {
    for group in 0..task.groups {
        if worked {
            let parity = f.parity(f.done_seen);
            f.wait(&f.block.done[f.page as usize], 0, parity);
            f.done_seen ^= 1 << f.page;
        } else {
            await_full(f, Full::Store(f.page), 0);
        }
        check(f, f.page, task.kind.pages(), (task.id, group, worked));
        for page in f.page..f.page + task.kind.pages() {
            f.arrive(&f.block.empty[page as usize], GROUPS);
        }
        f.step(task.kind);
    }
}

/// Brings what compute tasks wait for, chunk by chunk through a ring of its own.
pub(crate) fn comm(block: &Block, _: usize) {
    let mut f = Frame::new(block, 0);
    let mut ring = (0, 0);
    while f.begin_run(COMM) {
        let tasks = &block.tasks[f.run as usize - 1];
        for (i, task) in tasks.iter().step_by(2).enumerate() {
            f.read_parameters();
            comm_task(&mut f, task.id as usize / 2, i > 0, &mut ring);
        }
        f.end_run();
    }
}

/// Each but the first of a run waits for a compute task. `filled` and `taken` slots count on over runs.
fn comm_task(f: &mut Frame<'_>, word: usize, waits: bool, (filled, taken): &mut (u32, u32)) {
    let block = f.block;
    if waits {
        f.wait_word(&block.words[2 * word - 1]);
    }
    for chunk in 0..CHUNKS {
        let content = (word as u32, chunk, true);
        if !f.dead {
            block.copy(RING + *filled % COMM_SLOTS, 1, content, Full::Comm(*filled % COMM_SLOTS));
            *filled += 1;
        }
        // The next chunk is asked for while this one is on its way.
        if *filled - *taken == COMM_SLOTS || chunk + 1 == CHUNKS {
            while taken < filled {
                take_chunk(f, *taken);
                *taken += 1;
            }
        }
    }
    f.post(&block.comm_words[word]);
}

fn take_chunk(f: &mut Frame<'_>, taken: u32) {
    let slot = taken % COMM_SLOTS;
    // What was asked for must land before the block leaves, so an abort does not end this wait.
    while !f.block.comm_full[slot as usize].test(0, ((taken / COMM_SLOTS) & 1).into()) {
        thread::yield_now();
    }
}
