//! `mk bench`: measures, compares with bars, writes the samples down and draws them.
//!
//! A benchmark is one file here with one [`Bench`] in it, an entry in [`BENCHES`] and a name in `args::BenchName`.

mod gemm;
mod gpu;
mod overlap;
mod peak;
mod plot;
mod record;
mod rig;
mod sim;

use crate::args::{BenchName, BenchOptions, BenchPlot};
use crate::console::{Console, Step};
use crate::error::{Exit, Failure, internal};
use crate::target;
use mk_core::Explanation;
use plot::Panel;
use record::{Case, Record};
use rig::machine::Machine;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Something that can be measured.
pub(crate) struct Bench {
    /// As the command and its files are called.
    pub(crate) name: &'static str,
    /// In a line.
    pub(crate) about: &'static str,
    /// Measures all cases and [keeps](Measurement::keep) them.
    measure: fn(&mut Measurement<'_, '_>) -> Result<(), Failure>,
    /// What its picture shows.
    shows: &'static str,
    /// What to draw of a record, which may be an older one.
    panels: fn(&Record) -> Vec<Panel>,
}

/// All of them.
pub(crate) const BENCHES: [&Bench; 4] = [&sim::BENCH, &gpu::BENCH, &gemm::BENCH, &overlap::BENCH];

/// `mk bench`.
pub(crate) fn bench(name: &BenchName, console: &mut Console<'_>) -> Result<(), Failure> {
    match name {
        BenchName::Sim(options) => run(&sim::BENCH, options, console),
        BenchName::Gpu(options) => run(&gpu::BENCH, options, console),
        BenchName::Gemm(options) => run(&gemm::BENCH, options, console),
        BenchName::Overlap(options) => run(&overlap::BENCH, options, console),
        BenchName::List => list(console),
        BenchName::Plot(options) => draw(options, console),
    }
}

/// A benchmark under way.
struct Measurement<'a, 'c> {
    options: &'a BenchOptions,
    console: &'a mut Console<'c>,
    cases: Vec<Case>,
    /// The GPU that was measured, if it was one.
    gpu: Option<record::Gpu>,
}

impl Measurement<'_, '_> {
    /// Measurements of a case that takes a second or less.
    fn samples(&self) -> u16 {
        self.options.samples
    }

    /// Measurements of a case that takes many seconds.
    fn few_samples(&self) -> u16 {
        self.options.samples.div_ceil(3)
    }

    /// Measurements of a case that takes microseconds.
    fn many_samples(&self) -> u16 {
        self.options.samples.saturating_mul(5)
    }

    /// The GPU that is measured, for the record, too.
    fn machine(&mut self) -> Result<Machine, Failure> {
        let machine = {
            let _step = self.step("looking for a GPU");
            Machine::find()?
        };
        self.gpu = Some(machine.record()?);
        Ok(machine)
    }

    /// Shows that something is under way.
    fn step(&self, what: impl Into<String>) -> Step {
        self.console.step(what)
    }

    /// Shows how far `parts` measurements are.
    fn bar(&self, what: impl Into<String>, parts: u16) -> Step {
        self.console.bar(what, parts.into())
    }

    /// Shows a case, and keeps it for the record.
    fn keep(&mut self, case: Case) {
        self.console.say(&case.name, case.text(self.options.of_bar));
        self.cases.push(case);
    }
}

#[derive(Serialize)]
struct BenchResult<'a> {
    command: &'static str,
    record: &'a Record,
    out: Option<String>,
    plot: Option<String>,
}

fn run(bench: &Bench, options: &BenchOptions, console: &mut Console<'_>) -> Result<(), Failure> {
    let mut record = Record::new(bench.name, Vec::new());
    if let Some(folder) = &options.out {
        files(folder, &record).iter().try_for_each(|f| target::check(f).map(drop))?;
    }
    let mut measurement = Measurement { options, console: &mut *console, cases: Vec::new(), gpu: None };
    (bench.measure)(&mut measurement)?;
    (record.cases, record.hardware.gpu) = (measurement.cases, measurement.gpu);
    let written = match &options.out {
        Some(folder) => Some(write(bench, &record, folder, console)?),
        None => None,
    };
    let [out, plot] = written.map_or([None, None], |files| files.map(|f| Some(f.display().to_string())));
    let result = BenchResult { command: "bench", record: &record, out, plot };
    let missed: Vec<&str> =
        record.cases.iter().filter(|c| !c.passes(options.of_bar)).map(|c| c.name.as_str()).collect();
    if missed.is_empty() {
        console.object(&result);
        return Ok(());
    }
    Err(Failure::new(
        Exit::Wrong,
        Explanation {
            kind: "bench",
            message: "a bar was missed".into(),
            given: missed.join("; "),
            allowed: format!("{} of each bar", options.of_bar),
            hint: "measure again on an idle machine, in a release build".into(),
        },
    )
    .with(&result))
}

/// A record's file and that of its picture.
fn files(folder: &Path, record: &Record) -> [PathBuf; 2] {
    ["json", "svg"].map(|ending| folder.join(format!("{}.{ending}", record.stem())))
}

fn write(
    bench: &Bench,
    record: &Record,
    folder: &Path,
    console: &mut Console<'_>,
) -> Result<[PathBuf; 2], Failure> {
    let svg = picture(bench, record).map_err(|e| Failure::new(Exit::Internal, internal(e)))?;
    let [json, plot] = files(folder, record);
    target::write(&json, |to| {
        serde_json::to_writer_pretty(&mut *to, record)?;
        to.write_all(b"\n")
    })?;
    target::write(&plot, |to| to.write_all(svg.as_bytes()))?;
    console.say("wrote", json.display().to_string());
    console.say("drew", plot.display().to_string());
    Ok([json, plot])
}

/// What a record looks like.
fn picture(bench: &Bench, record: &Record) -> Result<String, String> {
    plot::svg(
        &format!("mk bench {}: {}", record.name, bench.shows),
        &record.origin(),
        &(bench.panels)(record),
    )
}

#[derive(Serialize)]
struct Listed {
    command: &'static str,
    benches: Vec<ListedBench>,
}

#[derive(Serialize)]
struct ListedBench {
    name: &'static str,
    about: &'static str,
}

/// `mk bench list`.
fn list(console: &mut Console<'_>) -> Result<(), Failure> {
    let benches = BENCHES.map(|b| ListedBench { name: b.name, about: b.about }).into();
    for bench in BENCHES {
        console.say(bench.name, bench.about);
    }
    console.object(&Listed { command: "bench list", benches });
    Ok(())
}

#[derive(Serialize)]
struct Drawn {
    command: &'static str,
    out: String,
}

/// `mk bench plot`.
fn draw(options: &BenchPlot, console: &mut Console<'_>) -> Result<(), Failure> {
    let BenchPlot { file, out } = options;
    if !out.extension().is_some_and(|e| e.eq_ignore_ascii_case("svg")) {
        return Err(Failure::file(out, "is not named like a picture", "name a file that ends in .svg"));
    }
    target::check_all(&[("--out", Some(out))], &[("FILE", Some(file))])?;
    let record = Record::read(file)?;
    let Some(bench) = BENCHES.iter().find(|b| b.name == record.name) else {
        let known = BENCHES.map(|b| b.name).join(", ");
        let what = format!("is a record of '{}'; known are: {known}", record.name);
        return Err(Failure::file(file, what, "draw it with the build that wrote it"));
    };
    let svg = picture(bench, &record).map_err(|what| {
        Failure::file(file, format!("cannot be drawn: {what}"), "measure again with this build")
    })?;
    target::write(out, |to| to.write_all(svg.as_bytes()))?;
    console.say("drew", out.display().to_string());
    console.object(&Drawn { command: "bench plot", out: out.display().to_string() });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Args;
    use clap::CommandFactory as _;

    #[test]
    fn every_benchmark_has_a_command_of_its_name() {
        let command = Args::command();
        let bench = command.find_subcommand("bench").unwrap();
        let mut commands: Vec<&str> = bench.get_subcommands().map(|c| c.get_name()).collect();
        commands.retain(|name| !["list", "plot"].contains(name));
        assert_eq!(commands, BENCHES.map(|b| b.name));
    }

    /// Two cases, of which one reaches half of its bar.
    const TOY: Bench = Bench {
        name: "toy",
        about: "",
        shows: "",
        measure: |m| {
            let samples = vec![3.0; m.samples().into()];
            m.keep(Case::new("slow", serde_json::Value::Null, "s", samples.clone()).at_most(1.5));
            m.keep(Case::new("fast", serde_json::Value::Null, "s", samples).at_most(3.0));
            Ok(())
        },
        panels: |record| {
            let mut panel = Panel::new("a panel", "x", "y", Some("linear"));
            let points = record.cases.iter().filter_map(|c| plot::Point::of(1.0, &c.ours));
            panel.series("a line").points.extend(points);
            vec![panel]
        },
    };

    fn toy(of_bar: f64, out: Option<&Path>) -> (Result<(), Failure>, String) {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let options = BenchOptions { samples: 2, of_bar, out: out.map(Into::into) };
        let result = run(&TOY, &options, &mut Console::new(false, &mut stdout, &mut stderr));
        (result, String::from_utf8(stdout).unwrap())
    }

    #[test]
    fn a_bar_that_is_missed_fails_and_the_record_is_written_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let (result, text) = toy(1.0, Some(folder.path()));
        let failure = result.unwrap_err();
        assert_eq!((failure.exit, failure.says.given.as_str()), (Exit::Wrong, "slow"));
        assert!(text.contains("slow: 3.000 s (bar: at most 1.500, MISSED)"), "{text}");
        assert!(toy(0.5, None).0.is_ok(), "half of the bar is enough");
        let mut files: Vec<PathBuf> = folder.path().read_dir().unwrap().map(|f| f.unwrap().path()).collect();
        files.sort();
        assert_eq!(files.len(), 2, "{files:?}");
        assert_eq!(files[0].file_stem(), files[1].file_stem());
        let record = Record::read(&files[0]).unwrap();
        assert_eq!((record.name.as_str(), record.cases.len()), ("toy", 2));
        assert_eq!(record.cases[0].ours, [3.0, 3.0]);
        // The picture is that of what was written.
        assert_eq!(std::fs::read_to_string(&files[1]).unwrap(), picture(&TOY, &record).unwrap());
    }
}
