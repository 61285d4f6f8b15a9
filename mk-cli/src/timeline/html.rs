//! The timeline as a page: one file, no network; a canvas that zooms, pans and says what is under the pointer.

use super::shown::Budget;
use super::text::{clean, escape, percent, us};
use super::trace::Slice;
use super::view::{LaneRow, RankRows, View};
use serde::Serialize;
use std::collections::HashMap;
use std::fmt::Write as _;

/// What a browser draws smoothly, in some 8 MB. Lanes scroll.
pub(crate) const BUDGET: Budget = Budget { lanes: 1 << 14, slices: 300_000 };
/// Ranks in the table.
const TABLE_ROWS: usize = 64;
/// Ranks up to which it is unfolded: above, it would take the place of the timeline.
const OPEN_ROWS: usize = 8;
const LONGEST_NAME: usize = 200;

const PAGE: &str = include_str!("../../assets/timeline.html");
const STYLE: &str = include_str!("../../assets/timeline.css");
const SCRIPT: &str = include_str!("../../assets/timeline.js");

/// What the script draws. Times are picoseconds from the start of the run.
#[derive(Serialize)]
struct Data {
    run: u64,
    /// Names of colours, each with its families' name.
    families: Vec<(String, String)>,
    names: Vec<(String, usize)>,
    ranks: Vec<RankData>,
}

#[derive(Serialize)]
struct RankData {
    rank: u16,
    exposed: String,
    lanes: Vec<LaneData>,
}

#[derive(Serialize)]
struct LaneData {
    lane: u16,
    compute: TrackData,
    comm: TrackData,
}

/// Four numbers a slice, tasks before waits: how much later than the one before it starts, how long it takes, the number of
/// its name, and its task's number or -1.
#[derive(Serialize)]
struct TrackData {
    tasks: Vec<i64>,
    waits: Vec<i64>,
}

/// The page.
///
/// # Errors
/// None that is known: numbers and text can always be written as JSON.
pub(crate) fn html(view: &View<'_>) -> serde_json::Result<String> {
    // In a script element, `<` could begin its end tag.
    let data = serde_json::to_string(&data(view))?.replace('<', "\\u003c");
    let title = clean(&view.title, LONGEST_NAME);
    let parts = HashMap::from([
        ("title", escape(&title).into_owned()),
        ("style", STYLE.into()),
        ("figures", figures(view)),
        ("table", table(view)),
        ("open", if view.summary.ranks.len() <= OPEN_ROWS { " open" } else { "" }.into()),
        ("folded", view.shown.folded_text().map_or_else(String::new, |f| escape(&f).into_owned())),
        ("data", data),
        ("script", SCRIPT.into()),
    ]);
    Ok(fill(PAGE, &parts))
}

/// Puts parts into the places `{{name}}` of a template. What is put in is not looked at again.
fn fill(template: &str, parts: &HashMap<&str, String>) -> String {
    let mut page = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").unwrap_or((after, ""));
        page.push_str(before);
        page.push_str(parts.get(name).map_or("", String::as_str));
        rest = after;
    }
    page + rest
}

fn figures(view: &View<'_>) -> String {
    let summary = view.summary;
    let all = &summary.all;
    let part = |us: f64| percent(summary.part(us));
    let mut s = String::new();
    let mut figure = |id: &str, name: &str, value: &str, more: &str| {
        let _ = writeln!(
            s,
            "<div class=\"figure\" id=\"{id}\"><dt>{name}</dt><dd><b>{value}</b> <span>{more}</span></dd></div>"
        );
    };
    figure("exposed", "exposed communication", &us(all.exposed_us), &percent(all.exposed));
    figure("run", "run", &us(summary.run_us), &summary.size_text());
    figure("busy", "busy", &part(all.busy_us), &us(all.busy_us));
    figure("waiting", "waiting", &part(all.waiting_us), &us(all.waiting_us));
    figure("alone", "communication alone", &part(all.comm_alone_us), &us(all.comm_alone_us));
    figure("idle", "idle", &part(all.idle_us), &us(all.idle_us));
    s
}

fn table(view: &View<'_>) -> String {
    let mut s = String::new();
    let ranks = &view.summary.ranks;
    let part = |us: f64| view.summary.part(us);
    for r in ranks.iter().take(TABLE_ROWS) {
        let _ = write!(s, "<tr><th scope=\"row\">rank {}</th><td>{}</td>", r.rank, r.lanes);
        let shares = &r.shares;
        let parts = [shares.busy_us, shares.waiting_us, shares.comm_alone_us, shares.idle_us];
        for us in parts {
            let _ = write!(s, "<td>{}</td>", percent(part(us)));
        }
        let _ = write!(
            s,
            "<td><b>{}</b></td><td>{}</td><td class=\"bar\">",
            us(shares.exposed_us),
            percent(shares.exposed)
        );
        for (class, us) in ["busy", "waiting", "alone"].into_iter().zip(parts) {
            let _ = write!(s, "<i class=\"{class}\" style=\"width:{:.1}%\"></i>", 100.0 * part(us));
        }
        s.push_str("</td></tr>\n");
    }
    if ranks.len() > TABLE_ROWS {
        let more = ranks.len() - TABLE_ROWS;
        let _ = writeln!(s, "<tr><td colspan=\"9\">and {more} more: mk trace --json has all</td></tr>");
    }
    s
}

fn data(view: &View<'_>) -> Data {
    let mut names = NameTable::default();
    let ranks = view.ranks.iter().map(|r| rank_data(view, r, &mut names)).collect();
    let families = &view.families.list;
    let mut colours: Vec<(String, String)> = families
        .iter()
        .map(|f| (format!("{}{}", if f.comm { 'm' } else { 'c' }, f.colour), clean(&f.name, LONGEST_NAME)))
        .collect();
    colours.push(("w".into(), "waits for a signal".into()));
    Data { run: view.to.abs_diff(view.from), families: colours, names: names.list, ranks }
}

fn rank_data(view: &View<'_>, rank: &RankRows<'_>, names: &mut NameTable) -> RankData {
    RankData {
        rank: rank.shares.rank,
        exposed: percent(rank.shares.shares.exposed),
        lanes: rank.lanes.iter().map(|lane| lane_data(view, lane, names)).collect(),
    }
}

fn lane_data(view: &View<'_>, row: &LaneRow<'_>, names: &mut NameTable) -> LaneData {
    let mut track = |slices: &[Slice]| TrackData {
        tasks: numbers(view, slices.iter().filter(|s| !s.wait), names),
        waits: numbers(view, slices.iter().filter(|s| s.wait), names),
    };
    LaneData { lane: row.lane, compute: track(row.compute), comm: track(row.comm) }
}

fn numbers<'a>(view: &View<'_>, slices: impl Iterator<Item = &'a Slice>, names: &mut NameTable) -> Vec<i64> {
    let mut before = view.from;
    let mut numbers = Vec::new();
    for s in slices {
        let task = s.task.map_or(-1, i64::from);
        numbers.extend([s.from - before, s.to - s.from, names.number(view, s), task]);
        before = s.from;
    }
    numbers
}

/// Names of the slices that are shown, each with its family.
#[derive(Default)]
struct NameTable {
    list: Vec<(String, usize)>,
    numbers: HashMap<(u32, usize), i64>,
}

impl NameTable {
    fn number(&mut self, view: &View<'_>, s: &Slice) -> i64 {
        let waits = view.families.list.len();
        let family = if s.wait { waits } else { view.families.get(s.name, s.comm()).unwrap_or(waits) };
        *self.numbers.entry((s.name, family)).or_insert_with(|| {
            self.list.push((clean(view.trace.names.get(s.name), LONGEST_NAME), family));
            self.list.len() as i64 - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_into_a_page_is_not_looked_at_again() {
        let parts = HashMap::from([("a", "{{b}}".to_string()), ("b", "x".to_string())]);
        assert_eq!(fill("<{{a}}|{{b}}|{{c}}>", &parts), "<{{b}}|x|>");
    }
}
