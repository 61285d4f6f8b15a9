//! `mk bench gemm`: GEMMs on the first GPU against cuBLAS. They go through the whole product: planned, proved, in a kernel that
//! has all handlers, with the bounds of waits on, and every run is a new epoch.
//!
//! Both are measured in turn, by the GPU's clock, in runs that follow each other: what it costs to launch is in it, as far as it
//! is not hidden behind the run before. First, of whole numbers whose sums are exact, both must give the same bits.

use super::plot::{Panel, Point};
use super::record::{Case, Record, median};
use super::rig::cublas::{Cublas, Product};
use super::rig::machine::{Machine, registry};
use super::rig::runner::{Runner, Work, runs_of_batch, wrong};
use super::rig::workload::{Workload, repeated, whole_number};
use super::{Bench, Measurement};
use crate::error::Failure;
use crate::gpu::How;
use mk_compute::AllGatherGemm;
use mk_core::{Bindings, DType, Rank, Registry};
use mk_kernel::Limits;
use mk_kernel::driver::{DeviceMemory, Memory as _};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

pub(super) const BENCH: Bench = Bench {
    name: "gemm",
    about: "GEMMs on the first GPU, through the whole product, against cuBLAS",
    measure,
    shows: "GEMM against cuBLAS",
    panels,
};

/// Rows, columns, and what is summed over: what each of two ranks has of AllGather+GEMM, a square one, and an odd one.
const SHAPES: [[u64; 3]; 5] =
    [[4096, 2048, 4096], [8192, 4096, 8192], [16384, 8192, 16384], [8192, 8192, 8192], [8000, 6288, 4104]];
/// Few rows, as when tokens are decoded, and few columns.
const THIN: [[u64; 3]; 8] = [
    [1, 8192, 8192],
    [16, 8192, 8192],
    [64, 8192, 8192],
    [128, 8192, 8192],
    [256, 8192, 8192],
    [8192, 8, 8192],
    [8192, 64, 8192],
    [8192, 128, 8192],
];
const TYPES: [DType; 2] = [DType::Bf16, DType::F16];
/// Of the speed of cuBLAS: each of the large ones, their geometric mean in a type, and each of the thin ones.
const BAR: f64 = 0.96;
const MEAN_BAR: f64 = 0.99;
const THIN_BAR: f64 = 1.0 / 1.1;
/// How far predicted times are from measured ones: the median.
const PREDICTION_BAR: f64 = 0.15;

/// Clocks rise, and caches fill.
const WARM_UP: Duration = Duration::from_millis(60);

fn measure(m: &mut Measurement<'_, '_>) -> Result<(), Failure> {
    let machine = m.machine()?;
    let registry = registry(1)?;
    let compare = |m: &mut Measurement<'_, '_>, shape, dtype| {
        let _step = m.step(name(shape, dtype));
        Comparison::new(&machine, &registry, shape, dtype)?.measure(m.many_samples())
    };
    let mut errors = Vec::new();
    for dtype in TYPES {
        let mut ratios = Vec::new();
        for shape in SHAPES {
            let compared = compare(m, shape, dtype)?;
            ratios.push(compared.ratio());
            errors.push(compared.prediction_error());
            m.keep(compared.case(BAR));
        }
        let name = format!("geometric mean of the large ones, {dtype}");
        let mean = Case::new(name, json!({ "ratios": ratios }), "of cuBLAS", vec![geometric_mean(&ratios)]);
        m.keep(mean.at_least(MEAN_BAR));
        for shape in THIN {
            let compared = compare(m, shape, dtype)?;
            errors.push(compared.prediction_error());
            m.keep(compared.case(THIN_BAR));
        }
    }
    let error = Case::new(
        "predicted times beside measured ones",
        Value::Null,
        "of the measured time, off by",
        errors,
    );
    m.keep(error.at_most(PREDICTION_BAR));
    Ok(())
}

fn name([m, n, k]: [u64; 3], dtype: DType) -> String {
    format!("GEMM {m} x {n} x {k} {dtype}")
}

fn geometric_mean(ratios: &[f64]) -> f64 {
    (ratios.iter().map(|r| r.ln()).sum::<f64>() / ratios.len() as f64).exp()
}

/// One shape, ready to be run both ways.
struct Comparison {
    cublas: Cublas,
    runner: Runner,
    work: Work,
    /// cuBLAS's C.
    theirs: DeviceMemory,
    product: Product,
    predicted_us: f64,
}

/// What came out.
struct Compared {
    shape: [u64; 3],
    dtype: DType,
    cublas: String,
    lanes: u16,
    predicted_us: f64,
    /// Ours, and cuBLAS's.
    tflops: [Vec<f64>; 2],
}

impl Comparison {
    fn new(
        machine: &Machine,
        registry: &Registry,
        shape: [u64; 3],
        dtype: DType,
    ) -> Result<Comparison, Failure> {
        let [m, n, k] = shape;
        let op = AllGatherGemm::new(m, n, k, dtype).hardware(machine.hardware.clone());
        let choice = op.choose(registry)?;
        let inputs = inputs(shape, dtype, whole_number);
        let workload = Workload::new(
            op.plan_chosen(&choice, registry)?,
            registry,
            &machine.hardware,
            inputs,
            Bindings::new(),
        )?;
        let mut runner = Runner::open(machine, registry, Limits::default(), How::Launched)?;
        let work = runner.bind(&workload)?;
        let theirs = runner.memory(m * n * dtype.bytes())?;
        let [a, b] =
            [AllGatherGemm::A, AllGatherGemm::B].map(|name| work.memory(name).map_or(0, |m| m.address()));
        let product = Product { shape, dtype, at: [a, b, theirs.address()] };
        let cublas = Cublas::new(&runner.context, &runner.stream)?;
        let predicted_us = choice.prediction.time_ns / 1e3;
        Ok(Comparison { cublas, runner, work, theirs, product, predicted_us })
    }

    fn measure(mut self, samples: u16) -> Result<Compared, Failure> {
        self.check()?;
        let Product { shape, dtype, .. } = self.product;
        let real = inputs(shape, dtype, |x| x);
        self.runner.refill(&self.work, &real)?;
        let runs = self.warm_up()?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..samples {
            ours.push(tflops(shape, self.ours(runs)?));
            theirs.push(tflops(shape, self.theirs(runs)?));
        }
        let (cublas, lanes) = (self.cublas.version()?, self.work.lanes());
        Ok(Compared { shape, dtype, cublas, lanes, predicted_us: self.predicted_us, tflops: [ours, theirs] })
    }

    /// Both must give the same bits of whole numbers.
    fn check(&mut self) -> Result<(), Failure> {
        let Product { shape, dtype, .. } = self.product;
        self.runner.poison(&self.work)?;
        self.ours(1)?;
        self.theirs(1)?;
        let bytes = (shape[0] * shape[1] * dtype.bytes()) as usize;
        let (mut ours, mut theirs) = (vec![0; bytes], vec![1; bytes]);
        if let Some(c) = self.work.memory(AllGatherGemm::C) {
            self.runner.stream.download(c, 0, &mut ours)?;
        }
        self.runner.stream.download(&self.theirs, 0, &mut theirs)?;
        if ours == theirs { Ok(()) } else { Err(wrong(&name(shape, dtype), "C, beside that of cuBLAS")) }
    }

    /// How many runs are one batch.
    fn warm_up(&mut self) -> Result<u32, Failure> {
        let start = Instant::now();
        let mut us = f64::MAX;
        while start.elapsed() < WARM_UP {
            us = self.ours(1)?;
            self.theirs(1)?;
        }
        Ok(runs_of_batch(us))
    }

    fn ours(&mut self, runs: u32) -> Result<f64, Failure> {
        self.runner.follow(&self.work, runs)
    }

    fn theirs(&mut self, runs: u32) -> Result<f64, Failure> {
        self.runner.follow_other(runs, || self.cublas.start(&self.product))
    }
}

impl Compared {
    fn ratio(&self) -> f64 {
        median(&self.tflops[0]) / median(&self.tflops[1])
    }

    /// Over the measured time.
    fn prediction_error(&self) -> f64 {
        let measured_us = operations(self.shape) / median(&self.tflops[0]) / 1e6;
        (self.predicted_us - measured_us).abs() / measured_us
    }

    fn case(self, bar: f64) -> Case {
        let Compared { shape, dtype, cublas, lanes, predicted_us, tflops: [ours, theirs] } = self;
        let params = json!({
            "shape": shape, "dtype": dtype.to_string(), "lanes": lanes, "predicted_us": predicted_us, "cublas": cublas,
        });
        Case::new(name(shape, dtype), params, "TFLOP/s", ours).against("cuBLAS", theirs).at_least(bar)
    }
}

fn operations([m, n, k]: [u64; 3]) -> f64 {
    2.0 * m as f64 * n as f64 * k as f64
}

fn tflops(shape: [u64; 3], us: f64) -> f64 {
    operations(shape) / us / 1e6
}

/// A and B, of random numbers from -1 to 1 that `of` changes.
fn inputs([m, n, k]: [u64; 3], dtype: DType, of: fn(f32) -> f32) -> Bindings {
    let mut bindings = Bindings::new();
    bindings.set(Rank(0), AllGatherGemm::A, repeated(0, dtype, [m, k], of));
    bindings.set(Rank(0), AllGatherGemm::B, repeated(1, dtype, [k, n], of));
    bindings
}

/// One panel a type, against the number of operations; and predicted times beside measured ones.
fn panels(record: &Record) -> Vec<Panel> {
    TYPES.map(|dtype| speeds(record, &dtype.to_string())).into_iter().chain([predictions(record)]).collect()
}

/// The products of a record: type and shape.
fn products(record: &Record) -> impl Iterator<Item = (&Case, &str, [u64; 3])> {
    record.cases.iter().filter_map(|case| {
        let shape = serde_json::from_value(case.params.get("shape")?.clone()).ok()?;
        Some((case, case.params.get("dtype")?.as_str()?, shape))
    })
}

fn predictions(record: &Record) -> Panel {
    let mut panel = Panel::new("predicted", "measured time, us", "predicted time, us", None);
    for (case, dtype, shape) in products(record) {
        let measured_us = operations(shape) / median(&case.ours) / 1e6;
        let predicted_us = case.params.get("predicted_us").and_then(Value::as_f64);
        panel.series(dtype).points.extend(predicted_us.and_then(|us| Point::of(measured_us, &[us])));
        panel.series("as measured").points.extend(Point::of(measured_us, &[measured_us]));
    }
    panel
}

fn speeds(record: &Record, dtype: &str) -> Panel {
    let mut panel = Panel::new(dtype, "GFLOP", "TFLOP/s", None);
    for (case, _, shape) in products(record).filter(|(_, d, _)| *d == dtype) {
        for (line, samples) in [("mKernel", Some(case.ours.as_slice())), ("cuBLAS", case.baseline("cuBLAS"))]
        {
            panel.series(line).points.extend(samples.and_then(|s| Point::of(operations(shape) / 1e9, s)));
        }
    }
    panel
}

#[cfg(test)]
mod tests {
    use super::*;
    use mk_core::Hardware;

    #[test]
    fn every_shape_is_planned_and_proved() {
        let registry = registry(1).unwrap();
        for [m, n, k] in SHAPES.into_iter().chain(THIN) {
            let program = AllGatherGemm::new(m, n, k, DType::Bf16).plan(&registry).unwrap();
            // Most lanes have a tile, or as many as there are tiles of 64 columns.
            let narrow = m.div_ceil(128) * n.div_ceil(64);
            assert!(
                program.tasks.len() as u64 >= narrow.min(128),
                "{m} x {n}: {} tiles",
                program.tasks.len()
            );
            program.verify(&registry, &Hardware::h200()).unwrap();
        }
    }

    #[test]
    fn a_speed_is_two_operations_a_product_and_its_time() {
        assert_eq!(tflops([1000, 1000, 1000], 2.0), 1000.0);
        assert!((geometric_mean(&[0.5, 2.0]) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn numbers_are_random_and_whole_where_sums_must_be_exact() {
        let real = inputs([64, 32, 128], DType::Bf16, |x| x);
        let ints = inputs([64, 32, 128], DType::Bf16, whole_number);
        let get = |t: &Bindings, name| t.get(Rank(0), name).unwrap().to_f32();
        assert_eq!(get(&real, AllGatherGemm::A).len(), 64 * 128);
        assert_eq!(get(&real, AllGatherGemm::B).len(), 128 * 32);
        assert!(get(&ints, AllGatherGemm::A).iter().all(|x| x.fract() == 0.0 && (-2.0..=1.0).contains(x)));
        assert!([-2.0, -1.0, 0.0, 1.0].iter().all(|x| get(&ints, AllGatherGemm::B).contains(x)));
        assert!(get(&real, AllGatherGemm::A) != get(&real, AllGatherGemm::B));
    }

    #[test]
    fn a_case_is_drawn_beside_cublas() {
        let compared = Compared {
            shape: SHAPES[0],
            dtype: DType::Bf16,
            cublas: "13.0.0".into(),
            lanes: 132,
            predicted_us: 108.0,
            tflops: [vec![700.0], vec![710.0]],
        };
        assert!((compared.ratio() - 70.0 / 71.0).abs() < 1e-12);
        // 68.72 GFLOP at 700 TFLOP/s take 98.17 us.
        assert!((compared.prediction_error() - 0.1).abs() < 1e-3, "{}", compared.prediction_error());
        let case = compared.case(BAR);
        assert!(case.passes(1.0), "{}", case.text(1.0));
        let panels = panels(&Record::new("gemm", vec![case]));
        let lines: Vec<usize> = panels.iter().map(|p| p.lines.iter().map(|l| l.points.len()).sum()).collect();
        assert_eq!(lines, [2, 0, 2]);
        let measured_us = operations(SHAPES[0]) / 700.0 / 1e6;
        assert_eq!(panels[2].lines[0].points, [Point::of(measured_us, &[108.0]).unwrap()]);
    }
}
