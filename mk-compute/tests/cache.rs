//! Plans are cached by shape and by everything else that was asked for.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::worlds;
use mk_compute::{AllGatherGemm, Gather, Plan};
use mk_core::{DType, Hardware, Plans, Rank};
use std::time::Instant;

#[test]
fn a_cached_plan_takes_less_than_a_millisecond() {
    let registry = worlds::nodes(4, 32);
    let mut plans = Plans::new(&registry, &Hardware::h200(), 4);
    let op = AllGatherGemm::new(8192, 28_672, 4096, DType::Bf16);
    let first = plans.get(&op).unwrap();
    assert!(first.program().tasks.len() > 8000);
    let timed = || {
        let start = Instant::now();
        let again = plans.get(&op.clone()).unwrap();
        assert!(std::ptr::eq(first.program(), again.program()), "found, not planned");
        start.elapsed()
    };
    let best = std::iter::repeat_with(timed).take(5).min().unwrap();
    assert!(best.as_micros() < 1000, "{best:?}");
}

/// Nothing that an operator is told may be missing from what the cache goes by.
#[test]
fn everything_that_is_asked_for_is_another_plan() {
    let registry = worlds::nodes(2, 6);
    let op = AllGatherGemm::new(520, 576, 320, DType::Bf16);
    let ops = [
        op.clone(),
        AllGatherGemm::new(521, 576, 320, DType::Bf16),
        AllGatherGemm::new(520, 584, 320, DType::Bf16),
        AllGatherGemm::new(520, 576, 328, DType::Bf16),
        AllGatherGemm::new(520, 576, 320, DType::F16),
        op.clone().plan_kind(Plan::Unfused),
        op.clone().gather(Gather::Pull),
        op.clone().lanes(7),
        op.clone().comm_lanes(2),
        op.clone().slices(5),
        op.clone().group([1, 4].map(Rank)),
        op.clone().group([4, 1].map(Rank)),
        op.clone().hardware(Hardware { sms: 9, ..Hardware::h200() }),
    ];
    let mut plans = Plans::new(&registry, &Hardware::h200(), ops.len());
    for op in &ops {
        let program = plans.get(op).unwrap();
        assert_eq!(*program.program(), op.plan(&registry).unwrap());
    }
    assert_eq!(plans.len(), ops.len());
    // In any order, each finds its own.
    for op in ops.iter().rev() {
        assert_eq!(*plans.get(op).unwrap().program(), op.plan(&registry).unwrap());
    }
    assert_eq!(plans.len(), ops.len());
}
