//! AllGather + GEMM from end to end in the simulator, against f64; and the same bits whatever the world, the lanes, the
//! schedule and the plan.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{assert_product, random, worlds};
use mk_compute::{AllGatherGemm, Gather, Plan};
use mk_core::*;
use mk_rdma::Rdma;
use mk_sim::Simulator;
use proptest::prelude::*;
use std::collections::HashSet;

const PLANS: [Plan; 2] = [Plan::Fused, Plan::Unfused];
const GATHERS: [Gather; 2] = [Gather::Push, Gather::Pull];
const DTYPES: [DType; 2] = [DType::Bf16, DType::F16];

/// How an operator is run: everything here must leave the result as it is.
#[derive(Clone, Copy, Debug)]
struct How {
    nodes: u32,
    world: u32,
    ordered: bool,
    plan: Plan,
    gather: Gather,
    lanes: u16,
    slices: u16,
    schedule_seed: u64,
}

const HOW: How = How {
    nodes: 1,
    world: 3,
    ordered: true,
    plan: Plan::Fused,
    gather: Gather::Push,
    lanes: 4,
    slices: 4,
    schedule_seed: 1,
};

impl How {
    fn registry(&self) -> Registry {
        let network = if self.ordered { Rdma::ordered() } else { Rdma::unordered() };
        worlds::nodes_on(self.nodes.into(), self.world.into(), network)
    }

    fn op(&self, [m, n, k]: [u64; 3], dtype: DType) -> AllGatherGemm {
        let op = AllGatherGemm::new(m, n, k, dtype).plan_kind(self.plan).gather(self.gather);
        op.lanes(self.lanes).slices(self.slices)
    }
}

/// A world of simulated GPUs with a proved program.
struct Runner {
    op: AllGatherGemm,
    members: Vec<Rank>,
    program: Verified,
    gpus: Simulator,
}

impl Runner {
    fn new(sizes: [u64; 3], dtype: DType, how: How) -> Runner {
        let registry = how.registry();
        let gpus = Simulator::builder(&registry).schedule_seed(how.schedule_seed).build();
        let members = registry.topology().ranks().collect();
        Runner::with(how.op(sizes, dtype), members, &registry, gpus)
    }

    fn with(op: AllGatherGemm, members: Vec<Rank>, registry: &Registry, gpus: Simulator) -> Runner {
        let program = op.plan(registry).unwrap().verify(registry, &Hardware::h200()).unwrap();
        Runner { op, members, program, gpus }
    }

    /// Runs one epoch for each A and B, back to back, each rank at its own pace.
    fn run_epochs(&mut self, inputs: &[(Tensor, Tensor)]) -> Vec<Tensor> {
        let bindings: Vec<Bindings> =
            inputs.iter().map(|(a, b)| bindings(&self.op, &self.members, a, b)).collect();
        let all =
            self.gpus.run_epochs(&self.program, &bindings).unwrap_or_else(|e| panic!("{:?}: {e}", self.op));
        all.iter().zip(inputs).map(|(out, (a, b))| gathered(&self.op, &self.members, out, a, b)).collect()
    }

    fn run(&mut self, a: &Tensor, b: &Tensor) -> Tensor {
        self.run_epochs(&[(a.clone(), b.clone())]).remove(0)
    }
}

/// Cuts A and B into shards.
fn bindings(op: &AllGatherGemm, members: &[Rank], a: &Tensor, b: &Tensor) -> Bindings {
    let (mut bindings, world) = (Bindings::new(), members.len() as u32);
    for (place, &rank) in (0..).zip(members) {
        let (rows, cols) = (op.rows(world, place), op.cols(world, place));
        bindings.set(rank, AllGatherGemm::A, a.slice(rows.start, rows.end - rows.start, 0, a.cols));
        bindings.set(rank, AllGatherGemm::B, b.slice(0, b.rows, cols.start, cols.end - cols.start));
    }
    bindings
}

/// Puts C together.
fn gathered(op: &AllGatherGemm, members: &[Rank], out: &Bindings, a: &Tensor, b: &Tensor) -> Tensor {
    // What no rank gives back stays NaN.
    let mut c = Tensor::zeros(a.dtype, a.rows, b.cols);
    c.bytes.fill(0xff);
    for (place, &rank) in (0..).zip(members) {
        let part = out.get(rank, AllGatherGemm::C).expect("every rank gives its columns of C back");
        c.paste(0, op.cols(members.len() as u32, place).start, part);
    }
    c
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
                        let how = How { world, plan, lanes, slices, schedule_seed: 9, ..HOW };
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

/// Two epochs, each with its own inputs, for a world of one rank: right against f64, and what all others are compared with.
fn reference_epochs([m, n, k]: [u64; 3]) -> (Vec<(Tensor, Tensor)>, Vec<Tensor>) {
    let inputs: Vec<_> =
        (0..2).map(|e| (random(DType::Bf16, e, 0, m, k), random(DType::Bf16, e, 1, k, n))).collect();
    let one = Runner::new([m, n, k], DType::Bf16, How { world: 1, ..HOW }).run_epochs(&inputs);
    one.iter().zip(&inputs).for_each(|(c, (a, b))| assert_product(c, a, b));
    assert_ne!(one[0], one[1]);
    (inputs, one)
}

/// Ranks of several nodes give what one rank gives: both plans, both ways to gather, networks with and without order, two
/// epochs back to back, several schedules.
fn nodes_give_the_bits_of_one_rank(sizes: [u64; 3], worlds: &[(u32, u32)], lanes: u16) {
    let (inputs, one) = reference_epochs(sizes);
    let mut schedule_seed = 0;
    for &(nodes, world) in worlds {
        for (plan, gather) in PLANS.into_iter().flat_map(|p| GATHERS.map(|g| (p, g))) {
            for ordered in [true, false] {
                schedule_seed += 1;
                let how = How { nodes, world, ordered, plan, gather, lanes, schedule_seed, ..HOW };
                let all = Runner::new(sizes, DType::Bf16, how).run_epochs(&inputs);
                assert!(all == one, "other bits with {how:?}");
            }
        }
    }
}

#[test]
fn few_ranks_on_several_nodes_give_the_bits_of_one() {
    nodes_give_the_bits_of_one_rank([1100, 264, 192], &[(1, 5), (2, 2), (2, 6), (3, 6), (2, 8), (8, 8)], 5);
}

#[test]
fn worlds_of_24_and_32_ranks_give_the_bits_of_one() {
    nodes_give_the_bits_of_one_rank([32 * 130, 264, 64], &[(3, 24), (4, 32)], 9);
}

#[test]
fn shards_smaller_than_the_world_give_the_bits_of_one() {
    nodes_give_the_bits_of_one_rank([9, 40, 128], &[(3, 24), (4, 32)], 132);
}

#[test]
fn uneven_nodes_give_the_bits_of_one() {
    let sizes = [1100, 264, 192];
    let (inputs, one) = reference_epochs(sizes);
    for (toml, ordered) in [(worlds::UNEVEN, true), (worlds::UNEVEN, false), (worlds::GROUPS, true)] {
        for (plan, gather) in PLANS.into_iter().flat_map(|p| GATHERS.map(|g| (p, g))) {
            let network = if ordered { Rdma::ordered() } else { Rdma::unordered() };
            let registry = worlds::described(toml, network);
            for schedule_seed in [0, 1] {
                let gpus = Simulator::builder(&registry).schedule_seed(schedule_seed).build();
                let members = registry.topology().ranks().collect();
                let op = How { plan, gather, ..HOW }.op(sizes, DType::Bf16);
                let all = Runner::with(op, members, &registry, gpus).run_epochs(&inputs);
                assert!(
                    all == one,
                    "other bits: {plan}, {gather}, ordered {ordered}, seed {schedule_seed}\n{toml}"
                );
            }
        }
    }
}

/// What the planner takes when nothing is asked for.
#[test]
fn the_chosen_plan_gives_the_bits_of_one() {
    for sizes in [[16, 2056, 64], [1100, 264, 192]] {
        let (inputs, one) = reference_epochs(sizes);
        for (nodes, world) in [(1, 8), (2, 8), (3, 24)] {
            let registry = How { nodes, world, ..HOW }.registry();
            let [m, n, k] = sizes;
            let members = registry.topology().ranks().collect();
            let gpus = Simulator::builder(&registry).build();
            let mut runner = Runner::with(AllGatherGemm::new(m, n, k, DType::Bf16), members, &registry, gpus);
            assert!(runner.run_epochs(&inputs) == one, "other bits on {world} ranks, {sizes:?}");
        }
    }
}

/// Ranks of a world, in an order of their own, on all of its nodes.
#[test]
fn a_group_of_ranks_gives_the_bits_of_one() {
    let sizes = [700, 264, 192];
    let (inputs, one) = reference_epochs(sizes);
    let registry = How { nodes: 3, world: 12, ..HOW }.registry();
    for (plan, gather) in PLANS.into_iter().flat_map(|p| GATHERS.map(|g| (p, g))) {
        let members: Vec<Rank> = [9, 2, 4, 11, 3, 0].map(Rank).into();
        let op = How { plan, gather, ..HOW }.op(sizes, DType::Bf16).group(members.clone());
        let gpus = Simulator::builder(&registry).schedule_seed(3).build();
        let all = Runner::with(op, members, &registry, gpus).run_epochs(&inputs);
        assert!(all == one, "other bits: {plan}, {gather}");
    }
}

/// Two groups without a rank in common are two programs of one session, and may take turns.
#[test]
fn two_groups_run_in_one_session() {
    let sizes = [700, 264, 192];
    let (inputs, one) = reference_epochs(sizes);
    let registry = How { nodes: 2, world: 8, ..HOW }.registry();
    let groups: [Vec<Rank>; 2] = [[6, 0, 3].map(Rank).into(), [1, 7, 5, 4].map(Rank).into()];
    let runners = groups.map(|members| {
        let op = HOW.op(sizes, DType::Bf16).group(members.clone());
        Runner::with(op, members, &registry, Simulator::builder(&registry).build())
    });
    let mut gpus = Simulator::builder(&registry).schedule_seed(7).build();
    let turns = [(0, 0), (1, 1), (1, 0), (0, 1)];
    let bound = turns.map(|(g, e)| bindings(&runners[g].op, &runners[g].members, &inputs[e].0, &inputs[e].1));
    let runs: Vec<_> = turns.iter().zip(&bound).map(|(&(g, _), b)| (&runners[g].program, b)).collect();
    let all = gpus.run_sequence(&runs).unwrap();
    for ((g, e), out) in turns.into_iter().zip(&all) {
        let (a, b) = &inputs[e];
        assert!(gathered(&runners[g].op, &runners[g].members, out, a, b) == one[e], "group {g}, inputs {e}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn a_hundred_numbers_of_rows_are_right_in_any_world(
        m in 0u64..=3000, n in 1u64..5, k in 1u64..13, world in 0usize..12, lanes in 1u16..20, slices in 1u16..8,
        schedule_seed in 0u64..1000, fused: bool, push: bool, ordered: bool,
    ) {
        let (nodes, world) =
            [(1, 1), (1, 2), (1, 3), (1, 5), (2, 6), (3, 6), (2, 8), (1, 8), (3, 24), (4, 32), (4, 4), (2, 10)][world];
        let (plan, gather) = (if fused { Plan::Fused } else { Plan::Unfused }, if push { Gather::Push } else { Gather::Pull });
        let (a, b) =
            (random(DType::F16, schedule_seed, 0, m, 8 * k), random(DType::F16, schedule_seed, 1, 8 * k, 8 * n));
        let how = How { nodes, world, ordered, plan, gather, lanes, slices, schedule_seed };
        assert_product(&run(&a, &b, how), &a, &b);
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
        assert_product(&run(&a, &b, How { world, plan, lanes, slices, schedule_seed, ..HOW }), &a, &b);
    }
}
