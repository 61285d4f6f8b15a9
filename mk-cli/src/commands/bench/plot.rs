//! Pictures of records: lines on logarithmic axes, where a cost that is linear is a line of slope 1.

mod axis;

use super::record::median;
use axis::{Log, number};
use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use std::error::Error;
use std::ops::Range;

/// What comes of drawing.
type Drawn<T> = Result<T, Box<dyn Error>>;

/// Several lines over the same axes.
pub(super) struct Panel {
    pub(super) title: String,
    x: String,
    y: String,
    /// What a line of slope 1 stands for; none is drawn without it.
    slope: Option<String>,
    pub(super) lines: Vec<Series>,
}

/// A line.
pub(super) struct Series {
    name: String,
    pub(super) points: Vec<Point>,
}

/// What was measured at a place: the middle, the least and the most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    x: f64,
    mid: f64,
    low: f64,
    high: f64,
}

impl Panel {
    /// Without lines.
    pub(super) fn new(title: &str, x: &str, y: &str, slope: Option<&str>) -> Panel {
        let [title, x, y] = [title, x, y].map(label);
        Panel { title, x, y, slope: slope.map(label), lines: Vec::new() }
    }

    /// The line of this name.
    pub(super) fn series(&mut self, name: &str) -> &mut Series {
        let name = label(name);
        let at = self.lines.iter().position(|s| s.name == name).unwrap_or_else(|| {
            self.lines.push(Series { name, points: Vec::new() });
            self.lines.len() - 1
        });
        &mut self.lines[at]
    }

    fn points(&self) -> impl Iterator<Item = &Point> {
        self.lines.iter().flat_map(|s| &s.points)
    }

    /// What the axes reach over, with some room; nothing without points.
    fn ranges(&self) -> Option<(Range<f64>, Range<f64>)> {
        let over = |of: fn(&Point) -> [f64; 2]| {
            let all = || self.points().flat_map(of);
            Some(all().reduce(f64::min)? / ROOM..all().reduce(f64::max)? * ROOM)
        };
        Some((over(|p| [p.x, p.x])?, over(|p| [p.low, p.high])?))
    }
}

impl Series {
    /// Its points from left to right.
    fn sorted(&self) -> Vec<Point> {
        let mut points = self.points.clone();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        points
    }
}

impl Point {
    /// Of samples; nothing if they have no place on logarithmic axes.
    pub(super) fn of(x: f64, samples: &[f64]) -> Option<Point> {
        let fits = |v: &f64| (1e-12..1e12).contains(v);
        let all = !samples.is_empty() && samples.iter().chain([&x]).all(fits);
        all.then(|| Point {
            x,
            mid: median(samples),
            low: samples.iter().copied().fold(f64::INFINITY, f64::min),
            high: samples.iter().copied().fold(0.0, f64::max),
        })
    }
}

/// Pixels of a panel, and of the head above all of them.
const PANEL: (u32, u32) = (560, 440);
const HEAD: u32 = 84;
/// Panels beside each other, lines of a panel, and points of a line: more cannot be told apart.
const PANELS: usize = 4;
const LINES: usize = 6;
const POINTS: usize = 64;
/// Colours that differ in lightness too, for those who see few of them (Okabe and Ito, 2008).
const COLOURS: [RGBColor; LINES] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];
/// What points and bars stand for.
const READING: &str = "points: medians; bars: from the least to the most";
const INK: RGBColor = RGBColor(40, 40, 40);
const FAINT: RGBColor = RGBColor(225, 225, 225);
/// How far the axes reach beyond the points, as a factor.
const ROOM: f64 = 1.8;
/// Pixels at the left and right.
const MARGIN: i32 = 24;
const FONT: &str = "system-ui, 'Helvetica Neue', Arial, sans-serif";

/// The picture, as SVG.
///
/// # Errors
/// There is nothing to draw, or too much, or it cannot be drawn; in words.
pub(super) fn svg(title: &str, origin: &str, panels: &[Panel]) -> Result<String, String> {
    if panels.iter().all(|p| p.points().next().is_none()) {
        return Err("it has no points that could be drawn".into());
    }
    let crowded = |p: &Panel| p.lines.len() > LINES || p.lines.iter().any(|s| s.points.len() > POINTS);
    if panels.len() > PANELS || panels.iter().any(crowded) {
        return Err(format!("it has more than {PANELS} panels of {LINES} lines of {POINTS} points"));
    }
    draw(&label(title), &label(origin), panels).map_err(|e| e.to_string())
}

fn draw(title: &str, origin: &str, panels: &[Panel]) -> Drawn<String> {
    let mut text = String::new();
    {
        let size = (PANEL.0 * panels.len() as u32, PANEL.1 + HEAD);
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE)?;
        let (head, body) = root.split_vertically(HEAD);
        head.draw(&Text::new(title, (MARGIN, 16), font(20)))?;
        head.draw(&Text::new(origin, (MARGIN, 44), font(13)))?;
        head.draw(&Text::new(READING, (MARGIN, 62), font(13)))?;
        for (panel, area) in panels.iter().zip(body.split_evenly((1, panels.len()))) {
            draw_panel(panel, &area)?;
        }
        root.present()?;
    }
    Ok(text)
}

fn draw_panel(panel: &Panel, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Drawn<()> {
    let Some((x, y)) = panel.ranges() else { return Ok(()) };
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .margin_right(MARGIN)
        .x_label_area_size(48)
        .y_label_area_size(68)
        .caption(&panel.title, font(15))
        .build_cartesian_2d(Log(x.clone()), Log(y.clone()))?;
    chart
        .configure_mesh()
        .x_desc(&panel.x)
        .y_desc(&panel.y)
        .x_label_formatter(&number)
        .y_label_formatter(&number)
        .label_style(font(12))
        .axis_desc_style(font(13))
        .axis_style(INK)
        .bold_line_style(FAINT)
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (line, colour) in panel.lines.iter().zip(COLOURS) {
        let points = line.sorted();
        let Some(first) = points.first() else { continue };
        if panel.slope.is_some() {
            // Where it would go on to if it were linear, as far as the picture reaches.
            let reach = x.end.min(first.x * y.end / first.mid);
            let ideal = [(first.x, first.mid), (reach, first.mid * reach / first.x)];
            chart.draw_series(DashedLineSeries::new(ideal, 5, 5, colour.mix(0.6).into()))?;
        }
        let style = colour.stroke_width(2);
        chart
            .draw_series(LineSeries::new(points.iter().map(|p| (p.x, p.mid)), style))?
            .label(&line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], style));
        let bars =
            points.iter().map(|p| ErrorBar::new_vertical(p.x, p.low, p.mid, p.high, style.filled(), 9));
        chart.draw_series(bars)?;
    }
    let dashes = |(x, y)| DashedPathElement::new([(x, y), (x + 22, y)], 5, 4, INK.mix(0.6).stroke_width(1));
    if let Some(slope) = &panel.slope {
        chart.draw_series(std::iter::empty::<Circle<(f64, f64), i32>>())?.label(slope).legend(dashes);
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(FAINT)
        .label_font(font(12))
        .draw()?;
    Ok(())
}

fn font(pixels: i32) -> TextStyle<'static> {
    (FONT, pixels).into_font().color(&INK)
}

/// Text that any reader of XML takes.
fn label(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}
