//! AllGather + GEMM from end to end in the simulator, against f64; and the same bits whatever the world, the lanes, the
//! schedule and the plan.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{assert_product, random};
use mk_compute::{AllGatherGemm, Plan, handlers};
use mk_core::*;
use mk_nvlink::NvLink;
use mk_sim::Simulator;
use proptest::prelude::*;
use std::collections::HashSet;

const PLANS: [Plan; 2] = [Plan::Fused, Plan::Unfused];
const DTYPES: [DType; 2] = [DType::Bf16, DType::F16];

/// How an operator is run: everything here must leave the result as it is.
#[derive(Clone, Copy, Debug)]
struct How {
    world: u32,
    plan: Plan,
    lanes: u16,
    slices: u16,
    schedule_seed: u64,
}

const HOW: How = How { world: 3, plan: Plan::Fused, lanes: 4, slices: 4, schedule_seed: 1 };

/// A world of simulated GPUs with a proved program.
struct Runner {
    op: AllGatherGemm,
    how: How,
    program: Verified,
    gpus: Simulator,
}

impl Runner {
    fn new([m, n, k]: [u64; 3], dtype: DType, how: How) -> Runner {
        let registry = Registry::builder()
            .transport(NvLink::new())
            .handlers(handlers())
            .build(&World::local(how.world.into()).unwrap())
            .unwrap();
        let op = AllGatherGemm::new(m, n, k, dtype).plan_kind(how.plan).lanes(how.lanes).slices(how.slices);
        let program = op.plan(&registry).unwrap().verify(&registry, &Hardware::h200()).unwrap();
        let gpus = Simulator::builder(&registry).schedule_seed(how.schedule_seed).build();
        Runner { op, how, program, gpus }
    }

    /// Cuts A and B into shards, runs one epoch and puts C together.
    fn run(&mut self, a: &Tensor, b: &Tensor) -> Tensor {
        let world = self.how.world;
        let mut bindings = Bindings::new();
        for r in 0..world {
            let (rows, cols) = (self.op.rows(world, r), self.op.cols(world, r));
            let rank = Rank(r as u16);
            bindings.set(rank, AllGatherGemm::A, a.slice(rows.start, rows.end - rows.start, 0, a.cols));
            bindings.set(rank, AllGatherGemm::B, b.slice(0, b.rows, cols.start, cols.end - cols.start));
        }
        let out = self.gpus.run(&self.program, &bindings).unwrap_or_else(|e| panic!("{:?}: {e}", self.how));
        // What no rank gives back stays NaN.
        let mut c = Tensor::zeros(a.dtype, a.rows, b.cols);
        c.bytes.fill(0xff);
        for r in 0..world {
            let part =
                out.get(Rank(r as u16), AllGatherGemm::C).expect("every rank gives its columns of C back");
            c.paste(0, self.op.cols(world, r).start, part);
        }
        c
    }
}

fn run(a: &Tensor, b: &Tensor, how: How) -> Tensor {
    Runner::new([a.rows, b.cols, a.cols], a.dtype, how).run(a, b)
}

/// Runs a shape in every world and plan, compares one result with f64 and all others with that, bit for bit.
fn check_shape([m, n, k]: [u64; 3], dtype: DType) {
    let (a, b) = (random(dtype, 17, 0, m, k), random(dtype, 17, 1, k, n));
    let one = run(&a, &b, How { world: 1, ..HOW });
    assert_product(&one, &a, &b);
    for world in [1, 2, 3, 8] {
        for plan in PLANS {
            let how = How { world, plan, ..HOW };
            assert!(
                run(&a, &b, how).bytes == one.bytes,
                "{m} x {n} x {k} {dtype} has other bits with {how:?}"
            );
        }
    }
}

/// The shapes of a report of silently wrong results, in tests that run beside one another.
fn regress_flux_17(n: u64, rows: &[u64]) {
    for &m in rows {
        for k in [8, 64, 192, 320] {
            check_shape([m, n, k], DType::Bf16);
        }
    }
}

#[test]
fn regress_flux_17_8_columns() {
    regress_flux_17(8, &[1, 127, 129, 257]);
}

#[test]
fn regress_flux_17_264_columns() {
    regress_flux_17(264, &[1, 127, 129, 257]);
}

#[test]
fn regress_flux_17_6288_columns_one_row_block() {
    regress_flux_17(6288, &[1, 127]);
}

#[test]
fn regress_flux_17_6288_columns_129_rows() {
    regress_flux_17(6288, &[129]);
}

#[test]
fn regress_flux_17_6288_columns_257_rows() {
    regress_flux_17(6288, &[257]);
}

/// No element of the output may be left as it was before. All elements of A and B are positive, so a zero or a NaN in C
/// was never written.
#[test]
fn regress_flux_154_no_element_is_left_unwritten() {
    for world in [1, 2, 3, 8] {
        for plan in PLANS {
            for [m, n, k] in [[257, 264, 192], [1, 8, 8], [130, 2056, 64]] {
                let positive = |t: Tensor| {
                    let values: Vec<f32> = t.to_f32().iter().map(|x| 1.25 + x).collect();
                    Tensor::from_f32(t.dtype, t.rows, t.cols, &values)
                };
                let (a, b) =
                    (positive(random(DType::Bf16, 3, 0, m, k)), positive(random(DType::Bf16, 3, 1, k, n)));
                let c = run(&a, &b, How { world, plan, ..HOW }).to_f32();
                let smallest = 0.2 * 0.2 * k as f32;
                assert!(c.iter().all(|&x| x > smallest), "{m} x {n} x {k}, {plan}, {world} ranks");
            }
        }
    }
}

/// The whole matrix of element type and option.
#[test]
fn regress_flux_8_every_type_with_every_option() {
    let [m, n, k] = [200, 136, 320];
    for dtype in DTYPES {
        let (a, b) = (random(dtype, 8, 0, m, k), random(dtype, 8, 1, k, n));
        let one = run(&a, &b, HOW);
        assert_product(&one, &a, &b);
        for world in [1, 2, 5, 6] {
            for plan in PLANS {
                for lanes in [1, 3, 132] {
                    for slices in [1, 5] {
                        let how = How { world, plan, lanes, slices, schedule_seed: 9 };
                        assert!(run(&a, &b, how).bytes == one.bytes, "{dtype} has other bits with {how:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_schedule_changes_no_bit() {
    let (a, b) = (random(DType::Bf16, 4, 0, 520, 320), random(DType::Bf16, 4, 1, 320, 576));
    let one = run(&a, &b, HOW);
    assert_product(&one, &a, &b);
    for plan in PLANS {
        let mut orders = HashSet::new();
        for schedule_seed in 0..20 {
            let how = How { world: 8, plan, schedule_seed, ..HOW };
            let mut runner = Runner::new([520, 576, 320], DType::Bf16, how);
            assert!(runner.run(&a, &b).bytes == one.bytes, "other bits with {how:?}");
            orders.insert(runner.gpus.report().order);
        }
        assert!(orders.len() >= 18, "20 seeds gave only {} orders of events", orders.len());
    }
}

/// Nothing is reset between runs: each must see its own inputs, never those of the run before.
/// Right against f64 once, and the same bits in every world, with other lanes, plans and schedules.
fn everywhere_the_same([m, n, k]: [u64; 3]) {
    let (a, b) = (random(DType::Bf16, 5, 0, m, k), random(DType::Bf16, 5, 1, k, n));
    let mut first = None;
    for world in [1, 2, 3, 8] {
        for (lanes, plan, schedule_seed) in
            [(8, Plan::Fused, 0), (3, Plan::Fused, 11), (132, Plan::Unfused, 12)]
        {
            let c = run(&a, &b, How { world, plan, lanes, schedule_seed, ..HOW });
            let first = first.get_or_insert_with(|| {
                assert_product(&c, &a, &b);
                c.clone()
            });
            assert!(*first == c, "{world} ranks, {lanes} lanes, {plan}, seed {schedule_seed}: other bits");
        }
    }
}

#[test]
fn a_cube_of_1024_is_the_same_everywhere() {
    everywhere_the_same([1024, 1024, 1024]);
}

#[test]
fn sizes_that_divide_by_nothing_are_the_same_everywhere() {
    everywhere_the_same([520, 576, 320]);
}

#[test]
fn runs_back_to_back_see_their_own_inputs() {
    for plan in PLANS {
        let mut runner = Runner::new([300, 136, 192], DType::F16, How { plan, ..HOW });
        for seed in 0..4 {
            let (a, b) = (random(DType::F16, seed, 0, 300, 192), random(DType::F16, seed, 1, 192, 136));
            assert_product(&runner.run(&a, &b), &a, &b);
        }
    }
}

/// A report of hangs with 2 ranks, where 8 had been assumed.
#[test]
fn regress_triton_distributed_79_any_number_of_ranks() {
    let (a, b) = (random(DType::Bf16, 6, 0, 129, 72), random(DType::Bf16, 6, 1, 72, 72));
    let one = run(&a, &b, How { world: 1, ..HOW });
    assert_product(&one, &a, &b);
    for world in [2, 3, 5, 6, 7, 8, 12, 24] {
        for plan in PLANS {
            assert_eq!(run(&a, &b, How { world, plan, ..HOW }).bytes, one.bytes, "{world} ranks, {plan}");
        }
    }
}

#[test]
fn nan_and_infinity_pass_through() {
    let (mut a, b) = (random(DType::F16, 2, 0, 130, 64), random(DType::F16, 2, 1, 64, 24));
    DType::F16.store(&mut a.bytes, 64 * 129, f32::NAN);
    DType::F16.store(&mut a.bytes, 64 * 2 + 63, f32::NEG_INFINITY);
    let c = run(&a, &b, HOW);
    assert_product(&c, &a, &b);
    assert!(c.slice(129, 1, 0, 24).to_f32().iter().all(|x| x.is_nan()));
}

#[test]
fn empty_matrices_give_empty_or_zero_results() {
    for plan in PLANS {
        let empty =
            run(&Tensor::zeros(DType::Bf16, 0, 64), &random(DType::Bf16, 1, 1, 64, 16), How { plan, ..HOW });
        assert_eq!((empty.rows, empty.cols), (0, 16));
        let none =
            run(&random(DType::Bf16, 1, 0, 5, 64), &Tensor::zeros(DType::Bf16, 64, 0), How { plan, ..HOW });
        assert_eq!((none.rows, none.cols), (5, 0));
        let zero =
            run(&Tensor::zeros(DType::Bf16, 5, 0), &Tensor::zeros(DType::Bf16, 0, 16), How { plan, ..HOW });
        assert_eq!(zero, Tensor::zeros(DType::Bf16, 5, 16));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_shape_is_right_under_any_schedule(
        m in 0u64..300, n in 0u64..40, k in 0u64..40, world in 1u32..9, lanes in 1u16..20, slices in 1u16..8,
        schedule_seed: u64, fused: bool, half: bool,
    ) {
        let dtype = if half { DType::F16 } else { DType::Bf16 };
        let plan = if fused { Plan::Fused } else { Plan::Unfused };
        let (a, b) = (random(dtype, schedule_seed, 0, m, 8 * k), random(dtype, schedule_seed, 1, 8 * k, 8 * n));
        assert_product(&run(&a, &b, How { world, plan, lanes, slices, schedule_seed }), &a, &b);
    }
}
