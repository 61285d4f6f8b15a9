//! What goes wrong at run time is found by the simulator's detectors, and only by the one that looks for it.

mod common;

use common::{findings, names};
use mk_core::{Fault, Hardware, Reason, verify::FindingKind};
use mk_sim::{Checks, Faults, Simulator};
use testkit::planted::{self, Planted};
use testkit::pool;

/// Schedules that are tried before a fault counts as missed.
const SEEDS: u64 = 40;

fn of_kind(kind: FindingKind) -> Vec<Planted> {
    let all = planted::all().unwrap_or_default().into_iter().filter(|p| p.kind == kind);
    let planted: Vec<Planted> = all.collect();
    assert!(planted.len() >= planted::ENOUGH);
    planted
}

/// The first schedule under which a fault is found that `is` the one.
fn find(p: &Planted, checks: Checks, is: impl Fn(&Fault) -> bool) -> Option<Fault> {
    (0..SEEDS).find_map(|seed| {
        let found = findings(&p.case.program, &p.case.registry, checks, seed, 4);
        found.into_iter().find(|f| is(f))
    })
}

fn check(kind: FindingKind, without: Checks, is: impl Fn(&Fault) -> bool + Copy) {
    let mut bad = Vec::new();
    for p in of_kind(kind) {
        match find(&p, Checks::all(), is) {
            None => {
                bad.push(format!("{}: missed; found {:?}", p.case.name, find(&p, Checks::all(), |_| true)))
            }
            Some(fault) if !p.tasks.iter().all(|t| names(&fault).contains(t.as_str())) => {
                bad.push(format!("{}: {:?} are not named in {fault}", p.case.name, p.tasks));
            }
            Some(_) => {}
        }
        if let Some(fault) = find(&p, without, is) {
            bad.push(format!("{}: found though nobody looks: {fault}", p.case.name));
        }
    }
    assert!(bad.is_empty(), "{} of {kind:?}:\n{}", bad.len(), bad.join("\n"));
}

#[test]
fn races_are_found_by_the_race_detector_alone() {
    let without = Checks { races: false, ..Checks::all() };
    check(FindingKind::Race, without, |f| matches!(f.reason, Reason::Race { .. }));
}

#[test]
fn deadlocks_are_found_by_the_deadlock_detector_alone() {
    let without = Checks { deadlock: false, ..Checks::all() };
    check(FindingKind::Deadlock, without, |f| matches!(f.reason, Reason::Deadlock(_)));
}

#[test]
fn unwritten_outputs_are_found_by_their_detector_alone() {
    let without = Checks { unwritten: false, ..Checks::all() };
    check(FindingKind::Unwritten, without, |f| matches!(f.reason, Reason::Unwritten { .. }));
}

#[test]
fn a_rank_ahead_that_is_mistaken_for_one_behind_is_found_as_a_race() {
    let planted = of_kind(FindingKind::EpochAlias);
    let with_data: Vec<_> = planted.iter().filter(|p| p.case.name.starts_with("two ranks")).collect();
    assert!(with_data.len() >= 10);
    for p in with_data {
        let found = find(p, Checks::all(), |f| matches!(f.reason, Reason::Race { .. }));
        assert!(found.is_some_and(|f| names(&f).contains("put")), "{}", p.case.name);
    }
}

/// Runs right programs in which one post is lost, or made twice; gives how many of them were looked at.
///
/// For one epoch: the next one's post to a `Set` word is absolute, and makes good what a surplus post did.
fn post_faults(key: &str, checks: Checks, look: impl Fn(&str, &[Fault])) -> usize {
    let mut programs = 0;
    for case in pool::all().unwrap_or_default() {
        for post in 1..=2 {
            let faults = Faults::from_toml(&format!("{key} = {post}")).expect("a legal fault");
            let builder =
                Simulator::builder(&case.registry).faults(faults).checks(checks).schedule_seed(post);
            let mut sim = builder.run_bound_us(2_000).build();
            let bindings = [common::inputs(&case.program, 1)];
            let proved = case.program.clone().verify(&case.registry, &Hardware::h200()).expect("it is right");
            let result = sim.run_epochs(&proved, &bindings);
            let found = if result.is_ok() { vec![] } else { sim.report().findings.clone() };
            look(&format!("{}, post {post}: {result:?}", case.name), &found);
            programs += 1;
        }
    }
    programs
}

#[test]
fn lost_posts_are_found_by_their_detector_alone() {
    let is = |f: &Fault| matches!(f.reason, Reason::LostPost);
    let n = post_faults("lose_post", Checks::all(), |name, found| {
        assert!(found.iter().any(is), "{name}");
    });
    assert!(n >= 100);
    let without = Checks { posts: false, ..Checks::all() };
    post_faults("lose_post", without, |name, found| assert!(!found.iter().any(is), "{name}"));
}

#[test]
fn surplus_posts_are_found_by_their_detector_alone() {
    let is = |f: &Fault| matches!(f.reason, Reason::SurplusPost);
    // A post too many may let a task start too early, which is a race, too.
    let alone = Checks { posts: true, ..Checks::none() };
    let n = post_faults("surplus_post", alone, |name, found| {
        assert!(found.iter().any(is), "{name}");
    });
    assert!(n >= 100);
    let without = Checks { posts: false, ..Checks::all() };
    post_faults("surplus_post", without, |name, found| assert!(!found.iter().any(is), "{name}"));
}
