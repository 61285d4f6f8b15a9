//! The host: `src/session/resident.rs`, and what a session does with it.

use crate::explore;
use crate::lanes::lane;
use crate::mistakes::{are_found, failure};
use crate::shared::{Bug, COMMANDS, LANES, LEAVES_AFTER_FAULT, Launch, STOP, Shared, pause, random, stall};
use shuttle::sync::Arc;
use shuttle::sync::atomic::Ordering::SeqCst;
use shuttle::thread;
use std::collections::VecDeque;

/// A run has failed: all commands are void.
struct Faulted;

struct Host {
    s: Arc<Shared>,
    /// The kernel has been started, and has not been seen to have gone.
    here: bool,
    /// Commands that this kernel was given.
    rung: u64,
    /// Those that it is not known to have ended.
    queue: VecDeque<u64>,
    /// Runs that were started, by program.
    started: Vec<u64>,
}

impl Host {
    fn new(bug: Option<Bug>) -> Host {
        let s = Shared::new(bug);
        let started = vec![0; s.programs.len()];
        Host { s, here: false, rung: 0, queue: VecDeque::new(), started }
    }

    fn is(&self, bug: Bug) -> bool {
        self.s.bug == Some(bug)
    }

    /// Forgets the commands that have ended.
    fn update(&mut self) {
        let left = self.rung - self.s.bell_ended.load(SeqCst).min(self.rung);
        while self.queue.len() as u64 > left {
            self.queue.pop_front();
        }
    }

    fn has_gone(&self) -> bool {
        self.s.gone.load(SeqCst) != 0
    }

    /// Gives the kernel a command; false: too many wait for it.
    fn ring(&mut self, program: usize, faults_on: Option<usize>) -> Result<bool, Faulted> {
        self.update();
        if self.queue.len() >= COMMANDS && !self.is(Bug::RingOverrun) {
            return Ok(false);
        }
        if !self.here || self.has_gone() {
            self.start()?;
        }
        let launch = self.new_launch(program, faults_on);
        self.queue.push_back(launch);
        self.command(launch);
        self.started[program] += 1;
        Ok(true)
    }

    fn new_launch(&self, program: usize, faults_on: Option<usize>) -> u64 {
        let mut launches = self.s.launches.lock().expect("whole");
        launches.push(Launch { program, faults_on });
        self.s.done.lock().expect("whole").push(0);
        launches.len() as u64
    }

    fn command(&mut self, launch: u64) {
        self.rung += 1;
        let entry = &self.s.ring[self.rung as usize % COMMANDS];
        if self.is(Bug::NumberFirst) {
            entry.number.store(self.rung, SeqCst);
            entry.launch.store(launch, SeqCst);
        } else {
            entry.launch.store(launch, SeqCst);
            entry.number.store(self.rung, SeqCst);
        }
    }

    /// Starts the kernel with what is left of the queue.
    fn start(&mut self) -> Result<(), Faulted> {
        if !self.is(Bug::StartedTooEarly) {
            self.await_leaving();
        }
        self.update();
        let fault = self.s.gone.load(SeqCst) == LEAVES_AFTER_FAULT;
        if fault && !self.is(Bug::StartedAfterFault) {
            return Err(Faulted);
        }
        self.reset();
        for launch in self.queue.clone() {
            if !self.is(Bug::QueueForgotten) {
                self.command(launch);
            }
        }
        self.s.present.fetch_add(LANES as u32, SeqCst);
        for block in 0..LANES {
            let s = self.s.clone();
            thread::spawn(move || lane(&s, block));
        }
        self.here = true;
        Ok(())
    }

    fn reset(&mut self) {
        let s = &self.s;
        self.rung = 0;
        if !self.is(Bug::RingKept) {
            s.ring.iter().for_each(|e| e.number.store(0, SeqCst));
        }
        if !self.is(Bug::EndedKept) {
            s.bell_ended.store(0, SeqCst);
        }
        s.gone.store(0, SeqCst);
        *s.told.lock().expect("whole") = (STOP, 0);
        s.ended.store(0, SeqCst);
    }

    /// Starts the kernel again if it has gone and commands are left.
    fn attend(&mut self) -> Result<(), Faulted> {
        self.update();
        if self.here && self.has_gone() && !self.queue.is_empty() {
            return self.start();
        }
        Ok(())
    }

    /// Waits until all runs have ended.
    fn wait(&mut self) -> Result<(), Faulted> {
        while !self.all_ended() {
            if self.has_faulted() {
                return Err(Faulted);
            }
            // It looks at the kernel less often than at the run.
            if random(16) == 0 && !self.is(Bug::NobodyAttends) {
                self.attend()?;
            }
            thread::yield_now();
        }
        Ok(())
    }

    fn all_ended(&self) -> bool {
        let ended = |(p, started): (usize, &u64)| {
            self.s.programs[p].ranks.iter().all(|r| r.ended.load(SeqCst) >= *started)
        };
        self.started.iter().enumerate().all(ended)
    }

    fn has_faulted(&self) -> bool {
        self.s.programs.iter().flat_map(|p| &p.ranks).any(|r| r.faulted.load(SeqCst))
    }

    /// Tells the kernel to leave once it has done all commands, and waits for that.
    fn park(&mut self) -> Result<(), Faulted> {
        if !self.here {
            return Ok(());
        }
        loop {
            self.attend()?;
            if self.queue.is_empty() {
                break;
            }
            thread::yield_now();
        }
        if !self.has_gone() {
            self.command(STOP);
        }
        self.await_leaving();
        Ok(())
    }

    fn await_leaving(&mut self) {
        while self.here && self.s.present.load(SeqCst) != 0 {
            thread::yield_now();
        }
        self.here = false;
    }
}

/// Some runs, waits and parks, in any order, then the end; `fault_at`: the command in which a lane sees a fault.
fn session(h: &mut Host, fault_at: Option<usize>) -> Result<(), Faulted> {
    let mut rung = 0;
    for _ in 0..random(8) + 2 {
        match random(6) {
            0 => h.wait()?,
            1 => h.park()?,
            _ => {
                let program = random(h.s.programs.len());
                let lanes: usize = h.s.programs[program].ranks.iter().map(|r| r.lanes).sum();
                let faults_on = (fault_at == Some(rung)).then(|| random(lanes));
                while !h.ring(program, faults_on)? {
                    h.attend()?;
                    thread::yield_now();
                }
                rung += 1;
            }
        }
        pause(60);
        stall();
    }
    if random(2) == 0 {
        h.wait()?;
    }
    h.park()
}

fn run(bug: Option<Bug>, aborts: bool) {
    let mut host = Host::new(bug);
    let fault_at = aborts.then(|| random(4));
    let result = session(&mut host, fault_at);
    if result.is_err() {
        // Nobody tells the lanes anything, and all leave.
        host.await_leaving();
        assert!(host.s.aborted(), "a fault that nobody saw");
    }
    assert!(!host.here, "the session has ended, and the kernel has not left");
    if !host.s.aborted() {
        host.s.check_all_ran();
    }
}

#[test]
fn every_command_runs_once_and_in_order_whenever_the_kernel_leaves() {
    explore(1500, || run(None, false));
}

#[test]
fn a_fault_makes_all_lanes_leave_and_nothing_runs_again() {
    explore(1500, || run(None, true));
}

#[test]
fn planted_mistakes_are_found() {
    are_found(&Bug::ALL, |bug| failure(move || explore(2000, move || run(Some(bug), bug.aborts()))));
}
