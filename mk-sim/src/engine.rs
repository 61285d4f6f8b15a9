//! The engine: a clock, and what happens next.

use crate::builder::Listener;
use crate::checks::Log;
use crate::data::Data;
use crate::events::{Event, Queue, What};
use crate::faults::Faults;
use crate::hash::Map;
use crate::links::{Chance, Links, NS};
use crate::plan::{Plan, TaskInfo};
use crate::posts::UnderWay;
use crate::random::Random;
use crate::report::{RankReport, Report};
use crate::stall;
use crate::trace;
use crate::unit::{NEVER, Role, SLOTS, Slot, Unit};
use crate::words::{Waiter, Words};
use mk_core::{Bindings, Fault, Hardware, Rank, Reason, Task, TaskId, Trace};

/// What a session was built with, as the engine needs it.
pub(crate) struct Setup<'a> {
    pub(crate) hardware: &'a Hardware,
    pub(crate) faults: &'a Faults,
    pub(crate) seed: u64,
    /// A wait that is not met for so long is a fault, ps.
    pub(crate) bound: u64,
    /// A rank that is silent for so long is lost, ps.
    pub(crate) heartbeat: u64,
    pub(crate) trace: bool,
    /// Whether a stall is a deadlock at once, or a time-out.
    pub(crate) deadlock: bool,
    /// Whether a post that was made and never arrived is told from a deadlock.
    pub(crate) lost: bool,
    pub(crate) progress: &'a Listener,
    /// Tasks of the run.
    pub(crate) all_tasks: u64,
}

/// One epoch of one program.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) plan: usize,
    /// The program's own epoch, then those of its shared signals.
    pub(crate) clocks: [u64; 8],
    /// Places of its first task and post in the log.
    pub(crate) first_task: usize,
    pub(crate) first_post: usize,
    pub(crate) bindings: Option<&'a Bindings>,
}

/// Where a rank is.
#[derive(Clone, Debug, Default)]
pub(crate) struct RankState {
    /// Its epoch, among those of the run.
    pub(crate) job: usize,
    /// Tasks of it that have not ended.
    pub(crate) left: u64,
    /// Posts of it that have not arrived.
    pub(crate) under_way: u64,
    pub(crate) dead: bool,
    /// Everything takes so many times as long.
    pub(crate) slow: f32,
    /// Sums in ps.
    busy: [u64; 2],
    wait: [u64; 2],
    end: u64,
}

/// Schedules differ in durations and latencies by up to this much: as much as GPUs that are not all equally warm do.
const SPREAD: f64 = 0.25;
/// Ranks begin a run within this time of each other, ps: launches on several GPUs do.
const SKEW: u64 = 5_000_000;
/// Claiming a ticket is one atomic in L2, half of a signal.
const CLAIM: f64 = 0.5;

/// One run.
pub(crate) struct Engine<'a> {
    pub(crate) setup: Setup<'a>,
    pub(crate) plans: Vec<&'a Plan>,
    pub(crate) jobs: Vec<Job<'a>>,
    pub(crate) links: &'a mut Links,
    pub(crate) words: &'a mut Words,
    pub(crate) data: Option<Data<'a>>,
    pub(crate) log: Log,
    /// The first word that stood too high when its writer came: the word, what it should have been, and was.
    pub(crate) surplus: Option<(usize, u64, u64)>,
    pub(crate) now: u64,
    pub(crate) queue: Queue,
    pub(crate) random: Random,
    pub(crate) depth: u64,
    pub(crate) units: Vec<Unit>,
    pub(crate) slots: Vec<Slot>,
    /// First unit of each plan; and the next task of each stream, by plan.
    unit_base: Vec<usize>,
    pub(crate) cursors: Vec<Vec<u32>>,
    pub(crate) ranks: Vec<RankState>,
    pub(crate) posts: Vec<UnderWay>,
    pub(crate) free_posts: Vec<u32>,
    /// Posts made in the run.
    pub(crate) made: u64,
    /// When the last signal to a word was acknowledged, on links without order.
    pub(crate) last_ack: Map<usize, u64>,
    pub(crate) woken: Vec<Waiter>,
    /// Blocks of each slot that have landed ahead of an earlier one.
    pub(crate) ahead: Vec<Vec<u32>>,
    /// When the next wait may be over its bound.
    watch: u64,
    pub(crate) fault: Option<Fault>,
    pub(crate) trace: Option<Trace>,
    events: u64,
    tasks: u64,
    order: u64,
}

impl<'a> Engine<'a> {
    pub(crate) fn new(
        setup: Setup<'a>,
        plans: Vec<&'a Plan>,
        jobs: Vec<Job<'a>>,
        links: &'a mut Links,
        words: &'a mut Words,
        data: Option<Data<'a>>,
        log: Log,
    ) -> Engine<'a> {
        let mut random = Random::new(setup.seed);
        let depth = match setup.seed {
            0 => 2,
            _ => [1, 2, 4][random.below(3) as usize],
        };
        let ranks = plans.first().map_or(0, |p| p.program().ranks) as usize;
        let mut engine = Engine {
            plans,
            jobs,
            links,
            words,
            data,
            log,
            surplus: None,
            now: 0,
            queue: Queue::default(),
            random,
            depth,
            units: Vec::new(),
            slots: Vec::new(),
            unit_base: Vec::new(),
            cursors: Vec::new(),
            ranks: vec![RankState { slow: 1.0, ..RankState::default() }; ranks],
            posts: Vec::new(),
            free_posts: Vec::new(),
            made: 0,
            last_ack: Map::default(),
            woken: Vec::new(),
            ahead: Vec::new(),
            watch: setup.bound,
            fault: None,
            trace: setup.trace.then(Trace::default),
            events: 0,
            tasks: 0,
            order: 0,
            setup,
        };
        if let Some(slow) = engine.setup.faults.slow {
            engine.ranks[slow.rank.index()].slow = slow.factor as f32;
        }
        engine.links.restart();
        engine.words.forget_waiters();
        engine.add_units();
        engine
    }

    fn add_units(&mut self) {
        for (p, plan) in self.plans.clone().into_iter().enumerate() {
            self.unit_base.push(self.units.len());
            self.cursors.push(plan.program().streams.iter().map(|s| s.first).collect());
            self.units.extend(plan.units.iter().map(|u| Unit {
                plan: p as u32,
                stream: u.stream,
                rank: u.rank,
                lane: u.lane,
                comm: u.comm,
                ticket: u.ticket,
                loading: false,
                storing: false,
                begun: 0,
                ended: 0,
                math_free: 0,
                busy_until: 0,
                last_post: 0,
            }));
        }
        let empty = Slot { done: true, since: [NEVER; 2], ..Slot::default() };
        self.slots = vec![empty; self.units.len() * SLOTS];
        self.ahead = vec![Vec::new(); self.units.len() * SLOTS];
    }

    /// Runs until everything has ended, or something has gone wrong.
    pub(crate) fn run(&mut self) {
        let mut order: Vec<usize> = (0..self.ranks.len()).collect();
        if self.setup.seed != 0 {
            self.random.shuffle(&mut order);
        }
        if let Some(kill) = self.setup.faults.kill {
            self.push((kill.at_us * crate::links::US) as u64, What::Kill, 0, 0, kill.rank.0.into());
        }
        for rank in order {
            self.start(rank);
        }
        while self.fault.is_none() {
            let Some(event) = self.queue.pop() else { break };
            if event.time > self.watch && self.overdue(event.time) {
                break;
            }
            self.now = event.time;
            if event.what == What::Kill && self.finished() {
                // It is too late to hurt the run.
                continue;
            }
            self.events += 1;
            let key = (event.what as u64) << 56 ^ u64::from(event.slot) << 48 ^ u64::from(event.unit) << 24;
            self.order =
                (self.order.rotate_left(5) ^ key ^ u64::from(event.arg)).wrapping_mul(0x517c_c1b7_2722_0a95);
            self.happen(event);
        }
        if self.fault.is_none() && !self.finished() {
            let fault = stall::explain(self);
            self.fail(fault);
        }
    }

    fn finished(&self) -> bool {
        self.ranks.iter().all(|r| r.job == self.jobs.len())
    }

    fn happen(&mut self, e: Event) {
        let (u, s) = (e.unit as usize, e.slot as usize);
        let own =
            matches!(e.what, What::Loaded | What::Computed | What::Stored | What::StoreEarly | What::Read);
        if own && self.ranks[self.units[u].rank as usize].dead {
            return;
        }
        match e.what {
            What::Loaded => self.on_loaded(u, s, e.arg),
            What::Computed => self.on_computed(u, s),
            What::StoreEarly => self.on_store_early(u, s),
            What::Stored => self.on_stored(u, s),
            What::Read => self.on_read(u, s, e.arg),
            What::LandEarly => self.on_land_early(u, s, e.arg),
            What::Land => self.on_land(u, s, e.arg),
            What::Post => self.on_post(e.arg as usize),
            What::PostAgain => self.on_post_again(e.arg as usize),
            What::NicError => self.on_nic_error(u, s, e.arg),
            What::Kill => self.on_kill(Rank(e.arg as u16)),
            What::Missed => self.on_missed(Rank(e.arg as u16)),
        }
    }

    /// Something will happen.
    #[inline]
    pub(crate) fn push(&mut self, time: u64, what: What, u: usize, s: usize, arg: u32) {
        let chance = if self.setup.seed == 0 { 0 } else { self.random.next() as u16 };
        self.queue.push(Event::new(time, what, u as u32, s as u8, arg), chance);
    }

    /// What links leave to chance.
    #[inline]
    pub(crate) fn chance(&mut self) -> (&mut Links, Chance<'_>) {
        let spread = if self.setup.seed == 0 { 0.0 } else { SPREAD };
        (self.links, Chance { faults: self.setup.faults, random: &mut self.random, spread })
    }

    /// A duration in ps, of a task whose factor is given.
    #[inline]
    pub(crate) fn ps(ns: f32, factor: f32) -> u64 {
        (f64::from(ns * factor) * NS) as u64
    }

    #[inline]
    pub(crate) fn job_of(&self, u: usize) -> &Job<'a> {
        &self.jobs[self.ranks[self.units[u].rank as usize].job]
    }

    /// The plan, the task's record and what is known of it.
    #[inline]
    pub(crate) fn task(&self, u: usize, s: usize) -> (&'a Plan, &'a Task, &'a TaskInfo) {
        let plan = self.plans[self.units[u].plan as usize];
        let task = self.slots[u * SLOTS + s].task;
        (plan, plan.program().task(TaskId(task)), &plan.tasks[task as usize])
    }

    pub(crate) fn task_name(&self, u: usize, s: usize) -> String {
        self.task(u, s).0.program().task_name(TaskId(self.slots[u * SLOTS + s].task))
    }

    /// Begins a rank's next epoch.
    fn start(&mut self, rank: usize) {
        while let Some(&job) = self.jobs.get(self.ranks[rank].job) {
            let plan = self.plans[job.plan];
            if let Some(data) = &mut self.data {
                data.begin(plan, &job, Rank(rank as u16));
            }
            self.ranks[rank].left = plan.rank_tasks[rank];
            if self.ranks[rank].left > 0 {
                return self.start_units(rank, plan, job.plan);
            }
            self.end_epoch(rank);
        }
    }

    fn start_units(&mut self, rank: usize, plan: &Plan, p: usize) {
        let base = self.unit_base[p];
        let mut units: Vec<usize> = plan.rank_units[rank].clone().map(|u| base + u).collect();
        for &u in &units {
            let stream = self.units[u].stream as usize;
            self.cursors[p][stream] = plan.program().streams[stream].first;
        }
        let mut skew = 0;
        if self.setup.seed != 0 {
            self.random.shuffle(&mut units);
            // Only a launch is skewed; a rank goes on to its next epoch by itself.
            skew = if self.now == 0 { self.random.below(SKEW) } else { 0 };
        }
        self.rest_some(&mut units);
        for u in units {
            self.units[u].busy_until = self.units[u].busy_until.max(self.now);
            self.start_next(u, skew);
        }
    }

    /// Which lane claims a ticket is not defined: with a seed, it may be one and the same lane that claims all.
    fn rest_some(&mut self, units: &mut Vec<usize>) {
        if self.setup.seed == 0 || !units.iter().any(|&u| self.units[u].ticket) || self.random.below(4) > 0 {
            return;
        }
        let mut claimed = Vec::new();
        units.retain(|&u| {
            let Unit { ticket, stream, .. } = self.units[u];
            let first = !claimed.contains(&stream);
            claimed.push(stream);
            !ticket || first
        });
    }

    /// Lets a unit take its next task, if its load role is free and not too many overlap.
    pub(crate) fn start_next(&mut self, u: usize, skew: u64) {
        let unit = &mut self.units[u];
        if unit.loading || unit.begun - unit.ended >= self.depth {
            return;
        }
        let (p, rank) = (unit.plan as usize, unit.rank as usize);
        let plan = self.plans[p];
        let stream = &plan.program().streams[unit.stream as usize];
        let cursor = &mut self.cursors[p][unit.stream as usize];
        if *cursor >= stream.first + stream.len {
            return;
        }
        let task = *cursor;
        *cursor += 1;
        let s = (unit.begun % SLOTS as u64) as usize;
        unit.begun += 1;
        unit.loading = true;
        let job = &self.jobs[self.ranks[rank].job];
        let slow = self.ranks[rank].slow;
        let chance = if self.setup.seed == 0 { 0.0 } else { (SPREAD * self.random.unit()) as f32 };
        let factor = (1.0 + chance) * slow;
        let claim = if unit.ticket { CLAIM * self.setup.hardware.local_signal_ns } else { 0.0 };
        let fetch = Self::ps((self.setup.hardware.task_ns + claim) as f32, factor);
        let info = &plan.tasks[task as usize];
        let record = plan.program().task(TaskId(task));
        self.slots[u * SLOTS + s] = Slot {
            task,
            blocks: info.blocks,
            target: record.waits.map(|w| w.target(job.clocks[w.clock as usize & 7])),
            log: job.first_post + info.log as usize,
            ready: self.now + skew + fetch,
            began: self.now + skew,
            since: [NEVER; 2],
            factor,
            ..Slot::default()
        };
        let stream_is_comm = unit.comm;
        if let Some(data) = &mut self.data {
            data.take(plan, u * SLOTS + s, Rank(rank as u16), task);
        }
        if stream_is_comm { self.read(u, s, false) } else { self.load(u, s) }
    }

    /// A unit has something to do.
    #[inline]
    pub(crate) fn busy(&mut self, u: usize, from: u64, to: u64) {
        let unit = &mut self.units[u];
        let from = from.max(unit.busy_until);
        if to > from {
            self.ranks[unit.rank as usize].busy[usize::from(unit.comm)] += to - from;
            unit.busy_until = to;
        }
    }

    /// A role has to wait for a word.
    pub(crate) fn wait(&mut self, u: usize, s: usize, role: Role, word: usize, target: u64) {
        let since = &mut self.slots[u * SLOTS + s].since[role as usize];
        *since = (*since).min(self.now);
        self.words.wait(word, target, u as u32, s as u8, role);
    }

    /// A store role has to wait for a word. It is asked again for every task that gets this far, and waits once.
    pub(crate) fn park(&mut self, u: usize, s: usize, word: usize, target: u64) {
        if !std::mem::replace(&mut self.slots[u * SLOTS + s].parked, true) {
            self.wait(u, s, Role::Store, word, target);
        }
    }

    /// Lets those go on whose word has come.
    pub(crate) fn wake(&mut self) {
        let mut woken = std::mem::take(&mut self.woken);
        if self.setup.seed != 0 && woken.len() > 1 {
            self.random.shuffle(&mut woken);
        }
        for w in woken.drain(..) {
            let (u, s) = (w.unit as usize, w.slot as usize);
            if self.ranks[self.units[u].rank as usize].dead {
                continue;
            }
            if w.role == Role::Store {
                self.slots[u * SLOTS + s].parked = false;
            }
            match (w.role, self.units[u].comm) {
                (Role::Load, false) => self.load(u, s),
                (Role::Load, true) => self.read(u, s, false),
                (Role::Store, _) => self.try_store(u),
            }
        }
        self.woken = woken;
    }

    /// A role goes on; accounts for its wait, if it had one.
    #[inline]
    pub(crate) fn waited(&mut self, u: usize, s: usize, role: Role) {
        let since = std::mem::replace(&mut self.slots[u * SLOTS + s].since[role as usize], NEVER);
        if since == NEVER || since >= self.now {
            return;
        }
        let unit = &self.units[u];
        let exposed = self.now.saturating_sub(since.max(unit.busy_until));
        self.ranks[unit.rank as usize].wait[usize::from(unit.comm)] += exposed;
        if let Some(trace) = &mut self.trace {
            let (slot, job) = (&self.slots[u * SLOTS + s], self.ranks[unit.rank as usize].job);
            trace::add_wait(trace, unit, job, slot.task, (since, self.now));
        }
    }

    /// A task has ended.
    pub(crate) fn end_task(&mut self, u: usize, s: usize) {
        let unit = &self.units[u];
        let rank = unit.rank as usize;
        let slot = &mut self.slots[u * SLOTS + s];
        slot.done = true;
        let job = self.ranks[rank].job;
        self.log.wrote(self.jobs[job].first_task + slot.task as usize);
        if let Some(trace) = &mut self.trace {
            trace::add_task(trace, unit, job, slot.task, (slot.began, self.now));
        }
        self.tasks += 1;
        if let Some(tell) = &self.setup.progress.0
            && self.tasks.is_multiple_of((self.setup.all_tasks / 100).max(1))
        {
            tell(self.tasks, self.setup.all_tasks);
        }
        self.ranks[rank].left -= 1;
        self.units[u].math_free = self.units[u].math_free.max(self.now);
        let first = |unit: &Unit| (unit.ended % SLOTS as u64) as usize;
        while self.units[u].ended < self.units[u].begun && self.slots[u * SLOTS + first(&self.units[u])].done
        {
            self.units[u].ended += 1;
        }
        self.maybe_end_epoch(rank);
    }

    /// Ends a rank's epoch if everything of it is done and has arrived, and begins the next one.
    #[inline]
    pub(crate) fn maybe_end_epoch(&mut self, rank: usize) {
        let state = &self.ranks[rank];
        if state.left == 0 && state.under_way == 0 && state.job < self.jobs.len() && !state.dead {
            self.end_epoch(rank);
            self.start(rank);
        }
    }

    fn end_epoch(&mut self, rank: usize) {
        let state = &mut self.ranks[rank];
        let job = self.jobs[state.job];
        if let Some(data) = &mut self.data {
            data.end(self.plans[job.plan], &job, state.job, Rank(rank as u16));
        }
        state.job += 1;
        state.end = self.now;
    }

    /// Whether a wait is over its bound at `time`; if not, when to look again.
    fn overdue(&mut self, time: u64) -> bool {
        let Some((since, u, s, role)) = stall::longest(self) else {
            self.watch = time.saturating_add(self.setup.bound);
            return false;
        };
        self.watch = since.saturating_add(self.setup.bound);
        if self.watch >= time {
            return false;
        }
        self.now = self.watch;
        let reason = Reason::Timeout(self.setup.bound / 1_000_000);
        let fault = stall::waiting(self, u, s, role, reason);
        self.fail(fault);
        true
    }

    /// The first fault wins.
    pub(crate) fn fail(&mut self, fault: Fault) {
        self.fault.get_or_insert(fault);
    }

    fn on_kill(&mut self, rank: Rank) {
        if self.ranks[rank.index()].job == self.jobs.len() {
            return;
        }
        self.ranks[rank.index()].dead = true;
        self.push(self.now + self.setup.heartbeat, What::Missed, 0, 0, rank.0.into());
    }

    fn on_missed(&mut self, rank: Rank) {
        let fault = stall::lost(self, rank);
        self.fail(fault);
    }

    fn on_nic_error(&mut self, u: usize, s: usize, peer: u32) {
        let nic = self.setup.faults.nic_error.map_or(0, |n| n.status);
        let reason = Reason::Nic { peer: Rank(peer as u16), status: format!("status {nic}") };
        let fault = Fault {
            rank: Rank(self.units[u].rank),
            task: self.task_name(u, s),
            signal: String::new(),
            expected: 0,
            seen: 0,
            epoch: self.job_of(u).clocks[0],
            reason,
        };
        self.fail(fault);
    }

    /// What the run was like; detectors add to it.
    pub(crate) fn report(&self) -> Report {
        let ns = |ps: u64| ps / NS as u64;
        let ranks = self.ranks.iter().map(|r| RankReport {
            compute_ns: ns(r.busy[0]),
            comm_ns: ns(r.busy[1]),
            compute_wait_ns: ns(r.wait[0]),
            comm_wait_ns: ns(r.wait[1]),
            end_ns: ns(r.end),
        });
        Report {
            time_ns: ns(self.now),
            tasks: self.tasks,
            events: self.events,
            order: self.order,
            schedule_seed: self.setup.seed,
            overlap: self.depth as u32,
            ranks: ranks.collect(),
            links: self.links.report(),
            ordered_pairs: 0,
            unknown_pairs: 0,
            search_steps: 0,
            findings: self.fault.iter().cloned().collect(),
        }
    }
}
