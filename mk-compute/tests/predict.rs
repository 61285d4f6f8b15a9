//! What the planner predicts is what the simulator takes, and what it chooses is the faster one.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::worlds;
use mk_compute::{AllGatherGemm, Choice, Gather, Plan, Settings};
use mk_core::*;
use mk_rdma::Rdma;
use mk_sim::{Checks, Mode, Simulator};

/// What an operator takes in the simulator, in nanoseconds.
fn simulated(op: &AllGatherGemm, registry: &Registry) -> f64 {
    let program = op.plan(registry).unwrap().verify(registry, &Hardware::h200()).unwrap();
    let mut gpus = Simulator::builder(registry).mode(Mode::Timing).checks(Checks::none()).build();
    gpus.run(&program, &Bindings::new()).unwrap();
    gpus.report().time_ns as f64
}

fn new([m, n, k]: [u64; 3]) -> AllGatherGemm {
    AllGatherGemm::new(m, n, k, DType::Bf16)
}

/// The operator that has these settings.
fn with(op: &AllGatherGemm, s: &Settings) -> AllGatherGemm {
    op.clone().plan_kind(s.plan).gather(s.gather).comm_lanes(s.comm_lanes).slices(s.slices)
}

/// What the planner chose, and the best of the other kind that it looked at, each with what it takes in the simulator.
fn measured(op: &AllGatherGemm, registry: &Registry) -> (Choice, f64, f64) {
    let choice = op.choose(registry).unwrap();
    let (other, _) = choice.alternatives.iter().find(|(s, _)| s.plan != choice.settings.plan).unwrap();
    let times = [&choice.settings, other].map(|s| simulated(&with(op, s), registry));
    (choice, times[0], times[1])
}

/// Percent. What relays forward is predicted as if it passed the port message by message, while those of many lanes
/// share it.
const MOST: f64 = 12.0;

/// The prediction is as close to the simulator, and the choice at most 5 % slower than the other kind.
fn check(name: &str, registry: &Registry, shapes: &[[u64; 3]]) {
    for &[m, n, k] in shapes {
        let (choice, time, other) = measured(&new([m, n, k]), registry);
        let error = 100.0 * (choice.prediction.time_ns / time - 1.0);
        let line = format!(
            "{name}: {m} x {n} x {k}, {}: predicted {:.1} us, simulated {:.1} us, {error:+.1} %; the other kind {:.1} us",
            choice.settings,
            choice.prediction.time_ns / 1e3,
            time / 1e3,
            other / 1e3
        );
        println!("{line}");
        assert!(error.abs() <= MOST, "{line}");
        assert!(time <= 1.05 * other, "the other kind is faster: {line}");
    }
}

const SMALL: [[u64; 3]; 3] = [[16, 65_536, 8192], [64, 8192, 2048], [128, 8192, 1024]];
const MIDDLE: [[u64; 3]; 3] = [[2048, 4096, 2048], [3000, 5000, 1024], [4096, 4096, 4096]];
const LARGE: [[u64; 3]; 2] = [[8192, 8192, 8192], [8192, 28_672, 4096]];

#[test]
fn one_node_takes_what_is_predicted() {
    check("2 ranks", &worlds::local(2), &MIDDLE);
    check("5 ranks", &worlds::local(5), &MIDDLE);
    let registry = worlds::local(8);
    check("8 ranks", &registry, &SMALL);
    check("8 ranks", &registry, &MIDDLE);
    check("8 ranks", &registry, &LARGE);
}

#[test]
fn several_nodes_take_what_is_predicted() {
    check("2 nodes of 2", &worlds::nodes(2, 4), &MIDDLE);
    check("2 nodes of 8", &worlds::nodes(2, 16), &SMALL);
    check("2 nodes of 8", &worlds::nodes(2, 16), &LARGE);
    check("3 nodes of 8", &worlds::nodes(3, 24), &MIDDLE);
}

#[test]
fn four_nodes_take_what_is_predicted() {
    let registry = worlds::nodes(4, 32);
    check("4 nodes of 8", &registry, &SMALL);
    check("4 nodes of 8", &registry, &MIDDLE);
    check("4 nodes of 8", &registry, &LARGE[..1]);
}

#[test]
fn uneven_and_unordered_worlds_take_what_is_predicted() {
    check("nodes of 3, 1 and 4", &worlds::described(worlds::UNEVEN, Rdma::ordered()), &MIDDLE);
    check("no order", &worlds::nodes_on(2, 8, Rdma::unordered()), &SMALL);
    let shared = Topology::uniform(2, 16, 4).unwrap();
    check("two ranks a NIC", &worlds::connected(shared, Rdma::ordered()), &MIDDLE);
}

/// Reports of fused plans that are slower than unfused ones where M is small: the faster one is taken, and it says why.
#[test]
fn regress_pytorch_179770_flux_90_the_faster_plan_is_taken() {
    let registry = worlds::local(8);
    for (sizes, plan) in [
        ([8, 65_536, 8192], Plan::Unfused),
        ([16, 65_536, 8192], Plan::Unfused),
        ([64, 131_072, 4096], Plan::Unfused),
        ([4096, 16_384, 4096], Plan::Fused),
        ([8192, 8192, 8192], Plan::Fused),
    ] {
        let (choice, time, other) = measured(&new(sizes), &registry);
        assert_eq!(choice.settings.plan, plan, "{sizes:?}: {}", choice.why);
        assert!(time < other, "{sizes:?}: {time} ns in the simulator, and {other} ns of the other kind");
        let (_, rejected) = choice.alternatives.iter().find(|(s, _)| s.plan != plan).unwrap();
        for predicted in [choice.prediction.time_ns, rejected.time_ns] {
            let named = format!("{:.1} us", predicted / 1e3);
            assert!(choice.why.contains(&named), "'{}' does not name {named}", choice.why);
        }
        assert!(choice.why.starts_with(&format!("{plan} is faster")), "{}", choice.why);
    }
}

/// The only rank of its node takes in the rows of seven others through one NIC.
#[test]
fn rows_are_there_when_the_ports_have_carried_them() {
    let registry = worlds::described(worlds::UNEVEN, Rdma::ordered());
    let [m, n, k] = [8192, 4096, 2048];
    for plan in [Plan::Fused, Plan::Unfused] {
        let prediction = new([m, n, k]).plan_kind(plan).choose(&registry).unwrap().prediction;
        let hardware = Hardware::h200();
        let carried_ns = (m / 8 * 7 * k * 2) as f64 / hardware.nic_gb_per_s;
        let gathered = prediction.gathered_ns;
        assert!(
            gathered > carried_ns && gathered < 1.1 * carried_ns,
            "{plan}: {gathered} ns, {carried_ns} ns"
        );
        assert!(prediction.time_ns > gathered);
    }
}

/// What is asked for is not chosen, and the rest of it is.
#[test]
fn what_is_asked_for_is_kept() {
    let registry = worlds::nodes(2, 16);
    let all = new([4096, 4096, 4096]);
    for plan in [Plan::Fused, Plan::Unfused] {
        for gather in [Gather::Push, Gather::Pull] {
            let op = all.clone().plan_kind(plan).gather(gather).lanes(100).comm_lanes(7).slices(3);
            let Choice { settings: s, alternatives, why, .. } = op.choose(&registry).unwrap();
            assert_eq!((s.plan, s.gather, s.lanes, s.comm_lanes, s.slices), (plan, gather, 100, 7, 3));
            assert_eq!(alternatives.len(), 1);
            assert!(why.contains(&format!("{plan} was asked for")), "{why}");
        }
    }
    // The best of each kind, the chosen one first.
    let choice = all.choose(&registry).unwrap();
    assert_eq!(choice.alternatives[0], (choice.settings, choice.prediction));
    let kinds: std::collections::HashSet<_> =
        choice.alternatives.iter().map(|(s, _)| (s.plan, s.gather)).collect();
    assert_eq!((kinds.len(), choice.alternatives.len()), (4, 4));
    assert!(choice.alternatives[1..].windows(2).all(|w| w[0].1.time_ns <= w[1].1.time_ns));
    assert!(choice.alternatives.iter().all(|(_, p)| p.time_ns >= choice.prediction.time_ns / 1.01));
}

/// `mk plan` tells before anything is planned how large it will be.
#[test]
fn tasks_and_words_are_as_many_as_announced() {
    let uneven = || worlds::described(worlds::UNEVEN, Rdma::ordered());
    // Few columns: some relays have none.
    for (registry, n) in
        [(worlds::local(5), 1032), (worlds::nodes(3, 6), 1032), (uneven(), 1032), (uneven(), 24)]
    {
        for plan in [Plan::Fused, Plan::Unfused] {
            for gather in [Gather::Push, Gather::Pull] {
                let op = new([1500, n, 320]).plan_kind(plan).gather(gather);
                let (choice, program) = (op.choose(&registry).unwrap(), op.plan(&registry).unwrap());
                assert_eq!(choice.tasks, program.tasks.len() as u128, "{op}, {plan}, {gather}");
                let before = op.size(&registry).unwrap();
                assert!(
                    (0.7..1.3).contains(&(before as f64 / program.tasks.len() as f64)),
                    "{op}, {plan}, {gather}"
                );
                let words = u128::from(program.words()) * u128::from(program.ranks);
                assert_eq!(choice.words, words, "{op}, {plan}, {gather}");
            }
        }
    }
    // Of nodes of one rank, all rows are sent whole: nothing is left to find out.
    for nodes in [8, 16] {
        let (op, registry) = (new([1024; 3]).plan_kind(Plan::Fused), worlds::nodes(nodes, nodes));
        assert_eq!(op.size(&registry).unwrap(), op.plan(&registry).unwrap().tasks.len() as u128, "{nodes}");
    }
}
