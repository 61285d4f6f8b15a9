//! `mk bench`: measures, compares with bars, and writes the samples down.

mod record;

use super::problem::{Files, Product, gather, shards};
use crate::args::BenchSim;
use crate::console::Console;
use crate::error::{Exit, Failure, internal};
use crate::{check, setup, target};
use mk_compute::AllGatherGemm;
use mk_core::{Bindings, DType, Explanation, Hardware, Program, Registry, Session as _, Verified};
use mk_sim::{Mode, Simulator};
use record::{Case, Record};
use serde_json::json;
use std::time::Instant;

/// What the record is called.
const NAME: &str = "sim";
/// Ranks of all plans.
const RANKS: u64 = 8;
/// Rows of A and depth of the plans that are measured in tasks a second.
const M: u64 = 65_536;
const K: u64 = 8_192;
/// Columns of B: about 16 thousand, 130 thousand and a million tiles.
const COLUMNS: [u64; 3] = [8_192, 65_536, 524_288];
/// Tasks a second that the verifier and the simulator must reach on one core.
const TASKS_PER_SECOND: f64 = 1e6;
/// Time per task of the largest plan over that of the smallest: linear, with room for caches that no longer hold it.
const LINEAR: f64 = 2.0;
/// Side of the matrices that are multiplied on eight ranks, and the time that this may take.
const SIDE: u64 = 1024;
const SECONDS: f64 = 10.0;

/// `mk bench sim`.
pub(crate) fn sim(args: &BenchSim, console: &mut Console<'_>) -> Result<(), Failure> {
    if let Some(folder) = &args.out {
        target::check(&folder.join(Record::new(NAME, Vec::new()).file_name()))?;
    }
    let registry = setup::registry(&setup::uniform(1, RANKS)?)?;
    let mut cases = Vec::new();
    let mut per_task = [Vec::new(), Vec::new()];
    for n in COLUMNS {
        let measured = {
            let _step = console.step(format!("measuring {M} x {n} x {K}"));
            throughput(&registry, n, args.samples)?
        };
        per_task[0].push(record::median(&measured[1].ours));
        per_task[1].push(record::median(&measured[2].ours));
        for case in measured {
            console.say(&case.name, case.text(args.of_bar));
            cases.push(case);
        }
    }
    for (what, rates) in ["verify", "simulate"].into_iter().zip(&per_task) {
        let growth = rates[0] / rates[rates.len() - 1];
        let name = format!("{what}: time per task, largest plan over smallest");
        let case = Case::at_most(name, json!({ "columns": COLUMNS }), "ratio", vec![growth], LINEAR);
        console.say(&case.name, case.text(args.of_bar));
        cases.push(case);
    }
    let values = {
        let _step = console.step("multiplying");
        values(args)?
    };
    console.say(&values.name, values.text(args.of_bar));
    cases.push(values);
    finish(cases, args, console)
}

/// Plan, verify and simulate (every check on) one size, in tasks a second on one core.
fn throughput(registry: &Registry, n: u64, samples: u16) -> Result<[Case; 3], Failure> {
    let hardware = Hardware::h200();
    let (mut plans, mut proofs, mut runs) = (Vec::new(), Vec::new(), Vec::new());
    let mut tasks = 0;
    for _ in 0..samples {
        let start = Instant::now();
        let program = AllGatherGemm::new(M, n, K, DType::Bf16).plan(registry)?;
        tasks = program.tasks.len();
        plans.push(rate(&program, start));
        let start = Instant::now();
        let verified = program.verify(registry, &hardware)?;
        proofs.push(rate(verified.program(), start));
        runs.push(simulate(registry, &verified)?);
    }
    let name = |what: &str| format!("{what}, {tasks} tasks");
    let params = json!({ "ranks": RANKS, "m": M, "n": n, "k": K, "tasks": tasks });
    Ok([
        Case::free(name("plan"), params.clone(), "tasks/s", plans),
        Case::at_least(name("verify"), params.clone(), "tasks/s", proofs, TASKS_PER_SECOND),
        Case::at_least(name("simulate, timing"), params, "tasks/s", runs, TASKS_PER_SECOND),
    ])
}

fn rate(program: &Program, start: Instant) -> f64 {
    program.tasks.len() as f64 / start.elapsed().as_secs_f64()
}

fn simulate(registry: &Registry, verified: &Verified) -> Result<f64, Failure> {
    let mut simulator = Simulator::builder(registry).mode(Mode::Timing).build();
    let start = Instant::now();
    simulator.run(verified, &Bindings::new())?;
    Ok(rate(verified.program(), start))
}

/// Seconds to plan, prove and compute a product on eight simulated ranks; the last result is compared with f64.
fn values(args: &BenchSim) -> Result<Case, Failure> {
    let product = Product::sized([SIDE; 3], setup::uniform(1, RANKS)?)?;
    let [a, b] = product.operands(Files::default(), 0);
    let (mut seconds, mut c) = (Vec::new(), None);
    for _ in 0..args.samples {
        let start = Instant::now();
        let verified = product.plan()?.verify(&product.registry, &product.hardware)?;
        let outputs =
            Simulator::builder(&product.registry).build().run(&verified, &shards(&product, &a, &b))?;
        c = gather(&product, &outputs);
        seconds.push(start.elapsed().as_secs_f64());
    }
    let c = c.ok_or_else(|| Failure::new(Exit::Internal, internal("the run gave back no C".into())))?;
    check::product(&a, &b, &c)?;
    let params = json!({ "ranks": RANKS, "m": SIDE, "n": SIDE, "k": SIDE });
    let name = format!("{SIDE} x {SIDE} x {SIDE} on {RANKS} ranks, values");
    Ok(Case::at_most(name, params, "s", seconds, SECONDS))
}

/// Writes the record, shows it, and fails if a bar was missed.
fn finish(cases: Vec<Case>, args: &BenchSim, console: &mut Console<'_>) -> Result<(), Failure> {
    let missed: Vec<String> =
        cases.iter().filter(|c| !c.passes(args.of_bar)).map(|c| c.name.clone()).collect();
    let record = Record::new(NAME, cases);
    if let Some(folder) = &args.out {
        let path = folder.join(record.file_name());
        target::write(&path, |to| {
            serde_json::to_writer_pretty(&mut *to, &record)?;
            to.write_all(b"\n")
        })?;
        console.say("wrote", path.display().to_string());
    }
    console.object(&record);
    if missed.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Wrong,
        Explanation {
            kind: "bench",
            message: "a bar was missed".into(),
            given: missed.join("; "),
            allowed: format!("{} of each bar", args.of_bar),
            hint: "measure again on an idle machine, in a release build".into(),
        },
    ))
}
