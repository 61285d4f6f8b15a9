//! Shipped operators, small enough to be explored: harmless, and so are their mutants if they are proved.

use mk_compute::{AllGatherGemm, Plan};
use mk_core::{DType, Hardware, Registry, World};
use testkit::brute::{self, Bounds, Outcome};
use testkit::kit::Case;
use testkit::mutate::{self, Kind};

fn all_gather_gemm(ranks: u64, [m, n, k]: [u64; 3], plan: Plan, lanes: u16) -> Case {
    let registry = Registry::builder()
        .transport(mk_nvlink::NvLink::new())
        .handlers(mk_compute::handlers())
        .build(&World::local(ranks).expect("a legal world"))
        .expect("a registry");
    let op = AllGatherGemm::new(m, n, k, DType::Bf16).plan_kind(plan).lanes(lanes);
    let program = op.plan(&registry).expect("legal sizes");
    Case {
        name: format!("all_gather_gemm({ranks}, {m} x {n} x {k}, {plan}, {lanes} lanes)"),
        program,
        registry,
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for plan in [Plan::Fused, Plan::Unfused] {
        for (ranks, m, k, lanes) in
            [(1, 3, 64, 1), (2, 4, 128, 1), (2, 3, 128, 2), (3, 5, 64, 1), (4, 2, 64, 2)]
        {
            cases.push(all_gather_gemm(ranks, [m, 8 * ranks, k], plan, lanes));
        }
    }
    cases
}

#[test]
fn every_schedule_of_a_gathered_product_gives_the_same() {
    for case in cases() {
        let report = brute::explore(&case.program, &case.registry, &Bounds::fitting(&case.program), None);
        println!("{}: {} tasks, {} actions", case.name, case.program.tasks.len(), report.actions);
        assert_eq!(report.outcome, Outcome::Harmless, "{}", case.name);
    }
}

#[test]
fn mutants_of_a_gathered_product_that_are_proved_are_harmless() {
    let (mut proved, mut refuted) = (0, 0);
    for case in cases() {
        for kind in Kind::ALL {
            for m in mutate::all(&case.program, &case.registry, kind).iter().step_by(5) {
                if m.program.clone().verify(&case.registry, &Hardware::h200()).is_err() {
                    refuted += 1;
                    continue;
                }
                proved += 1;
                let found = brute::explore(
                    &m.program,
                    &case.registry,
                    &Bounds::fitting(&m.program),
                    Some(&case.program),
                );
                assert!(
                    matches!(found.outcome, Outcome::Harmless | Outcome::Changed(_)),
                    "{}: {} {}: {:?}",
                    case.name,
                    m.place,
                    m.what,
                    found.outcome
                );
            }
        }
    }
    println!("{proved} proved and harmless, {refuted} refuted");
    assert!(proved > 50 && refuted > 500, "{proved} proved, {refuted} refuted");
}
