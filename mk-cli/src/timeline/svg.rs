//! The timeline as a picture: one file without scripts, fonts or anything else from elsewhere.

use super::cells::{Bar, Scale};
use super::shown::Budget;
use super::text::{clean, escape, percent, us};
use super::view::{Kind, LaneRow, RankRows, View};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Rows that are still told apart on a screen or two; slices are not limited, they are drawn together.
pub(crate) const BUDGET: Budget = Budget { lanes: 160, slices: usize::MAX };
/// Bytes of a picture, if that can be reached.
const MAX_BYTES: usize = 300_000;
/// Cells in pixels that are tried, finest first, until a picture is small enough.
const FINEST_CELL: f64 = 0.8;
const COARSEST_CELL: f64 = 60.0;

const WIDTH: f64 = 1200.0;
const LEFT: f64 = 124.0;
const RIGHT: f64 = 28.0;
const PLOT: f64 = WIDTH - LEFT - RIGHT;
/// Of a character of the small font, on average.
const CHARACTER: f64 = 6.1;
const LONGEST_NAME: usize = 40;

const STYLE: &str = include_str!("../../assets/timeline-svg.css");

/// Heights in pixels: what is drawn in a row.
#[derive(Clone, Copy, Debug)]
struct Heights {
    compute: f64,
    comm: f64,
    gap: f64,
    between_ranks: f64,
}

impl Heights {
    fn of(view: &View<'_>) -> Heights {
        let rows = view.rows();
        let (compute, comm, gap) = match rows {
            0..=40 => (11.0, 4.0, 3.0),
            41..=80 => (7.0, 3.0, 2.0),
            81..=160 => (4.5, 2.0, 1.5),
            _ => (2.0, 1.0, 0.5),
        };
        let between_ranks = if rows > 2 * view.ranks.len() { 14.0 } else { 5.0 };
        if view.has_comm() {
            Heights { compute, comm, gap, between_ranks }
        } else {
            Heights { compute: compute + comm, comm: 0.0, gap, between_ranks }
        }
    }

    fn row(&self) -> f64 {
        self.compute + self.comm + self.gap
    }

    /// Of a rank's rows, which leave room for its name.
    fn rank(&self, rank: &RankRows<'_>) -> f64 {
        (self.row() * rank.lanes.len() as f64).max(12.0)
    }
}

/// The picture.
pub(crate) fn svg(view: &View<'_>) -> String {
    let mut cell = FINEST_CELL;
    loop {
        let picture = draw(view, cell);
        cell *= 1.4;
        if picture.len() <= MAX_BYTES || cell > COARSEST_CELL {
            return picture;
        }
    }
}

fn draw(view: &View<'_>, cell: f64) -> String {
    let (legend, legend_height) = legend(view, 92.0);
    let heights = Heights::of(view);
    let top = 92.0 + legend_height + 30.0;
    let ranks: f64 = view.ranks.iter().map(|r| heights.rank(r) + heights.between_ranks).sum();
    let bottom = top + ranks.max(60.0);
    let folded = view.shown.folded_text();
    let height = bottom + if folded.is_some() { 34.0 } else { 14.0 };
    let mut s = String::with_capacity(MAX_BYTES);
    let size = format!("width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\"");
    let _ = writeln!(s, "<svg xmlns=\"http://www.w3.org/2000/svg\" {size} role=\"img\">");
    let _ = writeln!(s, "<title>{}: {}</title>", escape(&clean(&view.title, 200)), exposed(view));
    let _ = writeln!(s, "<style>\n{STYLE}</style>\n{HATCH}");
    let _ = writeln!(s, "<rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\"/>");
    header(&mut s, view);
    s.push_str(&legend);
    axis(&mut s, view, top, bottom);
    rows(&mut s, view, heights, top, cell);
    if view.ranks.is_empty() {
        text(&mut s, "small", LEFT, top + 30.0, "no task ran");
    }
    if let Some(folded) = folded {
        text(&mut s, "small", LEFT, bottom + 18.0, &folded);
    }
    s.push_str("</svg>\n");
    s
}

const HATCH: &str = "<defs><pattern id=\"hatch\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" \
                     patternTransform=\"rotate(45)\"><rect class=\"wait\" width=\"5\" height=\"5\"/>\
                     <rect class=\"line\" width=\"1.6\" height=\"5\"/></pattern></defs>";

fn exposed(view: &View<'_>) -> String {
    let all = &view.summary.all;
    format!("exposed communication {}, {} of the run", us(all.exposed_us), percent(all.exposed))
}

fn text(s: &mut String, class: &str, x: f64, y: f64, text: &str) {
    let _ = writeln!(s, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(text));
}

fn header(s: &mut String, view: &View<'_>) {
    let summary = view.summary;
    text(s, "title", 20.0, 34.0, &clean(&view.title, 90));
    text(s, "exposed", 20.0, 60.0, &exposed(view));
    let (run, lanes) = (us(summary.run_us), summary.shares_text(&summary.all));
    let line = format!("run {run}   ·   compute lanes: {lanes}   ·   {}", summary.size_text());
    text(s, "small", 20.0, 80.0, &line);
}

/// The legend, and how high it is.
fn legend(view: &View<'_>, top: f64) -> (String, f64) {
    let families = &view.families.list;
    let mut entries: Vec<(String, String)> =
        families.iter().map(|f| (colour_class(f.comm, f.colour), clean(&f.name, LONGEST_NAME))).collect();
    entries.push(("w".into(), "waits for a signal".into()));
    let (mut s, mut x, mut y) = (String::new(), 20.0, top);
    for (class, name) in entries {
        let width = 34.0 + CHARACTER * name.chars().count() as f64;
        if x > 20.0 && x + width > WIDTH - 20.0 {
            (x, y) = (20.0, y + 20.0);
        }
        let _ = writeln!(
            s,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"12\" height=\"12\" rx=\"2\"/>"
        );
        text(&mut s, "small", x + 18.0, y + 10.0, &name);
        x += width;
    }
    (s, y - top + 20.0)
}

fn colour_class(comm: bool, colour: usize) -> String {
    format!("{}{colour}", if comm { 'm' } else { 'c' })
}

/// Lines at round numbers of microseconds.
fn axis(s: &mut String, view: &View<'_>, top: f64, bottom: f64) {
    let run_us = view.summary.run_us;
    let step = step_us(run_us);
    let mut grid = String::new();
    let mut tick = 0_u32;
    while run_us > 0.0 && f64::from(tick) * step <= run_us * (1.0 + 1e-9) {
        let at = f64::from(tick) * step;
        let x = LEFT + at / run_us * PLOT;
        let _ = write!(grid, "M{x:.1} {:.1}V{bottom:.1}", top - 8.0);
        let unit = if tick == 0 { " us" } else { "" };
        text(s, "tick", x, top - 12.0, &format!("{}{unit}", decimal(at, step)));
        tick += 1;
    }
    let _ = writeln!(s, "<path class=\"grid\" d=\"{grid}\"/>");
}

/// A round number of microseconds that divides the run in about ten.
fn step_us(run_us: f64) -> f64 {
    let rough = run_us.max(1e-6) / 10.0;
    let power = 10_f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|s| *s >= rough).unwrap_or(rough)
}

/// `value` with as many digits as `step` needs.
fn decimal(value: f64, step: f64) -> String {
    let digits = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
    format!("{value:.digits$}")
}

/// Bars of one colour and height, by whether they are of comm streams.
type Paths = BTreeMap<(bool, Kind), String>;

/// All bars, and the names of ranks and lanes. A bar is a line as wide as its row is high: that is the shortest to write.
fn rows(s: &mut String, view: &View<'_>, heights: Heights, top: f64, cell: f64) {
    let ps = view.to.abs_diff(view.from) as f64;
    let scale = Scale { from: view.from, pixels_per_ps: if ps > 0.0 { PLOT / ps } else { 0.0 }, cell };
    let mut paths = Paths::new();
    let mut beds = String::new();
    let mut y = top;
    for rank in &view.ranks {
        rank_name(s, rank, heights, y);
        for (number, lane) in rank.lanes.iter().enumerate() {
            let y = y + heights.row() * number as f64;
            lane_name(s, rank, lane, heights, y);
            let _ = write!(beds, "M{LEFT} {y:.1}h{PLOT}v{:.1}h-{PLOT}z", heights.compute + heights.comm);
            let middles = [y + heights.compute / 2.0, y + heights.compute + heights.comm / 2.0];
            track(&mut paths, false, &scale.bars(&view.pieces(lane.compute)), middles[0]);
            track(&mut paths, true, &scale.bars(&view.pieces(lane.comm)), middles[1]);
        }
        y += heights.rank(rank) + heights.between_ranks;
    }
    let _ = writeln!(s, "<path class=\"bed\" d=\"{beds}\"/>");
    for ((comm, kind), path) in paths {
        let class = match kind {
            Kind::Task(family) => {
                let family = &view.families.list[family];
                colour_class(family.comm, family.colour)
            }
            Kind::Wait => "w".into(),
        };
        let height = decimals(if comm { heights.comm } else { heights.compute });
        let _ = writeln!(s, "<path class=\"{class}\" stroke-width=\"{height}\" d=\"{path}\"/>");
    }
}

fn track(paths: &mut Paths, comm: bool, bars: &[Bar], y: f64) {
    for bar in bars {
        let width = bar.to - bar.from;
        // Neighbours of one colour are seen apart where there is room.
        let drawn = if width > 4.0 && bar.kind != Kind::Wait { width - 0.6 } else { width };
        let path = paths.entry((comm, bar.kind)).or_default();
        let _ = write!(path, "M{} {}h{}", decimals(LEFT + bar.from), decimals(y), decimals(drawn));
    }
}

/// One decimal, and none where it is 0.
fn decimals(x: f64) -> String {
    let text = format!("{x:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_string)
}

fn rank_name(s: &mut String, rank: &RankRows<'_>, heights: Heights, y: f64) {
    let share = percent(rank.shares.shares.exposed);
    text(s, "rank", 20.0, y + 10.0, &format!("rank {}", rank.shares.rank));
    if heights.rank(rank) >= 26.0 {
        text(s, "tiny", 20.0, y + 23.0, &format!("exposed {share}"));
    } else {
        text(s, "tiny", 78.0, y + 10.0, &share);
    }
}

/// Lanes' numbers, as many as there is room for.
fn lane_name(s: &mut String, rank: &RankRows<'_>, lane: &LaneRow<'_>, heights: Heights, y: f64) {
    let every = [1, 2, 4, 8, 16, 32].into_iter().find(|n| f64::from(*n) * heights.row() >= 9.0).unwrap_or(64);
    if rank.lanes.len() > 1 && i32::from(lane.lane) % every == 0 {
        let y = y + (heights.compute / 2.0 + 3.0).max(5.0);
        text(s, "lane", LEFT - 7.0, y, &lane.lane.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_about_ten() {
        for (run_us, step) in [(38.2, 5.0), (494.8, 50.0), (3.01, 0.5), (1.0, 0.1), (52_339.0, 10_000.0)] {
            assert!((step_us(run_us) - step).abs() < 1e-9 * step, "{run_us}: {}", step_us(run_us));
        }
        assert_eq!([decimal(1.5, 0.5), decimal(20.0, 5.0), decimal(0.04, 0.02)], ["1.5", "20", "0.04"]);
    }
}
