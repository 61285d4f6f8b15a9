//! A brute-force scheduler: runs a small program in every order that its contract allows.
//!
//! It is the tests' own view of what a program means, written from `docs/architecture.md` alone; it shares no code with
//! the verifier or the simulator. A program becomes a graph of *micro-actions* (a wait, one block of one access, a
//! post, the start and end of a rank's epoch) for a few epochs. Data are symbolic: a write puts a hash of the handler,
//! its arguments and everything that it read into each cell, so that two executions which order any read and write
//! differently, with an effect on an output, end with different outputs.
//!
//! Two graphs are explored. In the *least overlap* a task starts when its predecessor in the stream has ended: every
//! execution must finish. In the *most overlap* all tasks of an epoch are ready at once, and only waits and the order
//! inside a task hold an action back: every execution must give the caller the same outputs.
//!
//! Two shortcuts keep this small, both exact. (1) Words that only grow make a *monotone* system: what can happen now can
//! still happen later. So whether `b` can come before `a` is answered by one run in which `a` is held back; if no two
//! conflicting actions can come in both orders, all executions are the same. (2) In the search an action that every
//! continuation orders before all those that conflict with it is taken at once. `Search::Naive` does without both, and
//! the tests compare the two.

mod build;
mod cells;
mod legal;
mod search;

use build::Graph;
use mk_core::{Program, Registry};

/// How far to look.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Epochs to run.
    pub epochs: u64,
    /// States of the search beyond which the answer is [`Outcome::TooLarge`].
    pub states: usize,
    /// Micro-actions beyond which the answer is [`Outcome::TooLarge`].
    pub actions: usize,
    /// How to search.
    pub search: Search,
}

/// How to search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// With the shortcuts of the module's documentation.
    Reduced,
    /// Every interleaving of conflicting actions: for tiny programs.
    Naive,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { epochs: 3, states: 200_000, actions: 20_000, search: Search::Reduced }
    }
}

impl Bounds {
    /// Enough epochs for this program: one more than its deepest credit or rotating region, 3 to 6.
    pub fn fitting(program: &Program) -> Bounds {
        let lags = program.tasks.iter().flat_map(|t| t.waits()).map(|w| u64::from(w.lag()));
        let depths = program.regions.iter().map(|r| u64::from(r.depth));
        let epochs = 1 + lags.chain(depths).max().unwrap_or(1);
        Bounds { epochs: epochs.clamp(3, 6), ..Bounds::default() }
    }
}

/// A way in which a program goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// The tasks that are involved, by name.
    pub tasks: Vec<String>,
    /// What happens.
    pub detail: String,
}

/// What all executions have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every execution finishes, all give the same outputs, and those of the program that it was compared with.
    Harmless,
    /// As [`Outcome::Harmless`], but the outputs are not those of the program that it was compared with.
    Changed(Example),
    /// Two executions give different outputs.
    Differs(Example),
    /// An execution in which nothing can happen any more, though not all tasks have ended.
    Deadlock(Example),
    /// Output cells that no task writes.
    Unwritten(Example),
    /// The program asks for something that no machine does: bytes outside a region, a peer's bound tensor, ...
    Illegal(Example),
    /// The bounds were not enough.
    TooLarge(String),
}

/// The outcome, and what it cost.
#[derive(Clone, Debug)]
pub struct Report {
    /// What all executions have in common.
    pub outcome: Outcome,
    /// Micro-actions of all epochs.
    pub actions: usize,
    /// States that the search visited; 0 if the shortcut for monotone systems answered.
    pub states: usize,
    /// Conflicting pairs of actions that can come in both orders.
    pub races: usize,
}

/// Explores `program`; if `against` is given, its outputs are compared with those of that program.
///
/// ```
/// use testkit::{brute, pool};
/// let case = pool::producer_consumer(1, 1).unwrap();
/// let report = brute::explore(&case.program, &case.registry, &brute::Bounds::default(), None);
/// assert_eq!(report.outcome, brute::Outcome::Harmless);
/// ```
pub fn explore(program: &Program, registry: &Registry, bounds: &Bounds, against: Option<&Program>) -> Report {
    let report = |outcome| Report { outcome, actions: 0, states: 0, races: 0 };
    let tasks = match legal::check(program, registry) {
        Ok(tasks) => tasks,
        Err(e) => return report(Outcome::Illegal(e)),
    };
    let other = against.and_then(|p| Some((p, legal::check(p, registry).ok()?)));
    let mut cells = cells::Cells::new(program);
    cells.cut(&tasks);
    if let Some((p, t)) = &other {
        // A mutant may have another set of regions, which makes its cells incomparable.
        if p.regions != program.regions {
            return explore(program, registry, bounds, None);
        }
        cells.cut(t);
    }
    let cells = cells.finish();
    if let Some(e) = legal::unwritten(program, &tasks, &cells) {
        return report(Outcome::Unwritten(e));
    }
    let size: u64 = tasks.iter().map(|t| 4 + t.spec.blocks as u64 * (1 + t.spec.accesses.len() as u64)).sum();
    if size.saturating_mul(bounds.epochs) > bounds.actions as u64 {
        return report(Outcome::TooLarge(format!("about {size} actions an epoch")));
    }
    let least = Graph::new(program, &tasks, &cells, bounds.epochs, build::Overlap::Least);
    let most = Graph::new(program, &tasks, &cells, bounds.epochs, build::Overlap::Most);
    let mut result = search::explore(&least, &most, bounds);
    if let (Outcome::Harmless, Some((p, t))) = (&result.outcome, &other) {
        let graph = Graph::new(p, t, &cells, bounds.epochs, build::Overlap::Least);
        if let Some(example) = search::compare(&most, &graph) {
            result.outcome = Outcome::Changed(example);
        }
    }
    result
}
