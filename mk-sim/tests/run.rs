//! Programs run end to end: right values in every world, and the same events in both modes.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{Case, WORLDS};
use mk_core::*;
use mk_sim::{Checks, Mode, Simulator};

fn right_in(ranks: u64) {
    let case = Case::new(ranks, [264, 64, 192], 3);
    let program = case.proved();
    for seed in 0..4 {
        let mut sim = Simulator::builder(&case.registry).schedule_seed(seed).build();
        for epoch in 0..3 {
            let out = sim.run(&program, &case.bindings(epoch)).unwrap();
            assert_eq!(case.c(&out), case.reference(epoch), "{ranks} ranks, seed {seed}, epoch {epoch}");
        }
        assert_eq!(sim.report().tasks, program.program().tasks.len() as u64);
        assert!(sim.report().ordered_pairs > 0 || ranks == 1);
        assert_eq!(sim.report().unknown_pairs, 0);
    }
}

/// Device-initiated communication that hung with three ranks.
#[test]
fn regress_nccl_2372_worlds_of_any_size() {
    WORLDS.into_iter().filter(|w| *w != 2).for_each(right_in);
}

/// Kernels that assumed eight ranks hung with two.
#[test]
fn regress_triton_distributed_79_two_ranks() {
    right_in(2);
}

#[test]
fn epochs_run_back_to_back_without_a_barrier() {
    let case = Case::new(3, [264, 64, 192], 2);
    let program = case.proved();
    for seed in [0, 1, 2, 3, 4, 5, 6, 7] {
        let mut sim = Simulator::builder(&case.registry).schedule_seed(seed).build();
        let bindings: Vec<Bindings> = (0..4).map(|e| case.bindings(e)).collect();
        for round in 0..2 {
            let out = sim.run_epochs(&program, &bindings).unwrap();
            for (e, out) in out.iter().enumerate() {
                assert_eq!(case.c(out), case.reference(e as u64), "seed {seed}, round {round}, epoch {e}");
            }
        }
    }
}

#[test]
fn timing_and_data_have_the_same_events_and_times() {
    for (ranks, seed) in [(1, 0), (2, 0), (3, 1), (8, 2), (5, 3)] {
        let case = Case::new(ranks, [264, 64, 192], 3);
        let program = case.proved();
        let bindings = vec![case.bindings(0); 3];
        let run = |mode| {
            let mut sim = Simulator::builder(&case.registry).schedule_seed(seed).mode(mode).build();
            sim.run_epochs(&program, &bindings).unwrap();
            sim.report().clone()
        };
        assert_eq!(run(Mode::Data), run(Mode::Timing), "{ranks} ranks, seed {seed}");
    }
}

#[test]
fn a_seed_is_a_schedule_and_a_hundred_seeds_are_many() {
    let case = Case::new(2, [264, 64, 192], 2);
    let program = case.proved();
    let order = |seed| {
        let mut sim = Simulator::builder(&case.registry).schedule_seed(seed).mode(Mode::Timing).build();
        sim.run(&program, &Bindings::new()).unwrap();
        (sim.report().order, sim.report().time_ns, sim.report().overlap)
    };
    let mut orders: Vec<u64> = (1..=100).map(|s| order(s).0).collect();
    assert_eq!(orders, (1..=100).map(|s| order(s).0).collect::<Vec<_>>(), "the same seeds, the same orders");
    orders.sort();
    orders.dedup();
    assert!(orders.len() >= 90, "100 seeds gave {} orders", orders.len());
    let mut overlaps: Vec<u32> = (1..=100).map(|s| order(s).2).collect();
    overlaps.sort();
    overlaps.dedup();
    assert_eq!(overlaps, [1, 2, 4]);
}

#[test]
fn no_seed_means_exact_durations() {
    let case = Case::new(2, [264, 64, 192], 2);
    let program = case.proved();
    let run = |checks| {
        let mut sim = Simulator::builder(&case.registry).mode(Mode::Timing).checks(checks).build();
        sim.run(&program, &Bindings::new()).unwrap();
        (sim.report().order, sim.report().time_ns, sim.report().overlap)
    };
    let first = run(Checks::all());
    assert_eq!(first.2, 2);
    assert_eq!(first, run(Checks::none()), "detectors take no part in a run");
}

#[test]
fn a_lane_computes_one_tile_at_a_time() {
    // Loads cost next to nothing, so the tensor cores are all that limits one lane.
    let hardware = Hardware { sm_gb_per_s: 1e6, hbm_gb_per_s: 1e8, ..Hardware::h200() };
    let case = Case::new(1, [1024, 1024, 2048], 1);
    let program = case.proved();
    let least = 2.0 * 1024.0 * 1024.0 * 2048.0 / (hardware.tensor_tflops * 1e3 / f64::from(hardware.sms));
    for (seed, most) in [(0, 1.05), (1, 1.3), (2, 1.3), (3, 1.3)] {
        let builder = Simulator::builder(&case.registry).mode(Mode::Timing).schedule_seed(seed);
        let mut sim = builder.hardware(hardware.clone()).build();
        sim.run(&program, &Bindings::new()).unwrap();
        let ratio = sim.report().time_ns as f64 / least;
        assert!((1.0..most).contains(&ratio), "seed {seed}: {ratio} times the least time");
    }
}
