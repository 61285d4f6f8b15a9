//! `mk bench gpu`: what the kernel's means cost on the first GPU. Every run is a new epoch, the bounds of waits are on, and the
//! kernel has all handlers. Operators are measured elsewhere: this is what they are made of.

mod all_reduce;
mod change;
mod difference;
mod dispatch;
mod doorbell;
mod hops;
mod patience;
mod start;

use super::plot::{Panel, Point};
use super::record::Record;
use super::{Bench, Measurement};
use crate::error::Failure;
use serde_json::Value;

pub(super) const BENCH: Bench = Bench {
    name: "gpu",
    about: "the kernel on the first GPU: tasks, signals, launches, small all-reduces, start-up, time-outs",
    measure,
    shows: "what the kernel's means cost",
    panels,
};

/// Panels: what is drawn, against what.
const PANELS: [[&str; 2]; 3] =
    [[dispatch::PANEL, "tasks a lane, on all lanes"], [hops::PANEL, "signals"], [all_reduce::PANEL, "bytes"]];

fn measure(m: &mut Measurement<'_, '_>) -> Result<(), Failure> {
    let machine = m.machine()?;
    start::measure(m, &machine)?;
    dispatch::measure(m, &machine)?;
    change::measure(m, &machine)?;
    doorbell::measure(m, &machine)?;
    hops::measure(m, &machine)?;
    all_reduce::measure(m, &machine)?;
    patience::measure(m, &machine)
}

/// What has a place on a panel.
fn panels(record: &Record) -> Vec<Panel> {
    PANELS.map(|[title, x]| panel(record, title, x)).into()
}

fn panel(record: &Record, title: &str, x: &str) -> Panel {
    let mut panel = Panel::new(title, x, "time, us", Some("slope 1: linear"));
    let here = |case: &&super::Case| case.params.get("panel").and_then(Value::as_str) == Some(title);
    for case in record.cases.iter().filter(here) {
        let line = case.params.get("line").and_then(Value::as_str);
        let at = case.params.get("x").and_then(Value::as_f64);
        if let (Some(line), Some(at)) = (line, at) {
            panel.series(line).points.extend(Point::of(at, &case.ours));
        }
    }
    panel
}

#[cfg(test)]
mod tests {
    use super::super::Case;
    use super::*;
    use difference::point;

    #[test]
    fn a_case_is_drawn_where_it_says() {
        let case = |params, ours: &[f64]| Case::new("a case", params, "us", ours.to_vec());
        let cases = vec![
            case(point(dispatch::PANEL, "static lanes", 200), &[30.0]),
            case(point(dispatch::PANEL, "static lanes", 2_200), &[300.0]),
            case(point(dispatch::PANEL, "ticket queue", 200), &[70.0]),
            case(point(all_reduce::PANEL, "bulk copies and flags", 16), &[4.0, 5.0, 6.0]),
            case(point("no such panel", "a line", 1), &[1.0]),
            case(Value::Null, &[1.0]),
        ];
        let panels = panels(&Record::new("gpu", cases));
        let points: Vec<Vec<usize>> =
            panels.iter().map(|p| p.lines.iter().map(|l| l.points.len()).collect()).collect();
        assert_eq!(points, [vec![2, 1], vec![], vec![1]]);
        assert_eq!(panels[2].lines[0].points, [Point::of(16.0, &[4.0, 5.0, 6.0]).unwrap()]);
    }
}
