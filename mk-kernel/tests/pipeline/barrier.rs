//! An mbarrier: arrivals, phases, waits by parity.

use shuttle::sync::Mutex;

/// An mbarrier, with what the hardware does not keep: how often it has completed, and how often each waiter has noticed.
pub(crate) struct Barrier {
    name: &'static str,
    state: Mutex<State>,
}

struct State {
    /// Arrivals of one phase, and those that are still missing.
    count: u32,
    pending: u32,
    completed: u64,
    /// By waiter.
    noticed: Vec<u64>,
    /// The first wait of every waiter is free: the barrier guards something that is free at first.
    first_is_free: bool,
}

impl Barrier {
    /// A barrier that `count` arrivals complete and `waiters` threads wait for, each for every completion.
    pub(crate) fn new(name: &'static str, count: u32, waiters: usize) -> Barrier {
        Barrier::with(name, count, waiters, false)
    }

    /// The same, of something that is free at first.
    pub(crate) fn free(name: &'static str, count: u32, waiters: usize) -> Barrier {
        Barrier::with(name, count, waiters, true)
    }

    fn with(name: &'static str, count: u32, waiters: usize, first_is_free: bool) -> Barrier {
        let state = State { count, pending: count, completed: 0, noticed: vec![0; waiters], first_is_free };
        Barrier { name, state: Mutex::new(state) }
    }

    pub(crate) fn arrive(&self, arrivals: u32) {
        let mut s = self.state.lock().expect("no thread of the model panics and goes on");
        assert!(arrivals <= s.pending, "{}: more arrivals than a phase has", self.name);
        s.pending -= arrivals;
        if s.pending == 0 {
            s.pending = s.count;
            s.completed += 1;
        }
    }

    /// `mbarrier.try_wait.parity`: whether the phase of this parity has completed. What parity cannot tell, the model can:
    /// that it is the phase that the waiter means.
    pub(crate) fn test(&self, waiter: usize, parity: u64) -> bool {
        let mut s = self.state.lock().expect("no thread of the model panics and goes on");
        let meant = s.noticed[waiter] + u64::from(!s.first_is_free);
        let passed = self.passed(&s, parity, meant);
        s.noticed[waiter] += u64::from(passed);
        passed
    }

    /// The same, for a waiter that passes over completions: it means the one after which there are so many.
    pub(crate) fn test_for(&self, parity: u64, meant: u64) -> bool {
        let s = self.state.lock().expect("no thread of the model panics and goes on");
        self.passed(&s, parity, meant)
    }

    fn passed(&self, s: &State, parity: u64, meant: u64) -> bool {
        let passed = s.completed & 1 != parity;
        assert!(!passed || s.completed == meant, "{}: the parity stands for another lap", self.name);
        passed
    }

    /// How often it has completed.
    pub(crate) fn completed(&self) -> u64 {
        self.state.lock().expect("no thread of the model panics and goes on").completed
    }

    /// Whether a phase is under way.
    pub(crate) fn under_way(&self) -> bool {
        let s = self.state.lock().expect("no thread of the model panics and goes on");
        s.pending != s.count
    }
}
