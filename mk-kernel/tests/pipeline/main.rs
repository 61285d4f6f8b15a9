//! The role pipeline of the persistent kernel as a model, under random and priority-based schedules.
//!
//! ```text
//!   fetch --slot--> load --page(full)--> math --page(done)--> store --page(empty)--> load ...
//!                     ^--word-- comm <--word-- store
//! ```
//!
//! The model has the barriers, parities and orders of `device/frame.cuh` and `device/kernel.cuh`, with a smaller ring, fewer slots and two warps
//! in each of the two math warpgroups, and several runs one after the other, as `device/lane.cuh` begins and ends them. It checks what a GPU
//! would not tell: that a parity never stands for another lap, in this run or another; that no page, slot or parameter is overwritten while
//! somebody reads it; that no more claimed tasks than are allowed are with the roles; that copies have landed before a block leaves; and that
//! every role leaves, also after an abort at any point, and begins no run after that.
//! It has no memory model, and a warp is one thread: that fences are where they must be, and that threads of a warp go the same way, it cannot
//! tell.

mod barrier;
mod block;
#[path = "../common/mistakes.rs"]
mod mistakes;
mod pairs;
mod roles;
mod runs;
#[path = "../common/schedules.rs"]
mod schedules;

use block::{Block, Kind, Task};
use mistakes::{are_found, failure};
use schedules::{by_priority, random};
use shuttle::rand::{Rng, thread_rng};

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
    /// Nobody waits for the copies of the load role after an abort.
    CopiesLeftBehind,
    /// Only the load role does, if it has seen the abort itself.
    CopiesAwaitedOnlyWhenDead,
    /// Fetch does not wait for a slot to be free.
    SlotNotAwaited,
    /// It waits for the first slot of those that it publishes at once.
    FirstOfBatchAwaited,
    /// It takes the parity of the lap before the one in which it publishes, whatever slot it waits for.
    LapOfPublished,
    /// It publishes claimed tasks as long as a slot is free.
    ClaimsUnlimited,
    /// It tells the roles of records before it has written them.
    ToldBeforeWritten,
    /// It does not count the record that says that the stream has ended.
    LeaveNotCounted,
    /// The store role waits until it may store before it says that everything is loaded.
    LoadedHeldBack,
    /// After an abort a role waits on.
    DeafToAbort,
    /// The record that says that the stream has ended is not freed as others are.
    LeaveNotFreed,
    /// A role waits for each run's beginning with the same parity.
    RunParityForgotten,
    /// Fetch overwrites the parameters of a run before all roles have ended it.
    ParametersOverwritten,
    /// A role that has seen the abort does not say that it has ended the run.
    DeadRunNotEnded,
    /// Fetch begins the next run although a role has seen the abort in the last.
    FailureOverlooked,
    /// Fetch no longer waits for a role that does not end its run, and goes on as if nothing had happened.
    GivenUpAlive,
}

/// What happens to the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    /// Nothing: it does all its runs.
    Undisturbed,
    /// It is aborted at some time.
    Abort,
    /// It is aborted while a handler does not return.
    Stuck,
}

impl Bug {
    const ALL: [Bug; 20] = [
        Bug::ParityByLap,
        Bug::SlotFreedEarly,
        Bug::PageFreedEarly,
        Bug::PassedOverAlone,
        Bug::CopiesLeftBehind,
        Bug::CopiesAwaitedOnlyWhenDead,
        Bug::SlotNotAwaited,
        Bug::FirstOfBatchAwaited,
        Bug::LapOfPublished,
        Bug::ClaimsUnlimited,
        Bug::ToldBeforeWritten,
        Bug::LeaveNotCounted,
        Bug::LoadedHeldBack,
        Bug::DeafToAbort,
        Bug::LeaveNotFreed,
        Bug::RunParityForgotten,
        Bug::ParametersOverwritten,
        Bug::DeadRunNotEnded,
        Bug::FailureOverlooked,
        Bug::GivenUpAlive,
    ];

    /// In which it shows.
    fn scenario(self) -> Scenario {
        match self {
            Bug::CopiesLeftBehind | Bug::CopiesAwaitedOnlyWhenDead | Bug::DeafToAbort => Scenario::Abort,
            Bug::DeadRunNotEnded | Bug::FailureOverlooked => Scenario::Abort,
            Bug::GivenUpAlive => Scenario::Stuck,
            _ => Scenario::Undisturbed,
        }
    }
}

/// Handlers of different kinds in a row; lists in which one without math follows many with it, and the reverse, come often.
fn random_tasks(first: u32) -> Vec<Task> {
    let mut rng = thread_rng();
    let kinds = [Kind::Gemm, Kind::SmallGemm, Kind::Gated, Kind::Activate, Kind::Copy, Kind::Nop];
    let mut tasks = Vec::new();
    for _ in 0..rng.gen_range(0..4) {
        let kind = kinds[rng.gen_range(0..kinds.len())];
        for _ in 0..rng.gen_range(1..3) {
            let (groups, id) = (rng.gen_range(0..5), first + tasks.len() as u32);
            tasks.push(Task { kind, groups, id, is_claimed: false });
        }
    }
    let own = rng.gen_range(0..=tasks.len());
    tasks[own..].iter_mut().for_each(|t| t.is_claimed = true);
    tasks
}

/// One that nobody waits for when it is in math, so that nobody else notices if that does not end.
fn awaited_by_nobody(id: u32) -> Task {
    let kind = if thread_rng().gen_range(0..2) == 0 { Kind::Nop } else { Kind::Unposted };
    Task { kind, groups: thread_rng().gen_range(0..3), id, is_claimed: true }
}

/// The tasks of some runs, one of which may have none.
fn random_runs(scenario: Scenario) -> Vec<Vec<Task>> {
    let mut runs = Vec::new();
    let mut next = 0u32;
    for _ in 0..thread_rng().gen_range(2..4) {
        let mut tasks = random_tasks(next);
        if scenario == Scenario::Stuck {
            tasks.push(awaited_by_nobody(next + tasks.len() as u32));
        }
        next = (next + tasks.len() as u32).next_multiple_of(2);
        runs.push(tasks);
    }
    runs
}

fn run(bug: Option<Bug>, scenario: Scenario) {
    Block::new(random_runs(scenario), bug, scenario).run();
}

/// A role that spins for ever uses up its steps.
const STEPS: usize = 1_000_000;

#[test]
fn handlers_of_any_kinds_follow_one_another_and_so_do_runs_and_every_role_leaves() {
    random(STEPS, 150, || run(None, Scenario::Undisturbed));
}

#[test]
fn the_same_holds_when_some_roles_are_much_faster_than_others() {
    by_priority(STEPS, 150, || run(None, Scenario::Undisturbed));
}

#[test]
fn an_abort_at_any_point_lets_every_role_leave_and_no_run_follows() {
    random(STEPS, 200, || run(None, Scenario::Abort));
    by_priority(STEPS, 200, || run(None, Scenario::Abort));
}

#[test]
fn an_abort_while_a_handler_does_not_return_ends_the_lane_too() {
    random(STEPS, 100, || run(None, Scenario::Stuck));
    by_priority(STEPS, 100, || run(None, Scenario::Stuck));
}

#[test]
fn planted_mistakes_are_found() {
    are_found(&Bug::ALL, |bug| {
        let test = move || run(Some(bug), bug.scenario());
        failure(move || random(STEPS, 1000, test)).or_else(|| failure(move || by_priority(STEPS, 1000, test)))
    });
}
