//! The difference method: a long run less a short one, over the steps that it has more. What both have in common, such as
//! launching and starting up, is not in it.

use super::super::Measurement;
use super::super::record::{Case, median};
use super::super::rig::machine::Machine;
use super::super::rig::runner::Runner;
use super::super::rig::workload::Workload;
use crate::error::Failure;
use crate::gpu::How;
use mk_core::Registry;
use mk_kernel::Limits;
use serde_json::{Value, json};

/// Two runs, of which one does more steps than the other.
pub(super) struct Difference {
    /// What the runs are called, the shorter first, and one step.
    pub(super) names: [String; 3],
    /// What the record says of each.
    pub(super) params: [Value; 3],
    /// Steps of each run.
    pub(super) lengths: [u64; 2],
    pub(super) unit: Unit,
    /// The longest that a step may take.
    pub(super) bar: Option<f64>,
}

/// What a step is measured in.
#[derive(Clone, Copy)]
pub(super) enum Unit {
    Nanoseconds,
    Microseconds,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Unit::Nanoseconds => "ns",
            Unit::Microseconds => "us",
        }
    }

    fn of_micros(self, us: f64) -> f64 {
        match self {
            Unit::Nanoseconds => us * 1e3,
            Unit::Microseconds => us,
        }
    }
}

impl Difference {
    /// Measures both, and keeps them and the step.
    pub(super) fn measure(
        self,
        m: &mut Measurement<'_, '_>,
        machine: &Machine,
        registry: &Registry,
        workloads: &[Workload; 2],
    ) -> Result<(), Failure> {
        let times = {
            let _step = m.step(self.names[2].clone());
            alternate(m.many_samples(), machine, registry, workloads)?
        };
        self.cases(times).into_iter().for_each(|case| m.keep(case));
        Ok(())
    }

    fn cases(self, [short, long]: [Vec<f64>; 2]) -> [Case; 3] {
        let steps = self.lengths[1] - self.lengths[0];
        let each = per_step(&short, &long, steps).into_iter().map(|us| self.unit.of_micros(us)).collect();
        let ([short_name, long_name, name], [short_params, long_params, params]) = (self.names, self.params);
        let step = Case::new(name, params, self.unit.name(), each);
        [
            Case::new(short_name, short_params, "us", short),
            Case::new(long_name, long_params, "us", long),
            match self.bar {
                Some(bar) => step.at_most(bar),
                None => step,
            },
        ]
    }
}

/// Runs two workloads in turn, a launch a run.
pub(super) fn alternate(
    samples: u16,
    machine: &Machine,
    registry: &Registry,
    [one, other]: &[Workload; 2],
) -> Result<[Vec<f64>; 2], Failure> {
    let mut runner = Runner::open(machine, registry, Limits::default(), How::Launched)?;
    let works = [runner.bind(one)?, runner.bind(other)?];
    runner.alternate(&works, samples)
}

/// The time of one of the `steps` that `more` has more than `less`. The median of what comes out is the difference of the
/// medians, over the steps.
pub(super) fn per_step(less: &[f64], more: &[f64], steps: u64) -> Vec<f64> {
    let base = median(less);
    more.iter().map(|time| (time - base) / steps as f64).collect()
}

/// Where a case is drawn: on which line of which panel, and how far to the right.
pub(super) fn point(panel: &str, line: &str, x: u64) -> Value {
    json!({ "panel": panel, "line": line, "x": x })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_the_difference_of_the_medians_over_the_steps() {
        let (less, more) = ([9.0, 10.0, 50.0], [30.0, 29.0, 70.0, 31.0, 28.0]);
        let each = per_step(&less, &more, 20);
        assert_eq!(each, [1.0, 0.95, 3.0, 1.05, 0.9]);
        assert_eq!(median(&each), (median(&more) - median(&less)) / 20.0);
    }

    #[test]
    fn runs_are_kept_in_microseconds_and_the_step_in_its_unit_against_its_bar() {
        for (unit, name, bar, want) in
            [(Unit::Nanoseconds, "ns", 200.0, 250.0), (Unit::Microseconds, "us", 0.3, 0.25)]
        {
            let difference = Difference {
                names: ["short", "long", "step"].map(Into::into),
                params: [point("p", "l", 10), point("p", "l", 90), Value::Null],
                lengths: [10, 90],
                unit,
                bar: Some(bar),
            };
            let cases = difference.cases([vec![30.0; 3], vec![50.0; 3]]);
            let said = cases.each_ref().map(|c| (c.name.as_str(), c.unit.as_str(), c.ours[0]));
            assert_eq!(said, [("short", "us", 30.0), ("long", "us", 50.0), ("step", name, want)]);
            assert_eq!(cases[2].passes(1.0), want <= bar);
            assert_eq!(cases[1].params["x"], 90);
        }
    }
}
