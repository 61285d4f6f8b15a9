//! The roles, as `device/kernel.cuh` and the handlers run them.

use crate::Bug;
use crate::barrier::Barrier;
use crate::block::{Block, Kind, MATH, RING, Record, SLOTS, Task};
use shuttle::sync::atomic::Ordering;
use shuttle::thread;

/// What a role keeps in its registers.
struct Frame<'a> {
    block: &'a Block,
    /// Its number among those that wait for task slots.
    waiter: usize,
    slot: u32,
    slot_parity: u64,
    /// The page at which it is in its task.
    page: u32,
    /// Parities of page barriers, a bit a page: of `empty` (load) or `full` (math, store); of `done`; of the slots' `math_done`.
    seen: u64,
    done_seen: u64,
    math_seen: u64,
    /// Laps of the ring, for the planted mistake.
    laps: u64,
    dead: bool,
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
            laps: 0,
            dead: false,
        }
    }

    /// Waits, unless the block is dead. True if what it waited for has come.
    fn wait(&mut self, barrier: &Barrier, waiter: usize, parity: u64) -> bool {
        loop {
            if barrier.test(waiter, parity) {
                return true;
            }
            if self.dead {
                return false;
            }
            let deaf = self.block.bug == Some(Bug::DeafToAbort) && waiter == self.waiter;
            self.dead = !deaf && self.block.aborted.load(Ordering::SeqCst);
            thread::yield_now();
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
        let (task, page) = self.record();
        self.page = page;
        task
    }

    /// The role has read the record for the last time.
    fn end_task(&mut self, task: Task) {
        assert_eq!(self.record().0, Some(task), "the slot was refilled while a role read it");
        self.block.slot_empty[self.slot as usize].arrive(1);
        self.next_slot();
    }

    /// Runs every task, and leaves.
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
            if self.dead {
                return;
            }
        }
    }
}

/// Reads records ahead and says where in the ring each task starts, so that roles may skip tasks.
pub(crate) fn fetch(block: &Block, _: usize) {
    let mut f = Frame::new(block, 0);
    let (mut parity, mut page) = (1, 0u32);
    for task in block.tasks.iter().map(|t| Some(*t)).chain([None]) {
        let free =
            block.bug == Some(Bug::SlotNotAwaited) || f.wait(&block.slot_empty[f.slot as usize], 0, parity);
        if !free || f.dead {
            return;
        }
        if let Some(t) = task {
            page = page.div_ceil(t.kind.pages()) * t.kind.pages() % RING;
        }
        *block.slots[f.slot as usize].lock().expect("whole") = (task, page);
        block.slot_full[f.slot as usize].arrive(1);
        if let Some(t) = task.filter(|t| t.kind != Kind::Nop) {
            page = (page + t.groups * t.kind.pages()) % RING;
        }
        f.slot += 1;
        if f.slot == SLOTS {
            f.slot = 0;
            parity ^= 1;
        }
    }
}

pub(crate) fn load(block: &Block, _: usize) {
    let mut f = Frame::new(block, 1);
    f.role(|f, task| {
        for group in 0..if task.kind == Kind::Nop { 0 } else { task.groups } {
            if !acquire(f, task.kind) {
                return;
            }
            let first = f.page;
            f.block.copy(first, task.kind.pages(), (task.id, group, false), task.kind != Kind::Copy);
            f.step(task.kind);
        }
    });
    while block.bug != Some(Bug::CopiesLeftBehind) && block.copies_under_way() {
        thread::yield_now();
    }
}

/// Waits until all pages of a group are free.
fn acquire(f: &mut Frame<'_>, kind: Kind) -> bool {
    let block = f.block;
    for page in f.page..f.page + kind.pages() {
        let parity = match block.bug {
            Some(Bug::ParityByLap) => !f.laps & 1,
            _ => !f.seen >> page & 1,
        };
        if !f.wait(&block.empty[page as usize], 0, parity) {
            return false;
        }
        f.seen ^= 1 << page;
    }
    true
}

pub(crate) fn math(block: &Block, warp: usize) {
    let mut f = Frame::new(block, warp + 1);
    let me = warp - 1;
    f.role(|f, task| match task.kind {
        Kind::Gemm => multiply(f, task, me),
        Kind::Activate => activate(f, task, me),
        Kind::Copy | Kind::Nop => {}
    });
}

fn await_full(f: &mut Frame<'_>, to_math: bool, waiter: usize) -> bool {
    let parity = f.parity(f.seen);
    let came = f.wait(&f.block.full(to_math)[f.page as usize], waiter, parity);
    f.seen ^= 1 << f.page;
    came
}

/// One group is read while the next one's products are issued: a page is released one group later.
fn multiply(f: &mut Frame<'_>, task: Task, me: usize) {
    let release =
        |block: &Block, first: u32| (first..first + 2).for_each(|p| block.empty[p as usize].arrive(1));
    let mut before = None;
    for group in 0..task.groups {
        if !await_full(f, true, me) {
            return;
        }
        let content = (task.id, group, false);
        f.block.check(f.page, 2, content);
        if f.block.bug == Some(Bug::PageFreedEarly) {
            release(f.block, f.page);
            thread::yield_now();
            f.block.check(f.page, 2, content);
        } else if let Some((first, content)) = before.replace((f.page, content)) {
            f.block.check(first, 2, content);
            release(f.block, first);
        }
        f.step(task.kind);
    }
    if let Some((first, content)) = before {
        f.block.check(first, 2, content);
        release(f.block, first);
    }
    f.block.math_done[f.slot as usize].arrive(1);
}

/// Works in place; the first warp stands for what both write.
fn activate(f: &mut Frame<'_>, task: Task, me: usize) {
    for group in 0..task.groups {
        if !await_full(f, true, me) {
            return;
        }
        if me == 0 {
            f.block.check(f.page, 2, (task.id, group, false));
            for page in f.page..f.page + 2 {
                f.block.pages[page as usize].lock().expect("whole").2 = true;
            }
        }
        f.block.done[f.page as usize].arrive(1);
        f.step(task.kind);
    }
}

pub(crate) fn store(block: &Block, waiter: usize) {
    let mut f = Frame::new(block, waiter + 1);
    f.role(|f, task| match task.kind {
        Kind::Gemm => {
            let slot = f.slot;
            let parity = f.math_seen >> slot & 1;
            if f.wait(&f.block.math_done[slot as usize], 0, parity) {
                f.math_seen ^= 1 << slot;
            }
        }
        Kind::Activate => store_pages(f, task, true),
        Kind::Copy => store_pages(f, task, false),
        Kind::Nop => {}
    });
}

fn store_pages(f: &mut Frame<'_>, task: Task, worked: bool) {
    for group in 0..task.groups {
        let came = if worked {
            let parity = f.parity(f.done_seen);
            let came = f.wait(&f.block.done[f.page as usize], 0, parity);
            f.done_seen ^= 1 << f.page;
            came
        } else {
            await_full(f, false, 0)
        };
        if !came {
            return;
        }
        f.block.check(f.page, task.kind.pages(), (task.id, group, worked));
        for page in f.page..f.page + task.kind.pages() {
            f.block.empty[page as usize].arrive(MATH);
        }
        f.step(task.kind);
    }
}
