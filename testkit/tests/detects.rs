//! What goes wrong at run time is found by the simulator's detectors, and only by the one that looks for it.

mod common;

use common::{findings, names};
use mk_core::{Fault, Reason, verify::FindingKind};
use mk_sim::Checks;
use testkit::planted::{self, Planted};

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
            None => bad.push(format!("{}: missed; found {:?}", p.case.name, find(&p, Checks::all(), |_| true))),
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
fn tmp_others() {
    for kind in [FindingKind::OutsideRun, FindingKind::EpochAlias, FindingKind::Threshold, FindingKind::Stale, FindingKind::WrittenTwice] {
        let mut t = std::collections::BTreeMap::<String, (usize, String)>::new();
        for p in of_kind(kind) {
            let r = find(&p, Checks::all(), |_| true);
            let k = match &r { None => "none".to_string(), Some(f) => format!("{:?}", f.reason).split(['(', ' ']).next().unwrap().to_string() };
            let e = t.entry(k).or_insert((0, p.case.name.clone())); e.0 += 1;
        }
        println!("{kind:?} {t:?}");
    }
    // lost / surplus by fault
    let mut t = std::collections::BTreeMap::<String, usize>::new();
    for case in testkit::pool::all().unwrap() {
        for (what, text) in [("lose", "lose_post = 1"), ("lose", "lose_post = 3"), ("surplus", "surplus_post = 1"), ("surplus", "surplus_post = 2")] {
            let mut sim = mk_sim::Simulator::builder(&case.registry).faults(mk_sim::Faults::from_toml(text).unwrap()).schedule_seed(1).build();
            let b: Vec<_> = (1..=2).map(|e| common::inputs(&case.program, e)).collect();
            let r = sim.run_unproved(&case.program, &b);
            let k = match r { Ok(_) => "ok".to_string(), Err(e) => match e { mk_core::RunError::Fault(f) => format!("{:?}", f.reason).split(['(', ' ']).next().unwrap().to_string(), e => e.to_string() } };
            *t.entry(format!("{what} {k}")).or_default() += 1;
        }
    }
    println!("{t:?}");
}
