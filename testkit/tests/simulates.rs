//! Random programs run under many schedules, in all weathers, without a finding and with exactly the expected bits.

mod common;

use common::weather;
use mk_compute::{AllGatherGemm, Plan};
use mk_core::{Bindings, DType, Hardware, Rank, Registry, Tensor, World};
use mk_sim::Simulator;
use proptest::prelude::*;
use testkit::random::{Params, Random, params};

/// Runs some epochs back to back under one schedule, and says what is wrong.
fn run(random: &Random, seed: u64, epochs: u64) -> Result<(), String> {
    let proved =
        random.program.clone().verify(&random.registry, &Hardware::h200()).map_err(|e| e.to_string())?;
    let mut sim = Simulator::builder(&random.registry).schedule_seed(seed).faults(weather(seed)).build();
    let inputs: Vec<Bindings> = (1..=epochs).map(|e| random.inputs(e)).collect();
    let outputs = sim.run_epochs(&proved, &inputs).map_err(|e| format!("seed {seed}: {e}"))?;
    for (i, output) in outputs.iter().enumerate() {
        if *output != random.outputs(i as u64 + 1) {
            return Err(format!("seed {seed}: other bits in epoch {}", i + 1));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_random_program_gives_the_expected_bits_under_any_schedule(params in params(), seed in any::<u32>()) {
        let random = Random::new(&params).unwrap();
        for turn in 0..4 {
            prop_assert_eq!(run(&random, u64::from(seed) * 4 + turn, 3), Ok(()));
        }
    }
}

#[test]
fn a_hundred_schedules_of_each_of_a_dozen_programs_give_the_same_bits() {
    for program in 0..12 {
        let random = Random::new(&Params::from_seed(program * 31)).unwrap();
        for seed in 0..100 {
            assert_eq!(run(&random, seed, 2), Ok(()), "program {program}, {:?}", random.params);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_gathered_product_gives_the_same_bits_everywhere(
        ranks in 1u64..=8,
        m in prop_oneof![0u64..=20, 120u64..=140],
        n in 1u64..=20,
        k in 0u64..=32,
        half in any::<bool>(),
        lanes in 1u16..=4,
        seed in any::<u32>(),
    ) {
        let (n, k) = (8 * n, 8 * k);
        let dtype = if half { DType::F16 } else { DType::Bf16 };
        let registry = Registry::builder()
            .transport(mk_nvlink::NvLink::new())
            .handlers(mk_compute::handlers())
            .build(&World::local(ranks).unwrap())
            .unwrap();
        let data = |tag: u64, rows: u64, cols: u64| -> Vec<f32> {
            reference::uniform_block(seed.into(), tag, [0, 0], [rows, cols]).iter().map(|x| (x * 1.4).round()).collect()
        };
        let (a, b) = (data(0, m, k), data(1, k, n));
        let c = reference::matmul(&a, &b, m as usize, k as usize, n as usize);
        let c: Vec<f32> = c.iter().map(|&x| x as f32).collect();
        let [a, b, c] = [(m, k, &a), (k, n, &b), (m, n, &c)]
            .map(|(rows, cols, values)| Tensor::from_f32(dtype, rows, cols, values));
        for plan in [Plan::Fused, Plan::Unfused] {
            let op = AllGatherGemm::new(m, n, k, dtype).plan_kind(plan).lanes(lanes);
            let proved = op.plan(&registry).unwrap().verify(&registry, &Hardware::h200()).unwrap();
            let mut inputs = Bindings::new();
            let mut want = Bindings::new();
            for r in 0..ranks as u32 {
                let (rows, cols) = (op.rows(ranks as u32, r), op.cols(ranks as u32, r));
                let width = cols.end - cols.start;
                let rank = Rank(r as u16);
                inputs.set(rank, AllGatherGemm::A, a.slice(rows.start, rows.end - rows.start, 0, k));
                inputs.set(rank, AllGatherGemm::B, b.slice(0, k, cols.start, width));
                want.set(rank, AllGatherGemm::C, c.slice(0, m, cols.start, width));
            }
            for turn in 0..3 {
                let seed = u64::from(seed) + turn;
                let mut sim = Simulator::builder(&registry).schedule_seed(seed).faults(weather(seed)).build();
                let got = sim.run_epochs(&proved, &[inputs.clone(), inputs.clone()]).unwrap();
                prop_assert!(got.iter().all(|g| *g == want), "other bits: {plan}, seed {seed}");
            }
        }
    }
}
