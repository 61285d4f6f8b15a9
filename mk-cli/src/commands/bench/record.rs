//! What a benchmark writes down: everything that is needed to measure it again.

use crate::console::count;
use crate::error::Failure;
use crate::input;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// Version of the files: raised when a field changes its meaning.
const SCHEMA: u32 = 1;
/// Records are read whole; none that is worth keeping is larger.
const BYTES: u64 = 1 << 20;
/// Seconds of a day.
const DAY: u64 = 86_400;

/// A file of results.
#[derive(Serialize, Deserialize)]
pub(super) struct Record {
    schema: u32,
    pub(super) name: String,
    date: String,
    commit: String,
    dirty: bool,
    pub(super) hardware: Hardware,
    versions: BTreeMap<String, String>,
    pub(super) cases: Vec<Case>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Hardware {
    cpu: String,
    cores: usize,
    /// `None` where none was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) gpu: Option<Gpu>,
}

/// A GPU that was measured, and what runs it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Gpu {
    pub(super) name: String,
    pub(super) multiprocessors: u32,
    pub(super) memory_bytes: u64,
    /// Release of the driver.
    pub(super) driver: String,
    /// CUDA version that the driver is for.
    pub(super) cuda: String,
    pub(super) nvrtc: String,
    /// Of the kernel.
    pub(super) handlers: Vec<String>,
}

/// One thing that was measured.
#[derive(Serialize, Deserialize)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) params: Value,
    pub(super) unit: String,
    pub(super) ours: Vec<f64>,
    /// The same by other means, measured in the same run.
    baselines: BTreeMap<String, Vec<f64>>,
    /// Ours over the best baseline; `None` without one.
    ratio_of_medians: Option<f64>,
    /// For the ratio if there is one, else for the median.
    bar: Option<f64>,
    /// Whether more is better.
    more_is_better: bool,
    /// Whether the whole bar is reached.
    pass: bool,
}

impl Case {
    /// A case without a bar.
    pub(super) fn new(name: impl Into<String>, params: Value, unit: &str, ours: Vec<f64>) -> Case {
        Case {
            name: name.into(),
            params,
            unit: unit.into(),
            ours,
            baselines: BTreeMap::new(),
            ratio_of_medians: None,
            bar: None,
            more_is_better: true,
            pass: true,
        }
    }

    /// The same by other means.
    pub(super) fn baseline(&self, name: &str) -> Option<&[f64]> {
        self.baselines.get(name).map(Vec::as_slice)
    }

    /// Compares with the same by other means; before the bar is set.
    pub(super) fn against(mut self, baseline: &str, samples: Vec<f64>) -> Case {
        self.baselines.insert(baseline.into(), samples);
        self
    }

    /// The median, or the ratio to the best baseline, must be at least `bar`.
    pub(super) fn at_least(self, bar: f64) -> Case {
        self.judged(bar, true)
    }

    /// The median, or the ratio to the best baseline, must be at most `bar`.
    pub(super) fn at_most(self, bar: f64) -> Case {
        self.judged(bar, false)
    }

    fn judged(mut self, bar: f64, more_is_better: bool) -> Case {
        let medians = self.baselines.values().map(|samples| median(samples));
        let best = medians.reduce(|a, b| if more_is_better { a.max(b) } else { a.min(b) });
        (self.bar, self.more_is_better) = (Some(bar), more_is_better);
        self.ratio_of_medians = best.map(|best| median(&self.ours) / best);
        self.pass = self.passes(1.0);
        self
    }

    /// Whether this share of the bar is reached.
    pub(super) fn passes(&self, of_bar: f64) -> bool {
        let got = self.ratio_of_medians.unwrap_or_else(|| median(&self.ours));
        self.bar.is_none_or(|bar| if self.more_is_better { got >= bar * of_bar } else { got <= bar / of_bar })
    }

    /// For people.
    pub(super) fn text(&self, of_bar: f64) -> String {
        let number = |x: f64| if x >= 1e5 { format!("{:.2} M", x / 1e6) } else { format!("{x:.3}") };
        let mut text = format!("{} {}", number(median(&self.ours)), self.unit);
        if let Some(ratio) = self.ratio_of_medians {
            let names: Vec<&str> = self.baselines.keys().map(String::as_str).collect();
            text += &format!(", {ratio:.3} of {}", names.join(", "));
        }
        let Some(bar) = self.bar else { return text };
        let sign = if self.more_is_better { "at least" } else { "at most" };
        let verdict = if self.passes(of_bar) { "passed" } else { "MISSED" };
        format!("{text} (bar: {sign} {}, {verdict})", number(bar))
    }
}

impl Record {
    /// A record of these cases, here and now.
    pub(super) fn new(name: &str, cases: Vec<Case>) -> Record {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let [year, month, day] = civil(now / DAY);
        let changed = output("git", &["status", "--porcelain", "--untracked-files=no"]);
        let version = |name: &str, text: String| (name.to_string(), text);
        Record {
            schema: SCHEMA,
            name: name.into(),
            date: format!("{year:04}-{month:02}-{day:02}"),
            commit: output("git", &["rev-parse", "HEAD"]).unwrap_or_else(|| "unknown".into()),
            dirty: changed.is_none_or(|c| !c.is_empty()),
            hardware: Hardware {
                cpu: cpu().unwrap_or_else(|| "unknown".into()),
                cores: std::thread::available_parallelism().map_or(1, |n| n.get()),
                gpu: None,
            },
            versions: BTreeMap::from([
                version("mk", env!("CARGO_PKG_VERSION").into()),
                version("profile", if cfg!(debug_assertions) { "debug" } else { "release" }.into()),
                version("rustc", output("rustc", &["--version"]).unwrap_or_else(|| "unknown".into())),
            ]),
            cases,
        }
    }

    /// Reads a record.
    ///
    /// # Errors
    /// A file that cannot be read, or that is none.
    pub(super) fn read(path: &Path) -> Result<Record, Failure> {
        let bytes = input::read(path, BYTES)?;
        let hint = "give a file that `mk bench NAME --out FOLDER` wrote";
        let record: Record = serde_json::from_slice(&bytes)
            .map_err(|e| Failure::file(path, format!("is no record of a benchmark: {e}"), hint))?;
        match record.schema {
            SCHEMA => Ok(record),
            other => {
                let what = format!("is a record of version {other}; this build reads {SCHEMA}");
                Err(Failure::file(path, what, "draw it with the build that wrote it"))
            }
        }
    }

    /// What its files are called, without an ending: `NAME-DATE-COMMIT`.
    pub(super) fn stem(&self) -> String {
        format!("{}-{}-{}", self.name, self.date, self.short_commit())
    }

    fn short_commit(&self) -> &str {
        self.commit.get(..10).unwrap_or(&self.commit)
    }

    /// Where, when and of what it was measured, in a line.
    pub(super) fn origin(&self) -> String {
        let Record { hardware: Hardware { cpu, cores, gpu }, date, dirty, .. } = self;
        let plus = if *dirty { " and changes" } else { "" };
        let profile = self.versions.get("profile").map_or("unknown", String::as_str);
        let cores = count(*cores as u64, "core");
        let gpu = gpu.as_ref().map_or_else(String::new, Gpu::text);
        format!("{gpu}{cpu}, {cores} · {date} · commit {}{plus} · {profile} build", self.short_commit())
    }
}

impl Gpu {
    /// As the beginning of a line.
    fn text(&self) -> String {
        format!("{}, driver {} for CUDA {}, NVRTC {} · ", self.name, self.driver, self.cuda, self.nvrtc)
    }
}

/// The middle of the samples; 0 without any.
pub(super) fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// What a program prints, if there is one and it succeeds.
fn output(program: &str, args: &[&str]) -> Option<String> {
    let done = Command::new(program).args(args).output().ok().filter(|o| o.status.success())?;
    Some(String::from_utf8_lossy(&done.stdout).trim().to_string())
}

fn cpu() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_string())
}

/// Year, month and day of a day since 1970, by Howard Hinnant's "days from civil", reversed: years start in March, so that
/// leap days are last.
fn civil(days: u64) -> [u64; 3] {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    [year_of_era + era * 400 + u64::from(month <= 2), month, day]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        for (days, date) in [
            (0, [1970, 1, 1]),
            (58, [1970, 2, 28]),
            (59, [1970, 3, 1]),
            (11_016, [2000, 2, 29]),
            (19_782, [2024, 2, 29]),
            (20_819, [2027, 1, 1]),
        ] {
            assert_eq!(civil(days), date, "{days}");
        }
    }

    #[test]
    fn a_bar_is_reached_by_the_median_from_its_own_side() {
        let case = |ours: &[f64]| Case::new("x", Value::Null, "s", ours.to_vec());
        assert!(case(&[1.0, 10.0, 99.0]).at_least(10.0).pass);
        assert!(!case(&[9.0, 9.0, 99.0]).at_least(10.0).pass);
        let [four, three] = [4.0, 3.0].map(|x| case(&[x]).at_least(10.0));
        assert!(four.passes(0.33) && !three.passes(0.33));
        assert!(case(&[9.0, 11.0]).at_most(10.0).pass);
        let eleven = case(&[11.0]).at_most(10.0);
        assert!(!eleven.pass && eleven.passes(0.5));
        assert!(case(&[]).pass);
    }

    #[test]
    fn with_baselines_the_bar_is_for_the_ratio_to_the_best() {
        let case = || {
            let slow =
                Case::new("x", Value::Null, "GB/s", vec![90.0]).against("slow", vec![50.0, 52.0, 99.0]);
            slow.against("fast", vec![100.0])
        };
        let rate = case().at_least(0.95);
        assert_eq!((rate.ratio_of_medians, rate.pass), (Some(0.9), false));
        assert!(
            rate.text(1.0).contains("0.900 of fast, slow (bar: at least 0.950, MISSED)"),
            "{}",
            rate.text(1.0)
        );
        assert!(case().at_least(0.9).pass);
        // Where less is better, the best is the smallest.
        let time = case().at_most(1.8);
        assert_eq!((time.ratio_of_medians, time.pass), (Some(90.0 / 52.0), true));
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.json");
        let case = Case::new("x", serde_json::json!({ "tasks": 3 }), "s", vec![1.5, 2.5]).at_most(2.0);
        let mut record = Record::new("sim", vec![case]);
        let without = serde_json::to_value(&record).unwrap();
        assert!(without["hardware"].get("gpu").is_none(), "{without}");
        record.hardware.gpu = Some(Gpu {
            name: "NVIDIA H200".into(),
            multiprocessors: 132,
            memory_bytes: 141 << 30,
            driver: "580.65.06".into(),
            cuda: "13.0".into(),
            nvrtc: "13.1".into(),
            handlers: vec!["add".into()],
        });
        assert!(
            record.origin().starts_with("NVIDIA H200, driver 580.65.06 for CUDA 13.0, NVRTC 13.1 · "),
            "{}",
            record.origin()
        );
        std::fs::write(&path, serde_json::to_string(&record).unwrap()).unwrap();
        let read = Record::read(&path).unwrap();
        assert_eq!((read.stem(), read.origin()), (record.stem(), record.origin()));
        assert_eq!(serde_json::to_value(&read).unwrap(), serde_json::to_value(&record).unwrap());
        for wrong in ["", "{}", r#"{"schema":1,"name":"sim"}"#] {
            std::fs::write(&path, wrong).unwrap();
            assert!(Record::read(&path).is_err(), "{wrong}");
        }
    }
}
