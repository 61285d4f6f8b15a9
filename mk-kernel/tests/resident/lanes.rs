//! A lane of the kernel: `device/lane.cuh`, with a run that takes a while.

use crate::shared::{
    Bug, COMMANDS, FAILED, LEAVES, LEAVES_AFTER_FAULT, Rank, STOP, Shared, pause, random, stall,
};
use shuttle::sync::atomic::Ordering::SeqCst;
use shuttle::thread;

/// What a lane keeps.
struct Lane<'a> {
    s: &'a Shared,
    block: usize,
    /// Of the last command that it has seen; the first lane: that it has told.
    number: u64,
    told: u64,
    epoch: u64,
    dead: bool,
}

/// From start to end.
pub(crate) fn lane(s: &Shared, block: usize) {
    let mut l = Lane { s, block, number: 0, told: 0, epoch: 1, dead: false };
    while let Some(launch) = l.take() {
        l.run(launch);
        l.end(launch);
    }
    if block == 0 {
        l.leave();
    }
    s.present.fetch_sub(1, SeqCst);
}

impl<'a> Lane<'a> {
    /// Takes up the next run that it has a part in.
    fn take(&mut self) -> Option<u64> {
        while !self.dead {
            let launch = self.next_told();
            if launch == STOP {
                return None;
            }
            if let Some(rank) = self.s.launch(launch).0.rank(self.block) {
                self.s.note_taken(self.block, launch);
                self.epoch = rank.clock.load(SeqCst);
                self.dead = self.s.aborted();
                return Some(launch);
            }
        }
        None
    }

    fn next_told(&mut self) -> u64 {
        stall();
        if self.block == 0 {
            self.lead();
        }
        loop {
            let (launch, number) = *self.s.told.lock().expect("whole");
            let news = match self.s.bug {
                Some(Bug::NumbersCounted) => number == self.number + 1,
                _ => number != self.number,
            };
            if news {
                self.number = number;
                return launch;
            }
            thread::yield_now();
        }
    }

    /// The first lane: once all ranks have ended the last command, it waits for the next, and tells it.
    fn lead(&mut self) {
        let s = self.s;
        while self.told != 0 && s.ended.load(SeqCst) != self.told && s.bug != Some(Bug::NoRunBoundary) {
            if s.aborted() && s.bug != Some(Bug::DeafToAbort) {
                self.dead = true;
                return self.tell(STOP);
            }
            thread::yield_now();
        }
        let next = &s.ring[(self.told as usize + 1) % COMMANDS];
        loop {
            // Nothing has come for a while.
            let idle = random(8) == 0;
            if idle && s.bug == Some(Bug::GoneBeforeLastLook) {
                s.gone.store(LEAVES, SeqCst);
            }
            if next.number.load(SeqCst) == self.told + 1 {
                return self.tell(next.launch.load(SeqCst));
            }
            if idle {
                return self.tell(STOP);
            }
            thread::yield_now();
        }
    }

    fn tell(&mut self, launch: u64) {
        let gone = self.s.gone.load(SeqCst);
        assert!(launch == STOP || gone == 0, "a command is told after the kernel has said that it leaves");
        self.told += 1;
        *self.s.told.lock().expect("whole") = (launch, self.told);
    }

    /// The first lane leaves, so all do.
    fn leave(&mut self) {
        if self.s.bug != Some(Bug::LeavesSilently) {
            self.tell(STOP);
        }
        let how = if self.dead { LEAVES_AFTER_FAULT } else { LEAVES };
        self.s.gone.store(how, SeqCst);
    }

    // ------------------------------------------------------------------------------------------ a run

    fn run(&mut self, launch: u64) {
        pause(6);
        if self.s.launch(launch).1 == Some(self.block) {
            self.s.abort.store(true, SeqCst);
            self.dead = true;
        }
        // A lane that has no wait left does not notice.
        if random(2) == 0 {
            self.dead |= self.s.aborted();
        }
    }

    fn end(&mut self, launch: u64) {
        let (program, _) = self.s.launch(launch);
        let rank = program.rank(self.block).expect("it was taken");
        self.s.note_done(launch);
        let me = if self.dead { FAILED + 1 } else { 1 };
        let before = rank.left.fetch_add(me, SeqCst);
        if before % FAILED == rank.lanes as u32 - 1 {
            self.rank_ends(rank, program.ranks.len() as u32, self.dead || before >= FAILED);
        }
    }

    /// The rank's last lane has ended.
    fn rank_ends(&self, rank: &Rank, ranks: u32, failed: bool) {
        let s = self.s;
        if failed {
            rank.faulted.store(true, SeqCst);
            return;
        }
        let late = s.bug == Some(Bug::ReadyTooLate);
        if !late {
            self.make_ready(rank);
        }
        rank.ended.store(self.epoch, SeqCst);
        if s.bug == Some(Bug::FirstRankEnds) {
            self.launch_ends();
        } else if s.ranks_ended.fetch_add(1, SeqCst) == ranks - 1 {
            s.ranks_ended.store(0, SeqCst);
            self.launch_ends();
        }
        if late {
            stall();
            self.make_ready(rank);
        }
    }

    /// For the rank's next run.
    fn make_ready(&self, rank: &Rank) {
        rank.clock.store(self.epoch + 1, SeqCst);
        rank.left.store(0, SeqCst);
    }

    /// The host first: with the other word, the next run may begin, end, and tell the host in its turn.
    fn launch_ends(&self) {
        let s = self.s;
        if s.bug == Some(Bug::HostToldLast) {
            s.ended.store(self.number, SeqCst);
            stall();
            s.bell_ended.store(self.number, SeqCst);
        } else {
            s.bell_ended.store(self.number, SeqCst);
            stall();
            s.ended.store(self.number, SeqCst);
        }
    }
}
