//! What a benchmark writes down: everything that is needed to measure it again.

use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// Version of the files: raised when a field changes its meaning.
const SCHEMA: u32 = 1;
/// Seconds of a day.
const DAY: u64 = 86_400;

/// A file of results.
#[derive(Serialize)]
pub(super) struct Record {
    schema: u32,
    name: String,
    date: String,
    commit: String,
    dirty: bool,
    hardware: Hardware,
    versions: BTreeMap<&'static str, String>,
    cases: Vec<Case>,
}

#[derive(Serialize)]
struct Hardware {
    cpu: String,
    cores: usize,
}

/// One thing that was measured.
#[derive(Serialize)]
pub(super) struct Case {
    pub(super) name: String,
    params: Value,
    unit: &'static str,
    pub(super) ours: Vec<f64>,
    baselines: BTreeMap<String, Vec<f64>>,
    /// Ours over the baseline; `None` without one.
    ratio_of_medians: Option<f64>,
    bar: Option<f64>,
    /// Whether more is better.
    more_is_better: bool,
    /// Whether the median reaches the whole bar.
    pass: bool,
}

impl Case {
    /// A case without a bar.
    pub(super) fn free(name: String, params: Value, unit: &'static str, ours: Vec<f64>) -> Case {
        Case::new(name, params, unit, ours, None, true)
    }

    /// A case whose median must be at least `bar`.
    pub(super) fn at_least(
        name: String,
        params: Value,
        unit: &'static str,
        ours: Vec<f64>,
        bar: f64,
    ) -> Case {
        Case::new(name, params, unit, ours, Some(bar), true)
    }

    /// A case whose median must be at most `bar`.
    pub(super) fn at_most(name: String, params: Value, unit: &'static str, ours: Vec<f64>, bar: f64) -> Case {
        Case::new(name, params, unit, ours, Some(bar), false)
    }

    fn new(
        name: String,
        params: Value,
        unit: &'static str,
        ours: Vec<f64>,
        bar: Option<f64>,
        more_is_better: bool,
    ) -> Case {
        let mut case = Case {
            name,
            params,
            unit,
            ours,
            baselines: BTreeMap::new(),
            ratio_of_medians: None,
            bar,
            more_is_better,
            pass: false,
        };
        case.pass = case.passes(1.0);
        case
    }

    /// Whether the median reaches this share of the bar.
    pub(super) fn passes(&self, of_bar: f64) -> bool {
        let median = median(&self.ours);
        self.bar.is_none_or(
            |bar| if self.more_is_better { median >= bar * of_bar } else { median <= bar / of_bar },
        )
    }

    /// For people.
    pub(super) fn text(&self, of_bar: f64) -> String {
        let number = |x: f64| if x >= 1e5 { format!("{:.2} M", x / 1e6) } else { format!("{x:.3}") };
        let median = format!("{} {}", number(median(&self.ours)), self.unit);
        let Some(bar) = self.bar else { return median };
        let sign = if self.more_is_better { "at least" } else { "at most" };
        let verdict = if self.passes(of_bar) { "passed" } else { "MISSED" };
        format!("{median} (bar: {sign} {}, {verdict})", number(bar))
    }
}

impl Record {
    /// A record of these cases, here and now.
    pub(super) fn new(name: &str, cases: Vec<Case>) -> Record {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let [year, month, day] = civil(now / DAY);
        let changed = output("git", &["status", "--porcelain", "--untracked-files=no"]);
        Record {
            schema: SCHEMA,
            name: name.into(),
            date: format!("{year:04}-{month:02}-{day:02}"),
            commit: output("git", &["rev-parse", "HEAD"]).unwrap_or_else(|| "unknown".into()),
            dirty: changed.is_none_or(|c| !c.is_empty()),
            hardware: Hardware {
                cpu: cpu().unwrap_or_else(|| "unknown".into()),
                cores: std::thread::available_parallelism().map_or(1, |n| n.get()),
            },
            versions: BTreeMap::from([
                ("mk", env!("CARGO_PKG_VERSION").into()),
                ("profile", if cfg!(debug_assertions) { "debug" } else { "release" }.into()),
                ("rustc", output("rustc", &["--version"]).unwrap_or_else(|| "unknown".into())),
            ]),
            cases,
        }
    }

    /// `NAME-DATE-COMMIT.json`.
    pub(super) fn file_name(&self) -> String {
        format!("{}-{}-{}.json", self.name, self.date, self.commit.get(..10).unwrap_or(&self.commit))
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
        let case = |at_least: bool, ours: &[f64]| {
            let new = if at_least { Case::at_least } else { Case::at_most };
            new("x".into(), Value::Null, "s", ours.to_vec(), 10.0)
        };
        assert!(case(true, &[1.0, 10.0, 99.0]).pass);
        assert!(!case(true, &[9.0, 9.0, 99.0]).pass);
        assert!(case(true, &[4.0]).passes(0.33) && !case(true, &[3.0]).passes(0.33));
        assert!(case(false, &[9.0, 11.0]).pass);
        assert!(!case(false, &[11.0]).pass && case(false, &[11.0]).passes(0.5));
        assert!(Case::free("x".into(), Value::Null, "s", vec![]).pass);
    }
}
