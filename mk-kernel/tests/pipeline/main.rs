//! The role pipeline of the persistent kernel as a model, under random and priority-based schedules.
//!
//! ```text
//!   fetch --slot--> load --page(full)--> math --page(done)--> store --page(empty)--> load ...
//!                     ^--word-- comm <--word-- store
//! ```
//!
//! The model has the barriers, parities and orders of `device/frame.cuh`, with a smaller ring and two warps in each of the two math warpgroups. It checks
//! what a GPU would not tell: that a parity never stands for another lap, that no page or slot is overwritten while somebody
//! reads it, that copies have landed before a block leaves, and that every role leaves, also after an abort at any point.
//! It has no memory model: that fences are where they must be, it cannot tell.

mod barrier;
mod block;
mod roles;

use block::{Block, Kind, Task};
use shuttle::rand::{Rng, thread_rng};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A mistake that is planted, to see that the model finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// Roles count laps of the ring in place of their own parities: one that skips tasks reads a parity of another lap.
    ParityByLap,
    /// A role frees its task slot before it has read the record for the last time.
    SlotFreedEarly,
    /// Math releases a page while it still reads it.
    PageFreedEarly,
    /// The warps of a warpgroup that has no part in a tile do not meet before it releases a page.
    PassedOverAlone,
    /// The load role leaves after an abort without waiting for its copies.
    CopiesLeftBehind,
    /// It waits for them only if it has seen the abort itself.
    CopiesAwaitedOnlyWhenDead,
    /// Fetch does not wait for a slot to be free.
    SlotNotAwaited,
    /// The store role waits until it may store before it says that everything is loaded.
    LoadedHeldBack,
    /// After an abort a role waits on.
    DeafToAbort,
}

/// Handlers of different kinds in a row; lists in which one without math follows many with it, and the reverse, come often.
fn random_tasks() -> Vec<Task> {
    let mut rng = thread_rng();
    let kinds = [Kind::Gemm, Kind::SmallGemm, Kind::Gated, Kind::Activate, Kind::Copy, Kind::Nop];
    let mut tasks = Vec::new();
    for _ in 0..rng.gen_range(1..4) {
        let kind = kinds[rng.gen_range(0..kinds.len())];
        for _ in 0..rng.gen_range(1..4) {
            tasks.push(Task { kind, groups: rng.gen_range(0..6), id: tasks.len() as u32 });
        }
    }
    tasks
}

fn run(bug: Option<Bug>, abort: bool) {
    Block::new(random_tasks(), bug, abort).run();
}

const STEPS: usize = 2_000_000;

fn config() -> shuttle::Config {
    let mut config = shuttle::Config::new();
    // A role that spins for ever uses up its steps.
    config.max_steps = shuttle::MaxSteps::FailAfter(STEPS);
    config.failure_persistence = shuttle::FailurePersistence::Print;
    config
}

fn random(iterations: usize, test: impl Fn() + Send + Sync + 'static) {
    let scheduler = shuttle::scheduler::RandomScheduler::new_from_seed(7, iterations);
    shuttle::Runner::new(scheduler, config()).run(test);
}

fn by_priority(iterations: usize, test: impl Fn() + Send + Sync + 'static) {
    let scheduler = shuttle::scheduler::PctScheduler::new_from_seed(7, 3, iterations);
    shuttle::Runner::new(scheduler, config()).run(test);
}

#[test]
fn handlers_of_any_kinds_follow_one_another_and_every_role_leaves() {
    random(300, || run(None, false));
}

#[test]
fn the_same_holds_when_some_roles_are_much_faster_than_others() {
    by_priority(300, || run(None, false));
}

#[test]
fn an_abort_at_any_point_lets_every_role_leave() {
    random(300, || run(None, true));
    by_priority(300, || run(None, true));
}

#[test]
fn planted_mistakes_are_found() {
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let missed: Vec<Bug> = [
        Bug::ParityByLap,
        Bug::SlotFreedEarly,
        Bug::PageFreedEarly,
        Bug::PassedOverAlone,
        Bug::CopiesLeftBehind,
        Bug::CopiesAwaitedOnlyWhenDead,
        Bug::SlotNotAwaited,
        Bug::LoadedHeldBack,
        Bug::DeafToAbort,
    ]
    .into_iter()
    .filter(|&bug| {
        let aborts = matches!(bug, Bug::CopiesLeftBehind | Bug::CopiesAwaitedOnlyWhenDead | Bug::DeafToAbort);
        let passes = |check: fn(usize, Box<dyn Fn() + Send + Sync>)| {
            let test = Box::new(move || run(Some(bug), aborts));
            catch_unwind(AssertUnwindSafe(|| check(1000, test))).is_ok()
        };
        passes(random) && passes(by_priority)
    })
    .collect();
    std::panic::set_hook(quiet);
    assert!(missed.is_empty(), "not found: {missed:?}");
}
