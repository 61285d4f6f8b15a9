//! Running one task after the other: known programs give known numbers.

use mk_core::{Bindings, DType, Io, Rank, Tensor};
use testkit::kit::Case;
use testkit::serial::Serial;
use testkit::{planted, pool};

/// `x` of each rank: 10 times the rank plus the place.
fn inputs(case: &Case) -> Bindings {
    let mut b = Bindings::new();
    for region in case.program.regions.iter().filter(|r| matches!(r.io, Io::Input | Io::InOut)) {
        for rank in 0..case.program.ranks as u16 {
            let [rows, cols] = region.extent(Rank(rank));
            let values: Vec<f32> = (0..rows * cols).map(|i| 10.0 * f32::from(rank) + i as f32).collect();
            b.set(Rank(rank), &region.name, Tensor::from_f32(DType::F32, rows, cols, &values));
        }
    }
    b
}

fn run(case: &Case, epochs: u64) -> Vec<Vec<f32>> {
    let mut serial = Serial::new(&case.program, &case.registry).expect("known handlers");
    let mut y = Vec::new();
    for _ in 0..epochs {
        let out = serial.run(&inputs(case)).expect("it is live");
        y = (0..case.program.ranks as u16)
            .map(|r| out.get(Rank(r), "y").map(Tensor::to_f32).unwrap_or_default())
            .collect();
    }
    y
}

#[test]
fn two_maps_are_four_x_and_three() {
    for case in
        [pool::producer_consumer(1, 2).unwrap(), pool::prefix(1, 2).unwrap(), pool::tickets(1, 2).unwrap()]
    {
        for epochs in 1..=3 {
            assert_eq!(run(&case, epochs), [[3.0, 7.0, 11.0, 15.0]], "{}", case.name);
        }
    }
}

#[test]
fn a_ring_hands_rows_to_the_next_rank() {
    // The receiver of rank 0's rows (0..8) is rank 1, and the other way round (10..18); both map them once.
    let expect = |first: f32| -> Vec<f32> { (0..8).map(|i| 2.0 * (first + i as f32) + 1.0).collect() };
    for case in [pool::credits(2, 1, 1).unwrap(), pool::ring(2, 1).unwrap()] {
        assert_eq!(run(&case, 3), [expect(10.0), expect(0.0)], "{}", case.name);
    }
    // Over the network they are mapped before they are sent, too.
    let twice = |first: f32| -> Vec<f32> { (0..8).map(|i| 4.0 * (first + i as f32) + 3.0).collect() };
    assert_eq!(run(&pool::far_pairs(1, 1).unwrap(), 3), [twice(10.0), twice(0.0)]);
}

#[test]
fn a_sum_over_ranks_is_the_sum() {
    // Rank 0: 2 (i + (10 + i) + (20 + i)) + 1.
    let sum: Vec<f32> = (0..8).map(|i| 2.0 * (30.0 + 3.0 * i as f32) + 1.0).collect();
    assert_eq!(run(&pool::reduce_chain(3).unwrap(), 2)[0], sum);
}

#[test]
fn updates_start_from_what_the_caller_gave() {
    // Rank 1 adds its 10 + i to the i of rank 0, in every epoch anew.
    let added: Vec<f32> = (0..8).map(|i| 10.0 + 2.0 * i as f32).collect();
    assert_eq!(run(&pool::put_to_caller(2, Io::InOut).unwrap(), 3)[0], added);
}

#[test]
fn every_planted_deadlock_is_an_error_that_names_tasks() {
    for p in planted::deadlocks::all().unwrap() {
        let mut serial = Serial::new(&p.case.program, &p.case.registry).unwrap();
        let error = serial.run(&inputs(&p.case)).unwrap_err().to_string();
        assert!(p.tasks.iter().all(|t| error.contains(t)), "{}: {error}", p.case.name);
    }
}
