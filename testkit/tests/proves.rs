//! Random programs are proved, and compute exactly what they must.

use mk_compute::{AllGatherGemm, Plan};
use mk_core::{Bindings, DType, Hardware, Program, Rank, Registry, Tensor, World};
use proptest::prelude::*;
use std::collections::HashSet;
use testkit::random::{Params, Random, params};
use testkit::serial::Serial;

fn proves(program: &Program, registry: &Registry) -> Result<(), String> {
    program.clone().verify(registry, &Hardware::h200()).map(|_| ()).map_err(|e| e.to_string())
}

fn runs(random: &Random, epochs: u64) -> Result<(), String> {
    let mut serial = Serial::new(&random.program, &random.registry).map_err(|e| e.to_string())?;
    for epoch in 1..=epochs {
        let outputs = serial.run(&random.inputs(epoch)).map_err(|e| e.to_string())?;
        if outputs != random.outputs(epoch) {
            return Err(format!("other outputs in epoch {epoch}"));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_random_program_is_proved_and_computes_what_it_must(params in params()) {
        let random = Random::new(&params).unwrap();
        prop_assert_eq!(proves(&random.program, &random.registry), Ok(()));
        prop_assert_eq!(runs(&random, 3), Ok(()));
    }
}

#[test]
fn random_programs_of_many_seeds_are_proved() {
    let mut handlers: HashSet<String> = HashSet::new();
    for seed in 0..600 {
        let random = Random::new(&Params::from_seed(seed)).unwrap();
        handlers.extend(random.program.handlers.iter().map(|h| h.name.clone()));
        assert_eq!(proves(&random.program, &random.registry), Ok(()), "seed {seed}, {:?}", random.params);
    }
    for name in [
        "add",
        "cast",
        "gemm",
        "scale",
        "swiglu",
        "nvlink.get",
        "nvlink.put",
        "nvlink.put_signal",
        "nvlink.reduce_put",
        "nvlink.signal",
        "rdma.get",
        "rdma.put_signal",
        "rdma.signal",
    ] {
        assert!(handlers.contains(name), "no random program uses {name}");
    }
}

#[test]
fn one_task_after_the_other_gives_the_expected_bits() {
    let mut distinct = HashSet::new();
    for seed in 0..200 {
        let random = Random::new(&Params::from_seed(seed)).unwrap();
        assert_eq!(runs(&random, 3), Ok(()), "seed {seed}, {:?}", random.params);
        distinct.extend((1..=3).map(|e| random.outputs(e).get(Rank(0), "y").unwrap().bytes.clone()));
    }
    assert!(distinct.len() > 500, "the data are too much alike: {} different outputs", distinct.len());
}

/// A product of these sizes on `ranks` ranks: its program, its inputs and what comes out on each rank, in f64.
struct Product {
    program: Program,
    registry: Registry,
    inputs: Bindings,
    outputs: Bindings,
}

fn product(ranks: u64, [m, n, k]: [u64; 3], dtype: DType, plan: Plan, lanes: u16) -> Product {
    let registry = Registry::builder()
        .transport(mk_nvlink::NvLink::new())
        .handlers(mk_compute::handlers())
        .build(&World::local(ranks).expect("a legal world"))
        .expect("a registry");
    let op = AllGatherGemm::new(m, n, k, dtype).plan_kind(plan).lanes(lanes);
    let program = op.plan(&registry).expect("legal sizes");
    // Integers of -1 to 1: every partial sum is exact in f32, and in fp16 and bf16 for K up to 256.
    let data = |tag: u64, rows: u64, cols: u64| -> Vec<f32> {
        reference::uniform_block(7, tag, [0, 0], [rows, cols]).iter().map(|x| (x * 1.5).round()).collect()
    };
    let (a, b) = (data(0, m, k), data(1, k, n));
    let c: Vec<f32> =
        reference::matmul(&a, &b, m as usize, k as usize, n as usize).iter().map(|&x| x as f32).collect();
    let (a, b, c) = (
        Tensor::from_f32(dtype, m, k, &a),
        Tensor::from_f32(dtype, k, n, &b),
        Tensor::from_f32(dtype, m, n, &c),
    );
    let (mut inputs, mut outputs) = (Bindings::new(), Bindings::new());
    for r in 0..ranks as u32 {
        let (rows, cols) = (op.rows(ranks as u32, r), op.cols(ranks as u32, r));
        let (at, width) = (cols.start, cols.end - cols.start);
        inputs.set(Rank(r as u16), AllGatherGemm::A, a.slice(rows.start, rows.end - rows.start, 0, k));
        inputs.set(Rank(r as u16), AllGatherGemm::B, b.slice(0, k, at, width));
        outputs.set(Rank(r as u16), AllGatherGemm::C, c.slice(0, m, at, width));
    }
    Product { program, registry, inputs, outputs }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_gathered_product_is_proved_and_right(
        ranks in 1u64..=8,
        m in prop_oneof![0u64..=20, 120u64..=140, 250u64..=260],
        n in 1u64..=40,
        k in 0u64..=32,
        half in any::<bool>(),
        fused in any::<bool>(),
        lanes in 1u16..=4,
    ) {
        let dtype = if half { DType::F16 } else { DType::Bf16 };
        let plan = if fused { Plan::Fused } else { Plan::Unfused };
        let p = product(ranks, [m, 8 * n, 8 * k], dtype, plan, lanes);
        prop_assert_eq!(proves(&p.program, &p.registry), Ok(()));
        let mut serial = Serial::new(&p.program, &p.registry).unwrap();
        for _ in 0..2 {
            prop_assert!(serial.run(&p.inputs).unwrap() == p.outputs, "other bits");
        }
    }
}
