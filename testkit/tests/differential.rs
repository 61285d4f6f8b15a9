//! Random programs with random changes: whatever the verifier proves, the brute-force scheduler must call harmless.

use mk_core::{Error, Hardware};
use std::collections::BTreeMap;
use testkit::brute::{self, Bounds, Outcome};
use testkit::mutate::{self, Kind, Mutant};
use testkit::random::{Params, Random};

/// A random program that is small enough to be explored.
fn small(seed: u64) -> Random {
    let mut params = Params::from_seed(seed);
    params.nodes.truncate(1 + seed as usize % 2);
    params.nodes.iter_mut().for_each(|n| *n = (*n).min(2 + seed as u32 % 2));
    params.stages = params.stages.min(4);
    params.chunks.truncate(2);
    params.units = params.units.min(2);
    Random::new(&params).expect("any parameters give a program")
}

/// One change; or two, one on top of the other; or either of them with all counts made to fit again.
fn mutant(random: &Random, kind: Kind, seed: u64) -> Option<Mutant> {
    let mut m = mutate::pick(&random.program, &random.registry, kind, seed)?;
    if seed % 4 >= 2 {
        let second = Kind::ALL[(seed / 4) as usize % Kind::ALL.len()];
        let next = mutate::pick(&m.program, &random.registry, second, seed / 8)?;
        m = Mutant { what: format!("{}; {}: {}", m.what, next.place, next.what), ..next };
    }
    if seed % 2 == 1 {
        mutate::retotal(&mut m.program, &random.registry);
    }
    Some(m)
}

fn explore(seeds: std::ops::Range<u64>) {
    let mut table: BTreeMap<String, usize> = BTreeMap::new();
    for seed in seeds {
        let random = small(seed);
        let bounds = Bounds { states: 20_000, ..Bounds::fitting(&random.program) };
        let found = brute::explore(&random.program, &random.registry, &bounds, None);
        assert_eq!(found.outcome, Outcome::Harmless, "seed {seed}: {:?}", random.params);
        for (i, kind) in Kind::ALL.into_iter().enumerate() {
            for turn in 0..2 {
                let seed = seed * 97 + i as u64 * 13 + turn * 5;
                let Some(m) = mutant(&random, kind, seed) else { continue };
                let verdict = m.program.clone().verify(&random.registry, &Hardware::h200());
                let who = match &verdict {
                    Ok(_) => "proved".to_string(),
                    Err(Error::NotProved { finding, .. }) => format!("{:?}", finding.kind),
                    Err(e) => panic!("{e}"),
                };
                let bounds = Bounds { states: 20_000, ..Bounds::fitting(&m.program) };
                let found = brute::explore(&m.program, &random.registry, &bounds, Some(&random.program));
                if verdict.is_ok() {
                    assert!(
                        matches!(found.outcome, Outcome::Harmless | Outcome::Changed(_)),
                        "proved, but not harmless: {:?}, {}: {}\n{:?}",
                        random.params,
                        m.place,
                        m.what,
                        found.outcome
                    );
                }
                let truth = format!("{:?}", found.outcome);
                let truth = truth.split(['(', ' ']).next().unwrap_or_default();
                *table.entry(format!("{who:<13} | {truth}")).or_default() += 1;
            }
        }
    }
    for (row, n) in &table {
        println!("  {n:>5}  {row}");
    }
    let of = |row: &str| table.iter().filter(|(k, _)| k.contains(row)).map(|(_, n)| n).sum::<usize>();
    assert!(of("proved") > 50 && of("Differs") > 50 && of("Deadlock") > 50, "the mutants are too much alike");
}

#[test]
fn what_is_proved_is_harmless_1() {
    explore(0..25);
}

#[test]
fn what_is_proved_is_harmless_2() {
    explore(1_000..1_025);
}

#[test]
fn what_is_proved_is_harmless_3() {
    explore(2_000..2_025);
}
