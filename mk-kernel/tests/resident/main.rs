//! A resident kernel's lanes and its host as a model, and who may run where launches come one by one, under random and
//! priority-based schedules.
//!
//! ```text
//!   host --ring of commands--> first lane --told--> all lanes --ended, by the last of a run--> first lane, host
//!        <-----------------------gone: the kernel leaves-----------------------------------
//! ```
//!
//! The model has the words and orders of `device/lane.cuh` and `src/session/resident.rs`; a run is no more than a while. It
//! checks, whatever the timing: every command runs once on each of its lanes, in order, and only when the one before it has
//! ended everywhere, though the kernel leaves whenever it has nothing to do and is started again; the host's waits end; after an
//! abort all lanes leave, and nothing runs a second time. Memory is one for all: that releases and fences are where they must
//! be, it cannot tell.

mod admission;
mod host;
mod lanes;
#[path = "../common/mistakes.rs"]
mod mistakes;
#[path = "../common/schedules.rs"]
mod schedules;
mod shared;

use schedules::{by_priority, random};

/// A wait that does not end uses up its steps.
const STEPS: usize = 200_000;

/// Runs a test under so many schedules of each kind.
fn explore(schedules: usize, test: impl Fn() + Clone + Send + Sync + 'static) {
    random(STEPS, schedules, test.clone());
    by_priority(STEPS, schedules, test);
}
