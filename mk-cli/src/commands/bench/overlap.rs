//! `mk bench overlap`: how much of its communication AllGather+GEMM hides, on the first GPU.
//!
//! The program is the one that is planned for two GPUs, but of rank 1 there is only what rank 0 needs of it: that its rows are
//! there. Rank 0 has all SMs but one, and pulls those rows, which lie in the same GPU's memory, over a link that is not there: a kernel
//! is built for it in which what is moved, and what is posted behind it, waits as a link of so many GB/s would let it. Beside it
//! are measured, in the same kernel and on the same lanes: the same program with all rows there, which moves none ("GEMM alone"), and
//! without its tiles ("comm alone"). All is hidden if the whole takes no longer than the longer of the two; that says something only
//! if the product is as fast as cuBLAS on as many SMs, and the communication fills the link: so both have bars, too.

mod side;

use super::plot::{Panel, Point};
use super::record::{Case, Record, median};
use super::rig::cublas::{Cublas, Product};
use super::rig::machine::{Machine, registry};
use super::rig::runner::{Runner, Work, runs_of_batch, wrong};
use super::rig::workload::{Workload, repeated, whole_number};
use super::{Bench, Measurement};
use crate::error::Failure;
use crate::gpu::How;
use mk_compute::{AllGatherGemm, Gather, Plan};
use mk_core::{Bindings, DType, Hardware, Program, Rank, Registry, Tensor};
use mk_kernel::driver::{DeviceMemory, Memory as _};
use mk_kernel::{Limits, Pace};
use serde_json::{Value, json};

pub(super) const BENCH: Bench = Bench {
    name: "overlap",
    about: "AllGather+GEMM on the first GPU with rows that come over a paced link: what of their way is hidden",
    measure,
    shows: "AllGather+GEMM beside its product and its communication alone",
    panels,
};

/// How long the product may take, over cuBLAS.
const CUBLAS_BAR: f64 = 1.0 / 0.96;
/// Rows, and what is summed over; a rank has half as many columns.
const SIZES: [Size; 3] = [
    Size { n: 4096, bar: 1.06, link_bar: 1.35 },
    Size { n: 8192, bar: 1.02, link_bar: 1.15 },
    Size { n: 16384, bar: 1.02, link_bar: 1.15 },
];
/// One direction of NVLink, as SMs reach it.
const LINK: Pace = Pace { gb_per_s: 350, latency_ns: 1_200 };
const DTYPE: DType = DType::Bf16;
const WARM_UP_RUNS: u32 = 20;
/// What is measured beside the whole.
const PARTS: [&str; 2] = ["GEMM alone", "comm alone"];

struct Size {
    n: u64,
    /// How long the whole may take, over the longer of its parts.
    bar: f64,
    /// How long the communication may take, over what the link takes for its bytes. A run begins and ends in some ten microseconds,
    /// which are a fifth of what the link takes for the smallest.
    link_bar: f64,
}

fn measure(m: &mut Measurement<'_, '_>) -> Result<(), Failure> {
    let machine = m.machine()?;
    let registry = registry(2)?;
    for size in &SIZES {
        let _step = m.step(name(size.n));
        let plans = Plans::new(size.n, &registry, &machine.hardware)?;
        let times = Measured::of(&machine, &registry, size.n, &plans)?.times(m.many_samples())?;
        times.cases(size, &plans).into_iter().for_each(|case| m.keep(case));
    }
    Ok(())
}

fn name(n: u64) -> String {
    format!("AllGather+GEMM {n} x {} x {n} {DTYPE}, 2 ranks", n / 2)
}

/// The programs, and how the whole was planned.
struct Plans {
    whole: Program,
    gemm: Program,
    comm: Program,
    settings: String,
    lanes: u16,
}

impl Plans {
    fn new(n: u64, registry: &Registry, hardware: &Hardware) -> Result<Plans, Failure> {
        let lanes = u16::try_from(hardware.lanes().saturating_sub(1)).unwrap_or(u16::MAX);
        let op = AllGatherGemm::new(n, n, n, DTYPE).hardware(hardware.clone()).lanes(lanes);
        let op = op.plan_kind(Plan::Fused).gather(Gather::Pull).comm_lanes(lanes);
        let choice = op.choose(registry)?;
        let whole = side::one_side(op.plan_chosen(&choice, registry)?);
        let comm = side::without_tiles(whole.clone());
        let gemm = side::with_all_rows(whole.clone());
        Ok(Plans { whole, gemm, comm, settings: choice.settings.to_string(), lanes })
    }
}

/// Programs in one session, bound; and the product by cuBLAS.
struct Measured {
    theirs: Theirs,
    runner: Runner,
    /// The whole, and its parts.
    works: [Work; 3],
}

/// The product by cuBLAS, on as many SMs.
struct Theirs {
    cublas: Cublas,
    product: Product,
    /// A, B and C.
    memory: [DeviceMemory; 3],
}

/// Microseconds of a run: of the whole, of its parts, and of cuBLAS.
struct Times([Vec<f64>; 4]);

impl Measured {
    /// All ways to the product must give the same bits of whole numbers; then there are others.
    fn of(machine: &Machine, registry: &Registry, n: u64, plans: &Plans) -> Result<Measured, Failure> {
        let mut runner = Runner::open(machine, registry, Limits::default(), How::Paced(LINK))?;
        let workloads = |of| -> Result<Vec<Workload>, Failure> {
            let programs = [&plans.whole, &plans.gemm, &plans.comm].into_iter().zip(inputs(n, of));
            programs
                .map(|(program, tensors)| {
                    Workload::new(program.clone(), registry, &machine.hardware, tensors, Bindings::new())
                })
                .collect()
        };
        let results =
            workloads(whole_number)?.iter().map(|w| runner.run(w)).collect::<Result<Vec<_>, _>>()?;
        let c = |part: usize| results[part].get(Rank(0), AllGatherGemm::C);
        let theirs = Theirs::new(&runner, n, plans.lanes)?;
        theirs.fill(&runner, n, whole_number)?;
        let by_cublas = theirs.c(&mut runner, n)?;
        if c(0) != Some(&by_cublas) || c(1) != Some(&by_cublas) {
            return Err(wrong(&name(n), "C, beside that of cuBLAS"));
        }
        theirs.fill(&runner, n, |x| x)?;
        let mut bind = |workload: &Workload| {
            // Rows on the symmetric heap stay what the last run on tensors of the host has left there.
            runner.run(workload)?;
            runner.bind(workload)
        };
        let works = workloads(|x| x)?.iter().map(&mut bind).collect::<Result<Vec<Work>, Failure>>()?;
        let works = works.try_into().unwrap_or_else(|_| unreachable!("three programs"));
        Ok(Measured { theirs, runner, works })
    }

    /// In turn, so that all meet the same clocks.
    fn times(mut self, samples: u16) -> Result<Times, Failure> {
        let mut runs = [0; 4];
        for (part, runs) in runs.iter_mut().enumerate() {
            *runs = runs_of_batch(self.time(part, WARM_UP_RUNS)?);
        }
        let mut times = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
        for sample in 0..usize::from(samples) {
            // Whatever follows the communication meets a cooler GPU: each in its turn.
            for part in (0..4).map(|i| (i + sample) % 4) {
                times[part].push(self.time(part, runs[part])?);
            }
        }
        Ok(Times(times))
    }

    /// Of the whole, a part of it, or what comes behind them: cuBLAS.
    fn time(&mut self, part: usize, runs: u32) -> Result<f64, Failure> {
        match self.works.get(part) {
            Some(work) => self.runner.follow(work, runs),
            None => self.theirs.time(&mut self.runner, runs),
        }
    }
}

impl Theirs {
    fn new(runner: &Runner, n: u64, sms: u16) -> Result<Theirs, Failure> {
        let shape = [n, n / 2, n];
        let memory = [n * n, n * n / 2, n * n / 2].map(|count| runner.memory(count * DTYPE.bytes()));
        let [a, b, c] = memory;
        let memory = [a?, b?, c?];
        let product = Product { shape, dtype: DTYPE, at: memory.each_ref().map(|m| m.address()) };
        let cublas = Cublas::new(&runner.context, &runner.stream)?;
        cublas.for_sms(sms)?;
        Ok(Theirs { cublas, product, memory })
    }

    /// Takes the same numbers as [`inputs`].
    fn fill(&self, runner: &Runner, n: u64, of: fn(f32) -> f32) -> Result<(), Failure> {
        for (memory, tensor) in self.memory.iter().zip(matrices(n, of)) {
            runner.stream.upload(memory, 0, &tensor.bytes)?;
        }
        Ok(())
    }

    fn c(&self, runner: &mut Runner, n: u64) -> Result<Tensor, Failure> {
        self.time(runner, 1)?;
        let mut c = Tensor::zeros(DTYPE, n, n / 2);
        runner.stream.download(&self.memory[2], 0, &mut c.bytes)?;
        Ok(c)
    }

    fn time(&self, runner: &mut Runner, runs: u32) -> Result<f64, Failure> {
        runner.follow_other(runs, || self.cublas.start(&self.product))
    }
}

impl Times {
    /// The whole, over the longer part; the product, over cuBLAS; and the communication, over what the link takes.
    fn cases(self, size: &Size, plans: &Plans) -> [Case; 3] {
        let &Size { n, bar, link_bar } = size;
        let Times([whole, gemm, comm, cublas]) = self;
        let link_us = link_us(n);
        let params = json!({
            "n": n, "lanes": plans.lanes, "settings": plans.settings, "gb_per_s": LINK.gb_per_s,
            "latency_ns": LINK.latency_ns, "link_us": link_us, "alone_us": [median(&gemm), median(&comm)],
        });
        let filled = Case::new(
            format!("{}, {} over the link's time", name(n), PARTS[1]),
            params.clone(),
            "of it",
            comm.iter().map(|us| us / link_us).collect(),
        );
        let product = Case::new(format!("{}, {}", name(n), PARTS[0]), params.clone(), "us", gemm.clone());
        let product = product.against("cuBLAS", cublas).at_most(CUBLAS_BAR);
        let (longer, samples) =
            if median(&gemm) >= median(&comm) { (PARTS[0], gemm) } else { (PARTS[1], comm) };
        let whole = Case::new(name(n), params, "us", whole).against(longer, samples);
        [whole.at_most(bar), product, filled.at_most(link_bar)]
    }
}

/// What the link takes for the other rank's rows.
fn link_us(n: u64) -> f64 {
    let bytes = n / 2 * n * DTYPE.bytes();
    (bytes as f64 / f64::from(LINK.gb_per_s) + f64::from(LINK.latency_ns)) / 1e3
}

/// All rows of A, and the columns of B that rank 0 has.
fn matrices(n: u64, of: fn(f32) -> f32) -> [Tensor; 2] {
    [repeated(0, DTYPE, [n, n], of), repeated(1, DTYPE, [n, n / 2], of)]
}

/// What the whole, the product and the communication are given: A of both ranks and B of rank 0; the rows that would have come, too; and
/// A alone. Random numbers from -1 to 1 that `of` changes.
fn inputs(n: u64, of: fn(f32) -> f32) -> [Bindings; 3] {
    let [a, b] = matrices(n, of);
    let nothing = Tensor::zeros(DTYPE, 0, 0);
    let (top, bottom) = a.bytes.split_at(a.bytes.len() / 2);
    let [top, bottom] = [top, bottom].map(|half| Tensor { rows: n / 2, bytes: half.to_vec(), ..a });
    let given = |regions: [(&str, [&Tensor; 2]); 2]| {
        let mut bindings = Bindings::new();
        for (name, tensors) in regions {
            for (rank, tensor) in tensors.into_iter().enumerate() {
                bindings.set(Rank(rank as u16), name, tensor.clone());
            }
        }
        bindings
    };
    let (of_a, of_b) = ((AllGatherGemm::A, [&top, &bottom]), (AllGatherGemm::B, [&b, &nothing]));
    let mut with_all_rows = given([of_a, of_b]);
    with_all_rows.set(Rank(0), AllGatherGemm::GATHER, a.clone());
    with_all_rows.set(Rank(1), AllGatherGemm::GATHER, nothing.clone());
    [given([of_a, of_b]), with_all_rows, given([of_a, (AllGatherGemm::B, [&nothing, &nothing])])]
}

/// The whole and its parts, against n; and each over what limits it.
fn panels(record: &Record) -> Vec<Panel> {
    let mut limits = Panel::new("over the limit", "n", "time, over that of what limits it", None);
    for case in &record.cases {
        let (line, limit) = match case.name.as_str() {
            name if name.ends_with(PARTS[0]) => ("GEMM alone, over cuBLAS", case.baseline("cuBLAS")),
            name if name.contains(PARTS[1]) => ("comm alone, over the link", None),
            _ => ("AllGather+GEMM, over the longer part", PARTS.iter().find_map(|part| case.baseline(part))),
        };
        let (over, n) = (limit.map_or(1.0, median), case.params.get("n").and_then(Value::as_f64));
        limits.series(line).points.extend(n.and_then(|n| Point::of(n, &[median(&case.ours) / over])));
    }
    vec![times(record), limits]
}

fn times(record: &Record) -> Panel {
    let mut panel = Panel::new("bf16", "n", "time of a run, us", None);
    for case in &record.cases {
        let Some(n) = case.params.get("n").and_then(Value::as_f64) else { continue };
        if PARTS.iter().any(|part| case.name.contains(part)) {
            continue;
        }
        panel.series("AllGather+GEMM").points.extend(Point::of(n, &case.ours));
        let alone = case.params.get("alone_us").and_then(Value::as_array);
        for (part, us) in PARTS.into_iter().zip(alone.into_iter().flatten().filter_map(Value::as_f64)) {
            panel.series(part).points.extend(Point::of(n, &[us]));
        }
    }
    panel
}

#[cfg(test)]
mod tests {
    use super::*;
    use mk_core::Session as _;
    use mk_sim::Simulator;

    /// Small, on few lanes.
    fn plans(registry: &Registry) -> Plans {
        let hardware = Hardware { sms: 9, ..Hardware::h200() };
        Plans::new(512, registry, &hardware).unwrap()
    }

    #[test]
    fn one_side_computes_what_the_product_alone_does() {
        let registry = registry(2).unwrap();
        let (plans, hardware) = (plans(&registry), Hardware::h200());
        let run = |program: &Program, tensors: &Bindings| {
            let verified = program.clone().verify(&registry, &hardware).unwrap();
            Simulator::builder(&registry).build().run(&verified, tensors).unwrap()
        };
        let [of_whole, of_gemm, of_comm] = inputs(512, whole_number);
        let (whole, alone) = (run(&plans.whole, &of_whole), run(&plans.gemm, &of_gemm));
        let c = |b: &Bindings| b.get(Rank(0), AllGatherGemm::C).unwrap().clone();
        assert_eq!(c(&whole), c(&alone));
        assert_eq!((c(&whole).rows, c(&whole).cols), (512, 256));
        run(&plans.comm, &of_comm);
    }

    #[test]
    fn what_is_measured_is_proved() {
        let (registry, hardware) = (registry(2).unwrap(), Hardware::h200());
        let Plans { whole, gemm, comm, lanes, .. } = Plans::new(SIZES[0].n, &registry, &hardware).unwrap();
        assert_eq!(lanes, 131);
        for program in [whole, gemm, comm] {
            program.verify(&registry, &hardware).unwrap();
        }
    }

    #[test]
    fn the_parts_have_what_they_should() {
        let registry = registry(2).unwrap();
        let Plans { whole, gemm, comm, lanes, .. } = plans(&registry);
        let count = |p: &Program, name: &str| {
            p.tasks.iter().filter(|t| p.handlers[t.op.index()].name == name).count()
        };
        assert_eq!((lanes, &whole.lanes, &comm.lanes), (8, &vec![8, 1], &vec![8, 1]));
        assert!(count(&whole, "gemm") > 0 && count(&whole, "nvlink.get") > 0);
        assert_eq!((gemm.tasks.len(), &gemm.lanes), (whole.tasks.len(), &whole.lanes));
        assert_eq!((count(&comm, "gemm"), count(&comm, "nvlink.get")), (0, count(&whole, "nvlink.get")));
    }

    #[test]
    fn the_ratio_is_that_to_the_longer_part() {
        let registry = registry(2).unwrap();
        let times = Times([vec![105.0], vec![100.0], vec![80.0], vec![98.0]]);
        let [case, product, filled] = times.cases(&SIZES[0], &plans(&registry));
        assert!(case.passes(1.0) && case.text(1.0).contains("1.050 of GEMM alone"), "{}", case.text(1.0));
        // 16.8 MB at 350 GB/s and the latency: 49.1 us.
        assert!(!filled.passes(1.0) && filled.text(1.0).starts_with("1.628"), "{}", filled.text(1.0));
        assert!(
            product.passes(1.0) && product.text(1.0).contains("1.020 of cuBLAS"),
            "{}",
            product.text(1.0)
        );
        let panels = panels(&Record::new("overlap", vec![case, product, filled]));
        let lines: Vec<usize> = panels[0].lines.iter().map(|l| l.points.len()).collect();
        assert_eq!(lines, [1, 1, 1]);
        for (line, over) in panels[1].lines.iter().zip([105.0 / 100.0, 100.0 / 98.0]) {
            assert_eq!(line.points, [Point::of(4096.0, &[over]).unwrap()]);
        }
    }
}
