//! The brute-force scheduler itself: it passes what is right, finds what is planted, and its shortcuts change nothing.

use mk_core::{Error, Lane, PostTo, Queue, Rank, WaitFor};
use testkit::brute::{Bounds, Outcome, Search, explore};
use testkit::kit::{Case, Kit};
use testkit::pool;

fn outcome(case: &Case) -> Outcome {
    explore(&case.program, &case.registry, &Bounds::default(), None).outcome
}

#[test]
fn every_program_of_the_pool_is_harmless() {
    for case in pool::all().unwrap() {
        let report = explore(&case.program, &case.registry, &Bounds::default(), Some(&case.program));
        assert_eq!(report.outcome, Outcome::Harmless, "{}", case.name);
        assert_eq!(report.races, 0, "{}", case.name);
    }
}
