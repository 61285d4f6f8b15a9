//! How runs begin and end, as `device/lane.cuh` has it: fetch sees to it for all roles.

use crate::barrier::Barrier;
use crate::block::{Block, MATH, Task};
use crate::roles::Frame;
use crate::{Bug, Scenario};
use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::thread;

/// Roles that wait for a run to begin, and end it: load, store, comm, the math warps.
pub(crate) const LOAD: usize = 0;
pub(crate) const STORE: usize = 1;
pub(crate) const COMM: usize = 2;
pub(crate) const FIRST_MATH: usize = 3;
const ROLES: usize = FIRST_MATH + MATH as usize;

/// What all roles share of the runs.
pub(crate) struct Runs {
    begins: Barrier,
    ends: Barrier,
    /// The parameters of the run; its number, from 1, stands for all of them.
    parameters: Mutex<u64>,
    stop: AtomicBool,
    failed: AtomicBool,
    /// A role has ended a run in which it saw the abort.
    died: AtomicBool,
}

impl Runs {
    pub(crate) fn new() -> Runs {
        Runs {
            begins: Barrier::new("a run begins", 1, ROLES),
            ends: Barrier::new("a run ends", ROLES as u32, 1),
            parameters: Mutex::new(0),
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            died: AtomicBool::new(false),
        }
    }
}

/// A role's side of it.
impl Frame<'_> {
    /// Waits for the next run; false: there is none. No abort ends this wait: fetch always says one or the other.
    pub(crate) fn begin_run(&mut self, role: usize) -> bool {
        let (block, runs) = (self.block, &self.block.runs);
        while !runs.begins.test(role, self.run_parity) {
            thread::yield_now();
        }
        if block.bug != Some(Bug::RunParityForgotten) {
            self.run_parity ^= 1;
        }
        if runs.stop.load(Ordering::SeqCst) {
            return false;
        }
        self.run += 1;
        self.read_parameters();
        true
    }

    /// Whatever a role reads of the run must be of the run that it is in.
    pub(crate) fn read_parameters(&self) {
        let found = *self.block.runs.parameters.lock().expect("whole");
        assert_eq!(found, self.run, "the parameters are those of another run");
    }

    /// This role does nothing more of this run.
    pub(crate) fn end_run(&mut self) {
        self.read_parameters();
        let (block, runs) = (self.block, &self.block.runs);
        if self.dead {
            runs.died.store(true, Ordering::SeqCst);
            runs.failed.store(true, Ordering::SeqCst);
            if block.bug == Some(Bug::DeadRunNotEnded) {
                return;
            }
        }
        runs.ends.arrive(1);
    }
}

/// Turns for which fetch waits after an abort, where a role may take for ever.
const PATIENCE: u32 = 60;

/// Fetch's side of it.
pub(crate) struct Lane<'a> {
    block: &'a Block,
    taken: usize,
    ends_parity: u64,
}

impl<'a> Lane<'a> {
    pub(crate) fn new(block: &'a Block) -> Lane<'a> {
        Lane { block, taken: 0, ends_parity: 0 }
    }

    /// Takes up the next run; none: the lane ends.
    pub(crate) fn take(&mut self, f: &mut Frame<'_>) -> Option<&'a [Task]> {
        if f.dead {
            return None;
        }
        let tasks = self.block.tasks.get(self.taken)?;
        self.taken += 1;
        self.write_parameters(self.taken);
        f.dead = self.block.aborted.load(Ordering::SeqCst);
        Some(tasks)
    }

    fn write_parameters(&self, run: usize) {
        *self.block.runs.parameters.lock().expect("whole") = run as u64;
    }

    /// Tells all roles that the run begins.
    pub(crate) fn begin(&self) {
        let died = self.block.runs.died.load(Ordering::SeqCst);
        assert!(!died, "a run begins after one that a role has left early");
        self.start(false);
    }

    /// Tells all roles that there is none.
    pub(crate) fn stop(&self) {
        self.start(true);
    }

    fn start(&self, stop: bool) {
        let runs = &self.block.runs;
        runs.stop.store(stop, Ordering::SeqCst);
        runs.failed.store(false, Ordering::SeqCst);
        runs.begins.arrive(1);
    }

    /// Waits until all roles have ended the run. After a fault there is no other.
    pub(crate) fn end(&mut self, f: &mut Frame<'_>) {
        if self.block.bug == Some(Bug::ParametersOverwritten) {
            self.write_parameters(self.taken + 1);
        }
        self.await_roles(f);
        self.ends_parity ^= 1;
        let failed = self.block.runs.failed.load(Ordering::SeqCst);
        f.dead |= failed && self.block.bug != Some(Bug::FailureOverlooked);
        if f.dead && self.block.bug != Some(Bug::CopiesAwaitedOnlyWhenDead) {
            self.block.let_copies_land();
        }
        // Now the host is told. Who waits for a role for ever knows nothing of its copies.
        let all_ended = self.block.scenario != Scenario::Stuck;
        assert!(
            !(all_ended && self.block.copies_under_way()),
            "a run has ended, but its copies are under way"
        );
    }

    /// After an abort this has a bound, in case a handler never returns. Then the run has failed, whoever saw what.
    fn await_roles(&self, f: &mut Frame<'_>) {
        let mut left = PATIENCE;
        while !self.block.runs.ends.test(0, self.ends_parity) {
            let bounded = self.block.scenario == Scenario::Stuck;
            if bounded && self.block.aborted.load(Ordering::SeqCst) {
                left -= 1;
            }
            if left == 0 {
                f.dead |= self.block.bug != Some(Bug::GivenUpAlive);
                return;
            }
            thread::yield_now();
        }
    }
}
