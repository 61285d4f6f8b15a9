//! The brute-force scheduler itself: it passes what is right, finds what is planted, and its shortcuts change nothing.

use mk_core::{PostTo, Program, Rank, Registry, WaitFor, verify::FindingKind};
use std::collections::BTreeMap;
use testkit::brute::{Bounds, Outcome, Search, explore};
use testkit::kit::Kit;
use testkit::mutate::{self, Kind};
use testkit::{planted, pool};

/// The variant of an outcome.
fn variant(outcome: &Outcome) -> String {
    format!("{outcome:?}").split(['(', ' ']).next().unwrap_or_default().to_string()
}

fn outcome(program: &Program, registry: &Registry) -> Outcome {
    explore(program, registry, &Bounds::fitting(program), None).outcome
}

#[test]
fn every_program_of_the_pool_is_harmless() {
    for case in pool::all().unwrap() {
        let bounds = Bounds::fitting(&case.program);
        let report = explore(&case.program, &case.registry, &bounds, Some(&case.program));
        assert_eq!(report.outcome, Outcome::Harmless, "{}", case.name);
        assert_eq!(report.races, 0, "{}", case.name);
    }
}

#[test]
fn every_planted_race_deadlock_and_hole_is_found() {
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    for p in planted::all().unwrap() {
        let found = outcome(&p.case.program, &p.case.registry);
        *counts.entry((format!("{:?}", p.kind), variant(&found))).or_default() += 1;
        let right = match p.kind {
            FindingKind::Race | FindingKind::OutsideRun => matches!(found, Outcome::Differs(_)),
            FindingKind::Deadlock => matches!(found, Outcome::Deadlock(_)),
            FindingKind::Unwritten => matches!(found, Outcome::Unwritten(_)),
            FindingKind::OutOfRange | FindingKind::Unreachable | FindingKind::Undeliverable => {
                matches!(found, Outcome::Illegal(_))
            }
            _ => continue,
        };
        assert!(right, "{}: {:?}, but {found:?}", p.case.name, p.kind);
    }
    println!("{counts:#?}");
}

#[test]
fn a_rank_that_is_an_epoch_ahead_stands_in_for_one_that_is_behind() {
    // Planted with data: two senders, one word, two copies. The receiver takes two posts of one sender for one of each.
    let aliased = planted::counts::all().unwrap();
    let mut seen = 0;
    for p in aliased.iter().filter(|p| p.case.name.starts_with("two ranks, one word")) {
        let found = outcome(&p.case.program, &p.case.registry);
        assert!(matches!(found, Outcome::Differs(_)), "{}: {found:?}", p.case.name);
        seen += 1;
    }
    assert!(seen >= 5);
    // In one epoch nobody is ahead, and the same programs are right.
    let p = aliased.iter().find(|p| p.case.name.starts_with("two ranks, one word")).unwrap();
    let one = Bounds { epochs: 1, ..Bounds::default() };
    assert_eq!(explore(&p.case.program, &p.case.registry, &one, None).outcome, Outcome::Harmless);
}

#[test]
fn a_race_is_reported_with_both_tasks_and_the_place() {
    let planted = planted::races::all().unwrap();
    let p = planted.iter().find(|p| p.case.name == "missing wait(1, 1, 0)").unwrap();
    let Outcome::Differs(example) = outcome(&p.case.program, &p.case.registry) else { panic!("not found") };
    assert!(example.tasks.iter().any(|t| t.starts_with("produce 0")), "{example:?}");
    assert!(example.tasks.iter().any(|t| t.starts_with("consume 0")), "{example:?}");
    assert!(example.detail.contains("'mid' of rank 0"), "{example:?}");
}

#[test]
fn a_deadlock_is_reported_with_the_word() {
    let mut k = Kit::new("stuck", 1, 1).unwrap();
    let word = k.adds("never", 1).unwrap();
    let first = k.sync("near.wait", (0, 0), "first", 0).unwrap();
    let second = k.sync("near.wait", (0, 0), "second", 0).unwrap();
    k.wait(first, WaitFor::all(word, 0)).unwrap();
    k.b.post(second, PostTo::done(Rank(0), word, 0)).unwrap();
    let case = k.finish().unwrap();
    let Outcome::Deadlock(example) = outcome(&case.program, &case.registry) else { panic!("not found") };
    assert!(
        example.detail.contains("first") && example.detail.contains("never[0] of rank 0 = 1"),
        "{example:?}"
    );
}

#[test]
fn a_rectangle_elsewhere_is_another_program() {
    let case = pool::producer_consumer(1, 2).unwrap();
    let mutants = mutate::all(&case.program, &case.registry, Kind::Shift);
    let m =
        mutants.iter().find(|m| m.place.starts_with("produce 0") && m.what.starts_with("a_row: 0")).unwrap();
    let bounds = Bounds::default();
    let found = explore(&m.program, &case.registry, &bounds, Some(&case.program)).outcome;
    assert!(matches!(found, Outcome::Changed(_)), "{found:?}");
    assert_eq!(explore(&m.program, &case.registry, &bounds, None).outcome, Outcome::Harmless);
}

#[test]
fn beyond_its_bounds_it_says_so() {
    let case = pool::all_gather(3, 2).unwrap();
    let few = Bounds { actions: 100, ..Bounds::default() };
    let found = explore(&case.program, &case.registry, &few, None).outcome;
    assert!(matches!(found, Outcome::TooLarge(_)), "{found:?}");
    let few = Bounds { states: 50, search: Search::Naive, ..Bounds::default() };
    let found = explore(&case.program, &case.registry, &few, None).outcome;
    assert!(matches!(found, Outcome::TooLarge(_)), "{found:?}");
}

#[test]
fn the_shortcuts_change_no_outcome() {
    let small = [
        pool::producer_consumer(1, 1).unwrap(),
        pool::prefix(1, 2).unwrap(),
        pool::tickets(1, 1).unwrap(),
        pool::accumulate(1, 1).unwrap(),
        pool::slots(2, 1, 1).unwrap(),
        pool::blocks(2, 1, true).unwrap(),
        pool::get_ring(2).unwrap(),
        pool::credits(2, 1, 1).unwrap(),
        pool::far_pairs(1, 1).unwrap(),
        pool::reduce_chain(2).unwrap(),
    ];
    let naive = Bounds { epochs: 2, states: 20_000, search: Search::Naive, ..Bounds::default() };
    let reduced = Bounds { search: Search::Reduced, ..naive };
    let mut compared: BTreeMap<String, usize> = BTreeMap::new();
    for case in &small {
        for kind in Kind::ALL {
            for m in mutate::all(&case.program, &case.registry, kind).iter() {
                let slow = explore(&m.program, &case.registry, &naive, None);
                if matches!(slow.outcome, Outcome::TooLarge(_)) {
                    continue;
                }
                let fast = explore(&m.program, &case.registry, &reduced, None);
                *compared.entry(variant(&slow.outcome)).or_default() += 1;
                assert_eq!(
                    variant(&slow.outcome),
                    variant(&fast.outcome),
                    "{}: {} {}\n{:?}\n{:?}",
                    case.name,
                    m.place,
                    m.what,
                    slow.outcome,
                    fast.outcome
                );
            }
        }
    }
    println!("{compared:?}");
    for outcome in ["Harmless", "Differs", "Deadlock"] {
        assert!(compared.get(outcome).is_some_and(|&n| n >= 50), "{outcome}: {compared:?}");
    }
}
