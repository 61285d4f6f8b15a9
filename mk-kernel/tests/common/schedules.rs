//! Schedules under which a model is run. A wait that does not end uses up the steps of one.

use shuttle::scheduler::{PctScheduler, RandomScheduler};

fn config(steps: usize) -> shuttle::Config {
    let mut config = shuttle::Config::new();
    config.max_steps = shuttle::MaxSteps::FailAfter(steps);
    config.failure_persistence = shuttle::FailurePersistence::Print;
    config
}

/// Runs a test under so many random schedules, of so many steps at most.
pub(crate) fn random(steps: usize, schedules: usize, test: impl Fn() + Send + Sync + 'static) {
    shuttle::Runner::new(RandomScheduler::new_from_seed(7, schedules), config(steps)).run(test);
}

/// The same, with some threads much faster than others.
pub(crate) fn by_priority(steps: usize, schedules: usize, test: impl Fn() + Send + Sync + 'static) {
    shuttle::Runner::new(PctScheduler::new_from_seed(7, 3, schedules), config(steps)).run(test);
}
