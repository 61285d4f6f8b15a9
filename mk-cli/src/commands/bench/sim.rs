//! `mk bench sim`: planner, verifier and simulator, on AllGather+GEMM plans of growing size.

use super::plot::{Panel, Point};
use super::record::{Case, Record, median};
use super::{Bench, Measurement, peak};
use crate::commands::problem::{Files, Product, gather, shards};
use crate::console::count;
use crate::error::{Exit, Failure, internal};
use crate::{check, setup};
use mk_core::{Bindings, Session as _};
use mk_sim::{Checks, Mode, Simulator};
use serde_json::{Value, json};
use std::time::Instant;

pub(super) const BENCH: Bench = Bench {
    name: "sim",
    about: "planner, verifier and simulator, on AllGather+GEMM plans of up to two million tasks",
    measure,
    shows: "time against tasks",
    panels,
};

/// A product, and the world that computes it.
struct Size {
    ranks: u64,
    nodes: u64,
    m: u64,
    n: u64,
    k: u64,
}

/// One node: about 20 thousand, 150 thousand and a million tasks, most of them tiles.
const NODE: [Size; 3] = [
    Size { ranks: 8, nodes: 1, m: 65_536, n: 8_192, k: 8_192 },
    Size { ranks: 8, nodes: 1, m: 65_536, n: 65_536, k: 8_192 },
    Size { ranks: 8, nodes: 1, m: 65_536, n: 524_288, k: 8_192 },
];
/// A cluster: the last is a thousand GPUs. A tile for each row block and rank, and as many pushes.
const CLUSTER: [Size; 3] = [
    Size { ranks: 256, nodes: 32, m: 16_384, n: 65_536, k: 8_192 },
    Size { ranks: 512, nodes: 64, m: 32_768, n: 131_072, k: 8_192 },
    Size { ranks: 1_024, nodes: 128, m: 65_536, n: 262_144, k: 8_192 },
];

/// Tasks a second that the verifier and the simulator must reach on one core, on plans of one node.
const TASKS_PER_SECOND: f64 = 1e6;
/// Time per task of the largest plan over that of the smallest: linear, with room for caches that no longer hold it.
const LINEAR: f64 = 2.0;
/// Time with all detectors over time with none.
const CHECKS: f64 = 2.5;
/// What the largest cluster may take: seconds to plan, prove and simulate, and GiB.
const CLUSTER_SECONDS: f64 = 60.0;
const CLUSTER_GIB: f64 = 8.0;
/// Side of the matrices that are multiplied on eight ranks, and the seconds that this may take.
const SIDE: u64 = 1024;
const SIDE_SECONDS: f64 = 10.0;

/// What is timed, in its order.
const STEPS: [&str; 3] = ["plan", "prove", "simulate"];

/// Seconds of each step, in samples, and of a simulation without detectors.
#[derive(Default)]
struct Times {
    tasks: usize,
    steps: [Vec<f64>; 3],
    unchecked: Vec<f64>,
    /// The most memory of the process, in GiB, where it can be told.
    peak: Vec<f64>,
}

fn measure(m: &mut Measurement<'_, '_>) -> Result<(), Failure> {
    one_node(m)?;
    cluster(m)?;
    let values = values(m)?;
    m.keep(values);
    Ok(())
}

fn one_node(m: &mut Measurement<'_, '_>) -> Result<(), Failure> {
    let samples = m.samples();
    let mut all = Vec::new();
    for (i, size) in NODE.iter().enumerate() {
        // What detectors cost shows where a run takes a second, not where it takes a few milliseconds.
        let largest = i + 1 == NODE.len();
        let times = size.times(m, samples, largest)?;
        let rate = |step: usize| {
            let rates = times.steps[step].iter().map(|s| times.tasks as f64 / s).collect();
            Case::new(size.name(STEPS[step], &times), size.params(STEPS[step], &times), "tasks/s", rates)
        };
        m.keep(rate(0));
        m.keep(rate(1).at_least(TASKS_PER_SECOND));
        m.keep(rate(2).at_least(TASKS_PER_SECOND));
        if largest {
            let name = size.name("every check on", &times);
            let checked = Case::new(name, size.params("checks", &times), "s", times.steps[2].clone());
            m.keep(checked.against("no checks", times.unchecked.clone()).at_most(CHECKS));
        }
        all.push(times);
    }
    linear(m, &NODE, &all);
    Ok(())
}

fn cluster(m: &mut Measurement<'_, '_>) -> Result<(), Failure> {
    let samples = m.few_samples();
    let mut all = Vec::new();
    for (i, size) in CLUSTER.iter().enumerate() {
        let times = size.times(m, samples, false)?;
        for (step, seconds) in STEPS.iter().zip(&times.steps) {
            m.keep(Case::new(size.name(step, &times), size.params(step, &times), "s", seconds.clone()));
        }
        let sums = (0..usize::from(samples)).map(|i| times.steps.iter().map(|s| s[i]).sum());
        let total =
            Case::new(size.name("all three", &times), size.params("total", &times), "s", sums.collect());
        let largest = i + 1 == CLUSTER.len();
        m.keep(if largest { total.at_most(CLUSTER_SECONDS) } else { total });
        if !times.peak.is_empty() {
            let name = size.name("most memory", &times);
            let peak = Case::new(name, size.params("memory", &times), "GiB", times.peak.clone());
            m.keep(if largest { peak.at_most(CLUSTER_GIB) } else { peak });
        }
        all.push(times);
    }
    linear(m, &CLUSTER, &all);
    Ok(())
}

/// Compares the time per task of the largest size with that of the smallest.
fn linear(m: &mut Measurement<'_, '_>, sizes: &[Size], all: &[Times]) {
    let (Some(small), Some(large), Some(size)) = (all.first(), all.last(), sizes.last()) else { return };
    for (step, name) in STEPS.iter().enumerate().skip(1) {
        let per_task = |t: &Times| median(&t.steps[step]) / t.tasks as f64;
        let tasks = [small.tasks, large.tasks];
        let name = format!("{name}, {}: time per task, largest plan over smallest", size.world());
        let params = json!({ "world": size.world(), "tasks": tasks });
        m.keep(Case::new(name, params, "ratio", vec![per_task(large) / per_task(small)]).at_most(LINEAR));
    }
}

impl Size {
    fn world(&self) -> String {
        let Size { ranks, nodes, .. } = self;
        let [least, most] = [CLUSTER[0].ranks, CLUSTER[CLUSTER.len() - 1].ranks];
        match nodes {
            1 => format!("{ranks} ranks of 1 node"),
            _ => format!("{least} to {most} ranks, {} a node", ranks / nodes),
        }
    }

    fn name(&self, what: &str, times: &Times) -> String {
        let Size { ranks, nodes, .. } = self;
        format!("{what}, {} tasks on {ranks} ranks of {}", times.tasks, count(*nodes, "node"))
    }

    fn params(&self, step: &str, times: &Times) -> Value {
        let Size { ranks, nodes, m, n, k } = self;
        json!({
            "step": step, "world": self.world(), "ranks": ranks, "nodes": nodes, "m": m, "n": n, "k": k,
            "tasks": times.tasks,
        })
    }

    /// Plans, proves and simulates, so many times.
    fn times(
        &self,
        measurement: &Measurement<'_, '_>,
        samples: u16,
        unchecked: bool,
    ) -> Result<Times, Failure> {
        let Size { ranks, m, n, k, .. } = *self;
        let bar = measurement.bar(format!("{m} x {n} x {k} on {ranks} ranks"), samples);
        let shown = bar.listener();
        let mut times = Times::default();
        for sample in 0..samples {
            self.time(&mut times, unchecked)?;
            shown(u64::from(sample) + 1, samples.into());
        }
        Ok(times)
    }

    fn time(&self, times: &mut Times, unchecked: bool) -> Result<(), Failure> {
        let counted = peak::restart();
        let mut start = Instant::now();
        let mut lap = |samples: &mut Vec<f64>| {
            samples.push(start.elapsed().as_secs_f64());
            start = Instant::now();
        };
        let product = Product::sized([self.m, self.n, self.k], setup::uniform(self.nodes, self.ranks)?)?;
        let program = product.plan()?;
        times.tasks = program.tasks.len();
        lap(&mut times.steps[0]);
        let verified = program.verify(&product.registry, &product.hardware)?;
        lap(&mut times.steps[1]);
        let run = |checks| -> Result<(), Failure> {
            let builder = Simulator::builder(&product.registry).mode(Mode::Timing);
            builder.checks(checks).build().run(&verified, &Bindings::new())?;
            Ok(())
        };
        run(Checks::all())?;
        lap(&mut times.steps[2]);
        times.peak.extend(counted.then(peak::gib).flatten());
        if unchecked {
            run(Checks::none())?;
            lap(&mut times.unchecked);
        }
        Ok(())
    }
}

/// Seconds to plan, prove and compute a product on eight simulated ranks; the last result is compared with f64.
fn values(m: &Measurement<'_, '_>) -> Result<Case, Failure> {
    let ranks = NODE[0].ranks;
    let product = Product::sized([SIDE; 3], setup::uniform(1, ranks)?)?;
    let [a, b] = product.operands(Files::default(), 0);
    let bar = m.bar("multiplying", m.samples());
    let shown = bar.listener();
    let (mut seconds, mut c) = (Vec::new(), None);
    for sample in 0..m.samples() {
        let start = Instant::now();
        let verified = product.plan()?.verify(&product.registry, &product.hardware)?;
        let outputs =
            Simulator::builder(&product.registry).build().run(&verified, &shards(&product, &a, &b))?;
        c = gather(&product, &outputs);
        seconds.push(start.elapsed().as_secs_f64());
        shown(u64::from(sample) + 1, m.samples().into());
    }
    let c = c.ok_or_else(|| Failure::new(Exit::Internal, internal("the run gave back no C".into())))?;
    check::product(&a, &b, &c)?;
    let params = json!({ "step": "values", "ranks": ranks, "m": SIDE, "n": SIDE, "k": SIDE });
    let name = format!("{SIDE} x {SIDE} x {SIDE} on {ranks} ranks, values");
    Ok(Case::new(name, params, "s", seconds).at_most(SIDE_SECONDS))
}

/// Time against tasks, a panel for each kind of world.
fn panels(record: &Record) -> Vec<Panel> {
    let mut panels: Vec<Panel> = Vec::new();
    for case in &record.cases {
        let text = |key: &str| case.params.get(key).and_then(Value::as_str);
        let (Some(world), Some(step)) = (text("world"), text("step")) else { continue };
        let Some(tasks) = case.params.get("tasks").and_then(Value::as_f64) else { continue };
        if !STEPS.contains(&step) {
            continue;
        }
        let seconds: Vec<f64> = match case.unit.as_str() {
            "tasks/s" => case.ours.iter().map(|rate| tasks / rate).collect(),
            _ => case.ours.clone(),
        };
        let panel = match panels.iter_mut().position(|p| p.title == world) {
            Some(i) => &mut panels[i],
            None => {
                panels.push(Panel::new(world, "tasks", "time on one core, s", Some("slope 1: linear")));
                let last = panels.len() - 1;
                &mut panels[last]
            }
        };
        panel.series(step).points.extend(Point::of(tasks, &seconds));
    }
    panels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_planned_proved_and_simulated_in_samples_of_their_own() {
        for (nodes, unchecked) in [(1, true), (2, false)] {
            let size = Size { ranks: 4, nodes, m: 256, n: 256, k: 128 };
            let mut times = Times::default();
            for _ in 0..3 {
                size.time(&mut times, unchecked).unwrap();
            }
            assert!(times.tasks >= 4, "{} tasks", times.tasks);
            assert!(
                times.steps.iter().all(|s| s.len() == 3 && s.iter().all(|t| *t > 0.0)),
                "{:?}",
                times.steps
            );
            assert_eq!(times.unchecked.len(), if unchecked { 3 } else { 0 });
        }
    }

    #[test]
    fn rates_and_seconds_are_the_same_points() {
        let params = |step| json!({ "step": step, "world": "a world", "tasks": 1000 });
        let cases = vec![
            Case::new("a rate", params("prove"), "tasks/s", vec![500.0, 1000.0, 2000.0]),
            Case::new("a time", params("simulate"), "s", vec![2.0, 1.0, 0.5]),
            Case::new("neither", params("memory"), "GiB", vec![3.0]),
            Case::new("of no world", json!({ "step": "plan", "tasks": 1000 }), "s", vec![3.0]),
        ];
        let panels = panels(&Record::new("sim", cases));
        let [panel] = &panels[..] else { panic!("{} panels", panels.len()) };
        let points: Vec<_> = panel.lines.iter().map(|line| line.points.clone()).collect();
        let point = Point::of(1000.0, &[0.5, 1.0, 2.0]).unwrap();
        assert_eq!(points, [vec![point], vec![point]]);
    }
}
