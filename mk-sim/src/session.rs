//! The session: programs that are loaded, their memory, and runs.

use crate::builder::{Mode, SimulatorBuilder};
use crate::checks::{Log, output, posts, races};
use crate::data::Data;
use crate::engine::{Engine, Job, Setup};
use crate::links::{Links, US};
use crate::memory::Memory;
use crate::plan::{Plan, Planner, SharedWords, Source};
use crate::report::Report;
use crate::words::Words;
use mk_core::verify::verify_pair;
use mk_core::{
    Bindings, Error, Fault, Program, Region, Registry, RunError, Session, Signal, TaskNames, Trace, Verified,
};
use std::collections::HashMap;
use std::sync::Arc;

/// What programs of a session share by name, and who declared it first.
struct Shared<T> {
    what: T,
    at: usize,
    program: String,
}

/// What a rebuilt session does not keep.
struct State {
    plans: Vec<Plan>,
    /// Epochs that each plan has run, and each shared signal.
    epochs: Vec<u64>,
    clocks: HashMap<String, u64>,
    words: Words,
    memory: Memory,
    regions: HashMap<String, Shared<Region>>,
    signals: HashMap<String, Shared<Signal>>,
    links: Links,
    /// Why it runs nothing any more.
    failed: Option<Fault>,
}

impl State {
    fn new(config: &SimulatorBuilder) -> State {
        State {
            plans: Vec::new(),
            epochs: Vec::new(),
            clocks: HashMap::new(),
            words: Words::default(),
            memory: Memory::default(),
            regions: HashMap::new(),
            signals: HashMap::new(),
            links: Links::new(&config.registry, &config.hardware),
            failed: None,
        }
    }
}

/// A discrete-event simulator: a session that runs programs on the CPU.
///
/// After a fault it refuses to run until it is [rebuilt](Simulator::rebuild), as a session on GPUs does.
pub struct Simulator {
    config: SimulatorBuilder,
    state: State,
    report: Report,
    trace: Option<Trace>,
    generation: u64,
}

impl Simulator {
    /// A simulator to set up, for programs of this registry.
    pub fn builder(registry: &Registry) -> SimulatorBuilder {
        SimulatorBuilder::new(registry)
    }

    pub(crate) fn new(config: SimulatorBuilder) -> Simulator {
        let state = State::new(&config);
        Simulator { config, state, report: Report::default(), trace: None, generation: 1 }
    }

    pub(crate) fn registry_ref(&self) -> &Registry {
        &self.config.registry
    }

    /// The fault that it ended in.
    pub(crate) fn failed(&self) -> Option<&Fault> {
        self.state.failed.as_ref()
    }

    /// What the last run was like, whether it succeeded or not.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// What the last run did, if [`trace`](SimulatorBuilder::trace) is switched on.
    pub fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// How often the session was built, from 1.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Begins a new generation: fresh memory, signals at 0, no programs. Faults that were asked for stay.
    pub fn rebuild(&mut self) {
        self.state = State::new(&self.config);
        self.generation += 1;
    }

    /// Changes the faults of further runs.
    pub fn set_faults(&mut self, faults: crate::Faults) {
        self.config.faults = faults;
    }

    /// Runs one epoch for each of `bindings`, back to back: each rank goes on to its next epoch on its own, so that ranks
    /// may be epochs ahead of each other. Nothing is reset between them.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn run_epochs(
        &mut self,
        program: &Verified,
        bindings: &[Bindings],
    ) -> Result<Vec<Bindings>, RunError> {
        self.run_sequence(&bindings.iter().map(|b| (program, b)).collect::<Vec<_>>())
    }

    /// Runs epochs of several programs back to back, as [`run_epochs`](Simulator::run_epochs) does for one.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn run_sequence(&mut self, runs: &[(&Verified, &Bindings)]) -> Result<Vec<Bindings>, RunError> {
        let mut jobs = Vec::with_capacity(runs.len());
        for (program, bindings) in runs {
            jobs.push((self.load_proved(program)?, *bindings));
        }
        self.run_jobs(&jobs)
    }

    /// Runs epochs of a program that was *not* verified: for tests of detectors, which need programs that are wrong.
    /// It is loaded if it is new; further calls continue its epochs.
    ///
    /// # Errors
    /// As [`Session::run`]; a program that has no meaning at all is an input error.
    pub fn run_unproved(
        &mut self,
        program: &Program,
        bindings: &[Bindings],
    ) -> Result<Vec<Bindings>, RunError> {
        self.run_sequence_unproved(&bindings.iter().map(|b| (program, b)).collect::<Vec<_>>())
    }

    /// As [`run_unproved`](Simulator::run_unproved), for epochs of several programs back to back.
    ///
    /// # Errors
    /// As [`run_unproved`](Simulator::run_unproved).
    pub fn run_sequence_unproved(
        &mut self,
        runs: &[(&Program, &Bindings)],
    ) -> Result<Vec<Bindings>, RunError> {
        self.usable()?;
        let mut jobs = Vec::with_capacity(runs.len());
        for (program, bindings) in runs {
            let plan = match self.find(program) {
                Some(plan) => plan,
                None => self.load_source(Source::Unproved(Arc::new((*program).clone())))?,
            };
            jobs.push((plan, *bindings));
        }
        self.run_jobs(&jobs)
    }

    fn usable(&self) -> Result<(), Error> {
        match &self.state.failed {
            None => Ok(()),
            Some(fault) => Err(Error::input(
                "this session has ended in a fault and runs nothing any more",
                fault,
                "a session without a fault",
                "rebuild the session and load its programs again",
            )),
        }
    }

    /// The place of a program that is loaded.
    fn find(&self, program: &Program) -> Option<usize> {
        let same = |p: &Plan| std::ptr::eq(p.program(), program) || p.program() == program;
        let alike =
            |p: &Plan| p.program().tasks.len() == program.tasks.len() && p.program().name == program.name;
        self.state.plans.iter().position(|p| alike(p) && same(p))
    }

    fn load_proved(&mut self, program: &Verified) -> Result<usize, RunError> {
        self.usable()?;
        if let Some(plan) = self.find(program.program()) {
            return Ok(plan);
        }
        self.check_registry(program)?;
        for plan in &self.state.plans {
            if let Source::Proved(other) = &plan.source {
                verify_pair(program, other)?;
            }
        }
        Ok(self.load_source(Source::Proved(program.clone()))?)
    }

    fn check_registry(&self, program: &Verified) -> Result<(), Error> {
        let describe = |r: &Registry| {
            let handlers: Vec<_> =
                r.handlers().iter().map(|h| format!("{}@{}", h.name(), h.version())).collect();
            format!("{} ranks, handlers {}", r.world().size(), handlers.join(", "))
        };
        let (given, own) = (program.registry(), &self.config.registry);
        if given.topology() == own.topology() && describe(given) == describe(own) {
            return Ok(());
        }
        Err(Error::input(
            format!("program '{}' was proved for another registry", program.program().name),
            describe(given),
            describe(own),
            "verify the program with the registry of this session",
        ))
    }

    fn load_source(&mut self, source: Source) -> Result<usize, Error> {
        check_shared(source.program(), &self.state)?;
        let SimulatorBuilder { registry, hardware, .. } = &self.config;
        let mut plan = Planner { registry, hardware, links: &mut self.state.links }.plan(source)?;
        if self.config.mode == Mode::Data {
            let new = |r: &&Region| !r.shared || !self.state.regions.contains_key(&r.name);
            for r in plan.program().regions.iter().filter(new) {
                self.state.memory.reserve(r, plan.program().ranks)?;
            }
        }
        self.place_words(&mut plan);
        self.place_regions(&mut plan);
        self.state.plans.push(plan);
        self.state.epochs.push(0);
        Ok(self.state.plans.len() - 1)
    }

    fn place_words(&mut self, plan: &mut Plan) {
        let State { words, signals, .. } = &mut self.state;
        let (program, ranks) = (plan.source.program(), plan.source.program().ranks as usize);
        plan.words.base = words.grow(plan.words.words * ranks);
        for s in program.shared_signals() {
            let shared = signals.entry(s.name.clone()).or_insert_with(|| Shared {
                what: s.clone(),
                at: words.grow(s.words as usize * ranks),
                program: program.name.clone(),
            });
            plan.words.shared.push(SharedWords { first: s.first, words: s.words, base: shared.at });
        }
    }

    fn place_regions(&mut self, plan: &mut Plan) {
        let (state, mode) = (&mut self.state, self.config.mode);
        let program = plan.source.program();
        let mut next = state.regions.len();
        for r in &program.regions {
            let mut allocate = |memory: &mut Memory| match mode {
                Mode::Data => memory.allocate(r, program.ranks),
                // No bytes: a number of its own is all that it needs.
                Mode::Timing => {
                    next += 1;
                    next
                }
            };
            let at = match r.shared {
                false => allocate(&mut state.memory),
                true => match state.regions.get(&r.name) {
                    Some(shared) => shared.at,
                    None => {
                        let at = allocate(&mut state.memory);
                        let shared = Shared { what: r.clone(), at, program: program.name.clone() };
                        state.regions.insert(r.name.clone(), shared);
                        at
                    }
                },
            };
            plan.regions.push(at);
        }
    }

    fn run_jobs(&mut self, runs: &[(usize, &Bindings)]) -> Result<Vec<Bindings>, RunError> {
        self.config.faults.check(self.config.registry.world().size())?;
        if self.config.mode == Mode::Data {
            for (plan, bindings) in runs {
                bindings.check(self.state.plans[*plan].program())?;
            }
        }
        let (report, trace, results) = self.simulate(runs);
        self.trace = trace;
        self.report = report;
        let results = results?;
        match self.report.findings.first() {
            None => Ok(results),
            Some(fault) => {
                self.state.failed = Some(fault.clone());
                Err(fault.clone().into())
            }
        }
    }

    /// Numbers the epochs of a run.
    fn jobs<'b>(&mut self, runs: &[(usize, &'b Bindings)]) -> Vec<Job<'b>> {
        let State { plans, epochs, clocks, .. } = &mut self.state;
        let (mut first_task, mut first_post) = (0, 0);
        let mut jobs = Vec::with_capacity(runs.len());
        for &(plan, bindings) in runs {
            epochs[plan] += 1;
            let mut job = Job { plan, clocks: [0; 8], first_task, first_post, bindings: Some(bindings) };
            job.clocks[0] = epochs[plan];
            for (i, name) in plans[plan].clocks.iter().enumerate().take(7) {
                let clock = clocks.entry(name.clone()).or_insert(0);
                *clock += 1;
                job.clocks[i + 1] = *clock;
            }
            first_task += plans[plan].tasks.len();
            first_post += plans[plan].posts;
            jobs.push(job);
        }
        jobs
    }

    fn simulate(
        &mut self,
        runs: &[(usize, &Bindings)],
    ) -> (Report, Option<Trace>, Result<Vec<Bindings>, Error>) {
        let jobs = self.jobs(runs);
        let config = &self.config;
        let State { plans, words, memory, links, .. } = &mut self.state;
        let plans: Vec<&Plan> = plans.iter().collect();
        let tasks: usize = jobs.iter().map(|j| plans[j.plan].tasks.len()).sum();
        let log = Log::new(jobs.iter().map(|j| plans[j.plan].posts).sum(), tasks);
        let before = config.checks.posts.then(|| posts::Before::new(words));
        let units = plans.iter().map(|p| p.units.len()).sum();
        let data = match config.mode {
            Mode::Data => Some(Data::new(&config.registry, memory, jobs.len(), units)),
            Mode::Timing => None,
        };
        let setup = Setup {
            hardware: &config.hardware,
            faults: &config.faults,
            seed: config.seed,
            bound: (config.run_bound_us as f64 * US) as u64,
            heartbeat: (config.heartbeat_us as f64 * US) as u64,
            trace: config.trace,
            deadlock: config.checks.deadlock,
            lost: config.checks.posts,
            progress: &config.progress,
            all_tasks: tasks as u64,
        };
        let mut engine = Engine::new(setup, plans.clone(), jobs.clone(), links, words, data, log);
        if let Some(trace) = &mut engine.trace {
            let names: Vec<_> = plans.iter().map(|p| Arc::new(TaskNames::of(p.program()))).collect();
            for job in &jobs {
                trace.begin_run(&names[job.plan], job.clocks[0]);
            }
        }
        engine.run();
        let mut report = engine.report();
        let trace = engine.trace.take();
        let (results, wrong) = match engine.data.take() {
            Some(data) => (data.results, data.wrong),
            None => (vec![Bindings::new(); jobs.len()], None),
        };
        let surplus = engine.surplus;
        let log = std::mem::take(&mut engine.log);
        drop(engine);
        if report.findings.is_empty() {
            let counts = before.map(|before| Counts { before, surplus });
            detect(config, &plans, &jobs, &log, counts, words, &mut report);
        }
        (report, trace, wrong.map_or(Ok(results), Err))
    }
}

/// What the detector of lost and surplus posts goes by.
struct Counts {
    before: posts::Before,
    /// See [`Engine::surplus`].
    surplus: Option<(usize, u64, u64)>,
}

/// Looks at a run that has ended.
fn detect(
    config: &SimulatorBuilder,
    plans: &[&Plan],
    jobs: &[Job<'_>],
    log: &Log,
    counts: Option<Counts>,
    words: &Words,
    report: &mut Report,
) {
    if config.checks.races {
        let epoch = |j: &Job<'_>| races::Epoch { plan: j.plan, clocks: j.clocks, first_post: j.first_post };
        let outcome = races::check(plans, &jobs.iter().map(epoch).collect::<Vec<_>>(), log);
        (report.ordered_pairs, report.unknown_pairs) = (outcome.ordered, outcome.unknown);
        report.search_steps = outcome.steps;
        report.findings.extend(outcome.faults);
    }
    if config.checks.unwritten {
        for (p, plan) in plans.iter().enumerate() {
            let own = jobs.iter().filter(|j| j.plan == p);
            let epochs: Vec<_> =
                own.map(|j| output::Epoch { number: j.clocks[0], first_task: j.first_task }).collect();
            report.findings.extend(output::check(plan, &epochs, log));
        }
    }
    if let Some(Counts { before, surplus }) = counts {
        let epoch = |j: &Job<'_>| posts::Epoch { plan: plans[j.plan], clocks: j.clocks };
        let epochs: Vec<_> = jobs.iter().map(epoch).collect();
        report.findings.extend(surplus.and_then(|s| posts::surplus(&epochs, s)));
        report.findings.extend(before.check(&epochs, words));
    }
}

/// What a program shares by name must be what the others mean by it.
fn check_shared(program: &Program, state: &State) -> Result<(), Error> {
    for r in program.regions.iter().filter(|r| r.shared) {
        let Some(other) = state.regions.get(&r.name) else { continue };
        if !r.agrees(&other.what) {
            let show =
                |r: &Region| format!("{:?} {:?} {} {:?}, {} copies", r.kind, r.io, r.dtype, r.shape, r.depth);
            return Err(disagree(
                "region",
                &r.name,
                &program.name,
                show(r),
                &other.program,
                show(&other.what),
            ));
        }
    }
    for s in program.shared_signals() {
        let Some(other) = state.signals.get(&s.name) else { continue };
        if !s.agrees(&other.what) {
            let show = |s: &Signal| format!("{:?}, {} words", s.kind, s.words);
            return Err(disagree(
                "signal",
                &s.name,
                &program.name,
                show(s),
                &other.program,
                show(&other.what),
            ));
        }
    }
    Ok(())
}

fn disagree(what: &str, name: &str, program: &str, given: String, other: &str, allowed: String) -> Error {
    Error::input(
        format!("'{program}' and '{other}' share {what} '{name}' but describe it differently"),
        given,
        allowed,
        "describe it in the same way in both, or give it another name in one",
    )
}

impl Session for Simulator {
    fn registry(&self) -> &Registry {
        &self.config.registry
    }

    fn load(&mut self, program: &Verified) -> Result<(), RunError> {
        self.load_proved(program).map(|_| ())
    }

    fn run(&mut self, program: &Verified, bindings: &Bindings) -> Result<Bindings, RunError> {
        let results = self.run_sequence(&[(program, bindings)])?;
        Ok(results.into_iter().next().unwrap_or_default())
    }
}
