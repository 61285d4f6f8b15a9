//! The page of `mk trace`, opened in Chromium.

#![allow(clippy::unwrap_used)]

#[path = "common/trace.rs"]
mod by_hand;
#[path = "common/chromium.rs"]
mod chromium;
mod common;

use by_hand::{BY_HAND, EXPOSED_PERCENT, EXPOSED_TEXT, Event, RUN_US, file};
use common::mk;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

fn page(folder: &Path, trace: &str, name: &str) -> (String, Value) {
    let out = folder.join(name).display().to_string();
    let done = mk(&["trace", trace, "--out", &out, "--json"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    (fs::read_to_string(out).unwrap(), serde_json::from_str(&done.out).unwrap())
}

fn written(folder: &Path, events: &[Event<'_>]) -> String {
    let path = folder.join("t.json");
    fs::write(&path, file(events, 0.0)).unwrap();
    path.display().to_string()
}

/// Moves the pointer, the wheel and the keys as a user would, and looks at canvas and text.
const TOOLS: &str = r"
// The page draws in the next frame, so what comes after it sees what was drawn.
const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 20)));
const canvas = document.getElementById('rows'), tip = document.getElementById('tip');
window.dispatchEvent(new Event('load'));
const box = canvas.getBoundingClientRect();
const state = () => window.timeline.state();
const send = (type, x, y, more) => canvas.dispatchEvent(new (type === 'wheel' ? WheelEvent : PointerEvent)(type, {
  clientX: box.left + x, clientY: box.top + y, bubbles: true, cancelable: true, pointerId: 1, ...more }));
// Where a moment and a row are: 118 pixels of names, 12 of margin, 24 of a rank's name, rows of 21 pixels.
const px = (us) => 118 + (us - state().from_us) / (state().to_us - state().from_us) * (box.width - 130);
const hover = async (us, y) => { send('pointermove', px(us), y); await frame(); return tip.hidden ? null : [...tip.children].map((e) => e.textContent); };
// From a copy: a browser warns of reading a canvas often.
const copy = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
const colour = (us, y) => {
  copy.clearRect(0, 0, 1, 1);
  copy.drawImage(canvas, Math.round(px(us) * devicePixelRatio), Math.round(y * devicePixelRatio), 1, 1, 0, 0, 1, 1);
  return [...copy.getImageData(0, 0, 1, 1).data].slice(0, 3);
};
";

#[test]
fn the_page_shows_the_numbers_zooms_and_says_what_is_under_the_pointer() {
    let Some(chromium) = chromium::find() else { return };
    let d = tempfile::tempdir().unwrap();
    let (html, said) = page(d.path(), &written(d.path(), &BY_HAND), "t.html");
    let script = r"
    await frame();
    const text = (q) => document.querySelector(q).textContent;
    const r = { first: state(), exposed: text('#exposed b'), percent: text('#exposed span'), run: text('#run b'),
      table: document.querySelectorAll('tbody tr').length, legend: document.querySelectorAll('#legend span').length };
    r.works = colour(4, 30); r.waits = colour(5.5, 30); r.push = colour(11, 39); r.idle = colour(15, 30);
    r.task = await hover(4, 30); r.wait = await hover(1, 30); r.named = await hover(5, 24 + 42 + 8 + 30);
    r.nothing = await hover(15, 30); r.comm = await hover(11, 39);
    send('wheel', px(4), 30, { deltaY: -100 }); await frame(); r.zoomed = state();
    send('wheel', px(4), 30, { deltaY: 100 }); await frame(); r.back = state();
    for (let i = 0; i < 20; i++) send('wheel', px(6), 30, { deltaY: -100 });
    await frame(); r.close = state(); r.closeWaits = colour(5.95, 30); r.closeWorks = colour(6.05, 30);
    const before = state();
    send('pointerdown', 400, 30, { button: 0 }); send('pointermove', 300, 30, {}); send('pointerup', 300, 30, {});
    await frame(); r.dragged = (state().from_us - before.from_us) / (before.to_us - before.from_us) * (box.width - 130);
    for (let i = 0; i < 100; i++) send('wheel', 600, 30, { deltaY: -1000 });
    await frame(); r.closest = state();
    send('dblclick', 400, 30, {}); await frame(); r.all = state();
    document.getElementById('scroller').dispatchEvent(new KeyboardEvent('keydown', { key: '+', bubbles: true })); await frame(); r.key = state();
    document.querySelector('#ranks button').click(); await frame(); r.folded = state().rows; r.moved = await hover(5, 32 + 24 + 5);
    document.getElementById('fold').click(); await frame(); r.none = state().rows;
    document.getElementById('fold').click(); await frame(); r.unfolded = state().rows;
    report(r);
    ";
    let done = chromium::open(chromium, d.path(), &html, &format!("{TOOLS}{script}"));
    assert_eq!(done.console, [""; 0], "nothing is written to the console");
    let r = done.report();

    assert_eq!((&r["first"]["rows"], &r["first"]["from_us"]), (&json!(3), &json!(0)));
    assert_eq!(r["first"]["to_us"].as_f64(), Some(RUN_US));
    assert_eq!([&r["exposed"], &r["percent"], &r["run"]], [EXPOSED_TEXT, EXPOSED_PERCENT, "16.0 us"]);
    assert_eq!(r["exposed"], format!("{:.2} us", said["exposed_us"].as_f64().unwrap()));
    assert_eq!((&r["table"], &r["legend"]), (&json!(2), &json!(4)));

    // Families by name: `tile from rank n gemm`, then `tile local gemm`, the second colour; the first of comm.
    assert_eq!(r["works"], json!([0x3f, 0x9c, 0x8c]));
    assert_eq!(r["push"], json!([0xdd, 0x95, 0x37]));
    let red = |c: &Value| c[0].as_u64() > c[1].as_u64().map(|x| x + 20) && c[0].as_u64() > Some(200);
    assert!(red(&r["waits"]) && red(&r["closeWaits"]), "{r}");
    assert_eq!(r["closeWorks"], r["works"]);
    assert_ne!(r["idle"], r["works"]);

    assert_eq!(
        r["task"],
        json!([
            "tile local gemm",
            "rank 0, lane 0, compute, task 0",
            "starts at 0.000 us, takes 10.00 us",
            "waits 3.000 us of it for signals, 3 times"
        ])
    );
    assert_eq!(r["wait"][4], "here it waits from 0.000 us on, for 2.000 us");
    assert_eq!(r["named"][0], "tile from rank 0 gemm");
    assert_eq!(r["named"][4], "here it waits from 4.000 us on, for 4.000 us, rows of rank 0");
    assert_eq!(r["nothing"], Value::Null);
    assert_eq!(r["comm"][0], "push to rank 1 put");

    // A step of the wheel is a factor of e^0.2, and what is under the pointer stays there.
    let number = |v: &Value| v.as_f64().unwrap();
    let span = |s: &Value| number(&s["to_us"]) - number(&s["from_us"]);
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-3, "{a} is not {b}: {r}");
    near(span(&r["zoomed"]), RUN_US / 0.2_f64.exp());
    // The pointer is on a whole pixel, up to half of one from there.
    let pixel = RUN_US / 1000.0;
    assert!((number(&r["zoomed"]["from_us"]) - 4.0 * (1.0 - (-0.2_f64).exp())).abs() < pixel, "{r}");
    near(span(&r["back"]), RUN_US);
    near(span(&r["close"]), RUN_US * (-4.0_f64).exp());
    near(number(&r["dragged"]), 100.0);
    near(span(&r["closest"]), 0.001);
    assert_eq!(r["all"], r["first"]);
    near(span(&r["key"]), 0.7 * RUN_US);
    assert_eq!(r["moved"][0], "tile from rank 0 gemm", "rank 1 has moved up");
    assert_eq!([&r["folded"], &r["none"], &r["unfolded"]], [1, 0, 3]);
}

/// What the simulator writes: a row for each lane of each rank.
#[test]
fn the_page_of_a_run_has_a_row_for_each_lane() {
    let Some(chromium) = chromium::find() else { return };
    let d = tempfile::tempdir().unwrap();
    let trace = d.path().join("run.json").display().to_string();
    let size = ["--m", "1024", "--n", "1024", "--k", "1024", "--lanes", "8"];
    let run = [&["run", "ag-gemm", "--timing", "--trace", &trace], &size[..]].concat();
    assert_eq!(mk(&run).code, Some(0));
    let (html, said) = page(d.path(), &trace, "run.html");
    assert_eq!((&said["lanes"], said["ranks"].as_array().unwrap().len()), (&json!(32), 4));
    let script = "await frame(); report({ rows: state().rows, exposed: document.querySelector('#exposed b').textContent });";
    // Tall enough for all rows: what is out of sight is not drawn.
    let html = html
        .replace("<header>", "<header style='display:none'>")
        .replace("min-height: 320px", "min-height: 900px");
    let done = chromium::open(chromium, d.path(), &html, &format!("{TOOLS}{script}"));
    assert_eq!(done.console, [""; 0]);
    assert_eq!(done.report()["rows"], 32);
    let us = said["exposed_us"].as_f64().unwrap();
    let shown = if us < 10.0 { format!("{us:.2} us") } else { format!("{us:.1} us") };
    assert_eq!(done.report()["exposed"], shown);
}

#[test]
fn labels_are_text_and_no_script() {
    let Some(chromium) = chromium::find() else { return };
    let d = tempfile::tempdir().unwrap();
    let label = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">&lt;<!--<script>";
    let events = [(0, 0, "compute", label, 0.0, 4.0), (0, 0, "wait", label, 1.0, 2.0)];
    let trace = written(d.path(), &events);
    let (html, _) = page(d.path(), &trace, "t.html");
    let (svg, _) = page(d.path(), &trace, "t.svg");
    let html = html.replace("</header>", "</header><div id=\"svg\"></div>");
    let script = format!(
        "await frame();\nconst svg = new DOMParser().parseFromString({}, 'image/svg+xml');\n\
         report({{ title: document.title, tip: await hover(3, 30), images: document.images.length, scripts: document.scripts.length,\n\
         broken: svg.querySelectorAll('parsererror').length, shown: svg.querySelectorAll('text').length,\n\
         foreign: svg.querySelectorAll('script, img').length }});",
        serde_json::to_string(&svg).unwrap().replace('<', "\\u003c")
    );
    let done = chromium::open(chromium, d.path(), &html, &format!("{TOOLS}{script}"));
    assert_eq!(done.console, [""; 0]);
    let r = done.report();
    assert_eq!((&r["title"], &r["tip"][0]), (&json!("by hand"), &json!(label)));
    // Data, ours, and two of the test.
    assert_eq!([&r["images"], &r["scripts"], &r["broken"], &r["foreign"]], [0, 4, 0, 0]);
    assert!(r["shown"].as_u64() > Some(5), "{r}");
}

/// The tests above would not notice errors otherwise.
#[test]
fn errors_of_a_page_are_seen() {
    let Some(chromium) = chromium::find() else { return };
    let d = tempfile::tempdir().unwrap();
    let done = chromium::open(chromium, d.path(), "<body></body>", "report(1); nothing.here;");
    assert!(done.console.iter().any(|l| l.contains("ReferenceError")), "{done:?}");
    let done = chromium::open(chromium, d.path(), "<body></body>", "report(2); console.error('planted');");
    assert!(done.console.iter().any(|l| l.contains("planted")), "{done:?}");
}
