//! What machines do to messages, and what survivors say of those that die.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "common/ring.rs"]
mod ring;

#[path = "common/mod.rs"]
mod common;

use mk_core::*;
use mk_rdma::Ordering;
use mk_sim::{Checks, Faults, Mode, Simulator};
use ring::{gather, messages, nodes, rows, shift, shifted};

const RDMA: [&str; 3] = ["rdma.put_signal", "rdma.signal", "scale"];

fn proved(program: Program, registry: &Registry) -> Verified {
    program.verify(registry, &Hardware::h200()).unwrap()
}

fn faults(text: &str) -> Faults {
    Faults::from_toml(text).unwrap()
}

fn fault(result: Result<impl std::fmt::Debug, RunError>) -> Fault {
    match result {
        Err(RunError::Fault(fault)) => *fault,
        other => panic!("no fault: {other:?}"),
    }
}

/// Weathers that a proved program does not mind.
const WEATHERS: [&str; 6] = [
    "jitter = 5.0",
    "delay = { probability = 0.5, max_us = 100.0 }",
    "reorder = 0.7",
    "duplicate = 0.7",
    "drop = { probability = 0.5, retransmit_us = 40.0 }",
    "torn = true\nreorder = 0.5\nduplicate = 0.5\njitter = 1.0\nslow = { rank = 1, factor = 30.0 }",
];

/// Adaptive routing and relaxed ordering let the flag overtake its data, and deliver things twice.
#[test]
fn regress_deepep_20_flag_overtakes_data() {
    for ordering in [Ordering::Unordered, Ordering::Ordered] {
        for ranks in [2, 3, 5] {
            let registry = nodes(ranks, ordering);
            let program = proved(shift(&registry, 4, RDMA), &registry);
            let inputs: Vec<Bindings> = (0..4).map(|e| messages(ranks as u16, 4, e)).collect();
            for (w, weather) in WEATHERS.iter().enumerate() {
                for seed in 0..10 {
                    let mut sim =
                        Simulator::builder(&registry).schedule_seed(seed).faults(faults(weather)).build();
                    let out = sim.run_epochs(&program, &inputs).unwrap();
                    for (e, out) in out.iter().enumerate() {
                        let want = shifted(ranks as u16, 4, e as u64, 2.0);
                        assert_eq!(
                            *out, want,
                            "{ordering:?}, {ranks} ranks, weather {w}, seed {seed}, epoch {e}"
                        );
                    }
                }
            }
        }
    }
    // A transport that lets signals overtake is caught, by the race detector and by the bits.
    let registry = nodes(2, Ordering::Unordered);
    let program = proved(shift(&registry, 4, RDMA), &registry);
    let broken =
        faults("flag_overtakes_data = true\nreorder = 0.9\ndelay = { probability = 0.5, max_us = 100.0 }");
    let mut wrong = 0;
    for seed in 0..20 {
        let build = |checks| {
            let builder = Simulator::builder(&registry).schedule_seed(seed).faults(broken.clone());
            builder.checks(checks).build()
        };
        let found = fault(build(Checks::all()).run(&program, &messages(2, 4, 0)));
        let Reason::Race { region, first, second } = &found.reason else { panic!("{found}") };
        assert_eq!(region, "inbox");
        assert!(first.contains("send") && second.contains("double"), "{found}");
        let out = build(Checks::none()).run(&program, &messages(2, 4, 0)).unwrap();
        wrong += u32::from(out != shifted(2, 4, 0, 2.0));
    }
    assert!(wrong > 0, "no schedule gave wrong bits, so the fault does nothing");
}

#[test]
fn an_ordered_link_does_not_overtake_whatever_the_faults_say() {
    let registry = nodes(2, Ordering::Ordered);
    let program = proved(shift(&registry, 4, RDMA), &registry);
    let weather = faults("flag_overtakes_data = true\nreorder = 1.0\nduplicate = 1.0");
    let mut sim = Simulator::builder(&registry).schedule_seed(3).faults(weather).build();
    assert_eq!(sim.run(&program, &messages(2, 4, 0)).unwrap(), shifted(2, 4, 0, 2.0));
}

/// Each fault leaves a trace in time or order, so that none of them is a switch without a wire.
#[test]
fn every_fault_changes_the_run() {
    let registry = nodes(2, Ordering::Unordered);
    let program = proved(shift(&registry, 4, RDMA), &registry);
    let run = |text: &str| {
        let mut sim = Simulator::builder(&registry).faults(faults(text)).mode(Mode::Timing).build();
        sim.run(&program, &Bindings::new()).unwrap();
        (sim.report().time_ns, sim.report().events, sim.report().order)
    };
    let calm = run("");
    for weather in &WEATHERS[..5] {
        let changed = run(weather);
        assert!(changed.0 > calm.0 && changed.2 != calm.2, "{weather}: {changed:?}, calm {calm:?}");
    }
    assert!(run("duplicate = 1.0").1 > calm.1, "what arrives twice is one event more");
    assert!(run("torn = true").1 > calm.1, "what lands in two pieces is one event more");
    let slow = run("slow = { rank = 0, factor = 100.0 }");
    assert!(slow.0 > calm.0 * 3 / 2, "{} ns, calm {} ns", slow.0, calm.0);
}

/// An error completion was read as "not yet", and every rank hung.
#[test]
fn regress_nccl_2383_a_nic_error_is_an_error() {
    let registry = nodes(3, Ordering::Unordered);
    let program = proved(shift(&registry, 4, RDMA), &registry);
    let weather = faults("nic_error = { from = 1, to = 2, after_transfers = 2 }");
    for mode in [Mode::Data, Mode::Timing] {
        let mut sim = Simulator::builder(&registry).mode(mode).faults(weather.clone()).build();
        let found = fault(sim.run(&program, &messages(3, 4, 0)));
        assert_eq!(found.reason, Reason::Nic { peer: Rank(2), status: "status 12".into() });
        assert_eq!(found.rank, Rank(1));
        assert!(
            found.task.starts_with("send 1 "),
            "request 3 is the first unit of the second message: {found}"
        );
        assert!(sim.report().time_ns < 1_000_000_000, "within a second: {} ns", sim.report().time_ns);
    }
    // Enough requests later it has not happened yet.
    let later = faults("nic_error = { from = 1, to = 2, after_transfers = 8 }");
    let mut sim = Simulator::builder(&registry).faults(later).build();
    assert!(sim.run(&program, &messages(3, 4, 0)).is_ok());
    assert!(matches!(fault(sim.run(&program, &messages(3, 4, 0))).reason, Reason::Nic { .. }));
}

#[test]
fn survivors_of_a_killed_rank_name_it() {
    let registry = common::registry(4);
    let program = proved(gather(&registry), &registry);
    let mut whole = Simulator::builder(&registry).build();
    whole.run(&program, &rows(4, 0)).unwrap();
    let time_us = whole.report().time_ns as f64 / 1000.0;
    let mut waited = 0;
    for step in 0..20 {
        let kill = faults(&format!("kill = {{ rank = 2, at_us = {:?} }}", time_us * f64::from(step) / 21.0));
        for seed in [0, 5] {
            let builder =
                Simulator::builder(&registry).faults(kill.clone()).schedule_seed(seed).heartbeat_us(500);
            let mut sim = builder.build();
            let found = fault(sim.run(&program, &rows(4, 0)));
            assert_eq!(found.reason, Reason::PeerLost(Rank(2)), "step {step}");
            assert_ne!(found.rank, Rank(2), "a survivor says so");
            waited +=
                u32::from(found.signal.contains(&found.rank.to_string()) && found.seen < found.expected);
            assert!(sim.report().time_ns <= (time_us * 1000.0) as u64 + 500_000);
        }
    }
    assert!(waited >= 20, "survivors name what they waited for: {waited} of 40");
    // After the end, nothing is left to hurt.
    let late = faults(&format!("kill = {{ rank = 2, at_us = {:?} }}", time_us + 1.0));
    assert!(Simulator::builder(&registry).faults(late).build().run(&program, &rows(4, 0)).is_ok());
}

#[test]
fn a_wait_that_takes_too_long_is_a_time_out() {
    let registry = common::registry(3);
    let program = proved(gather(&registry), &registry);
    let slow = faults("slow = { rank = 1, factor = 1e6 }");
    let mut sim = Simulator::builder(&registry).faults(slow.clone()).run_bound_us(1000).build();
    let found = fault(sim.run(&program, &rows(3, 0)));
    assert_eq!(found.reason, Reason::Timeout(1000));
    assert!(found.signal.starts_with("arrival[") && found.seen < found.expected, "{found}");
    assert!(!found.task.is_empty() && found.epoch == 1);
    let time_us = sim.report().time_ns / 1000;
    assert!((1000..1100).contains(&time_us), "after {time_us} us");
    let mut patient = Simulator::builder(&registry).faults(slow).build();
    assert!(patient.run(&program, &rows(3, 0)).is_ok());
}

#[test]
fn a_run_is_refused_for_faults_that_make_no_sense_here() {
    let registry = common::registry(3);
    let program = proved(gather(&registry), &registry);
    let mut sim = Simulator::builder(&registry).faults(faults("kill = { rank = 3, at_us = 1.0 }")).build();
    let error = sim.run(&program, &rows(3, 0)).unwrap_err();
    assert!(matches!(error, RunError::Input(_)) && error.to_string().contains("rank 3"), "{error}");
    sim.set_faults(Faults::default());
    assert!(sim.run(&program, &rows(3, 0)).is_ok(), "an input error is not the end of a session");
}

/// A later `Set` write is absolute, so it hides that the word stood too high in between.
#[test]
fn a_surplus_set_post_is_seen_before_it_is_hidden() {
    for ordering in [Ordering::Unordered, Ordering::Ordered] {
        let registry = nodes(3, ordering);
        let program = proved(shift(&registry, 4, RDMA), &registry);
        let inputs: Vec<Bindings> = (0..4).map(|e| messages(3, 4, e)).collect();
        for post in 1..30 {
            for seed in 0..2 {
                let mut sim = Simulator::builder(&registry)
                    .schedule_seed(seed)
                    .faults(faults(&format!("surplus_post = {post}")))
                    .build();
                match sim.run_epochs(&program, &inputs) {
                    Err(RunError::Fault(fault)) => {
                        let seen = matches!(fault.reason, Reason::SurplusPost | Reason::Race { .. });
                        assert!(seen, "post {post}: {fault}");
                    }
                    other => panic!("post {post}, seed {seed}: {other:?}"),
                }
            }
        }
    }
}

#[test]
fn a_link_is_down_after_what_took_it_down() {
    let registry = nodes(3, Ordering::Unordered);
    let program = proved(shift(&registry, 4, RDMA), &registry);
    let mut sim = Simulator::builder(&registry).faults(faults("nic_error = { from = 1, to = 2 }")).build();
    let bound = std::time::Duration::from_secs(1);
    let mut before = sim.link(Rank(1), Rank(2)).unwrap();
    assert_eq!((before.ends(), before.health()), ((Rank(1), Rank(2)), Health::Up));
    before.quiesce(bound).unwrap();
    let found = fault(sim.run(&program, &messages(3, 4, 0)));
    let mut after = sim.link(Rank(1), Rank(2)).unwrap();
    assert_eq!(after.health(), Health::Down(found.to_string()));
    assert_eq!(fault(after.quiesce(bound)), found);
    assert_eq!(sim.link(Rank(0), Rank(2)).unwrap().health(), Health::Up);
    sim.rebuild();
    assert_eq!(sim.link(Rank(2), Rank(1)).unwrap().health(), Health::Up);
    assert!(sim.link(Rank(1), Rank(1)).is_err());
}
