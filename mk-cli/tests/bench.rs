//! `mk bench list` and `mk bench plot`: what can be measured, and pictures of what was; `mk bench gpu` without a GPU.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Mk, mk};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// A record of a planner that is linear and a verifier that is quadratic.
fn record() -> Value {
    let case = |step: &str, tasks: f64, seconds: &[f64]| {
        json!({
            "name": format!("{step}, {tasks} tasks"),
            "params": { "step": step, "world": "8 ranks of 1 node", "tasks": tasks },
            "unit": "s", "ours": seconds, "baselines": {}, "ratio_of_medians": null, "bar": null,
            "more_is_better": true, "pass": true,
        })
    };
    let mut cases = Vec::new();
    for tasks in [1e4, 1e5, 1e6] {
        cases.push(case("plan", tasks, &[tasks / 1e6]));
        cases.push(case("prove", tasks, &[tasks * tasks / 1e11, tasks * tasks / 2e11, tasks * tasks / 4e11]));
    }
    json!({
        "schema": 1, "name": "sim", "date": "2026-01-31", "commit": "0123456789abcdef", "dirty": true,
        "hardware": { "cpu": "A <fast> & \"good\" CPU", "cores": 2 },
        "versions": { "mk": "0.1.0", "profile": "release", "rustc": "rustc 1.95.0" },
        "cases": cases,
    })
}

fn plot(folder: &Path, record: &Value) -> Mk {
    let [from, to] = ["r.json", "r.svg"].map(|name| folder.join(name));
    fs::write(&from, record.to_string()).unwrap();
    mk(&["bench", "plot", from.to_str().unwrap(), "--out", to.to_str().unwrap()])
}

fn refused(done: &Mk, words: &[&str]) {
    assert_eq!(done.code, Some(2), "{done:?}");
    assert_eq!(done.out, "", "{done:?}");
    words.iter().for_each(|word| assert!(done.err.contains(word), "{word}: {}", done.err));
}

#[test]
fn the_list_says_what_can_be_measured() {
    let done = mk(&["bench", "list"]);
    assert_eq!(done.code, Some(0));
    assert!(done.out.starts_with("sim: planner, verifier and simulator"), "{}", done.out);
    let done = mk(&["bench", "list", "--json"]);
    let object: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(
        (&object["benches"][0]["name"], &object["benches"][1]["name"]),
        (&json!("sim"), &json!("gpu"))
    );
}

/// With the driver for tests.
#[cfg(target_os = "linux")]
#[test]
fn without_a_gpu_none_is_measured_and_what_is_missing_is_said() {
    let (folder, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    common::fake_driver(folder.path());
    for (driver, words) in [
        ("devices=0", ["the driver has no GPU", "nvidia-smi"]),
        ("capability=80", ["compute capability 8.0", "9.0 (sm_90a)"]),
        ("", ["NVRTC was not found", "pip install nvidia-cuda-nvrtc"]),
    ] {
        let mut mk = std::process::Command::new(env!("CARGO_BIN_EXE_mk"));
        mk.env_clear().env("LD_LIBRARY_PATH", folder.path()).env("FAKE_CUDA", driver);
        mk.env("MK_NVRTC", "/nowhere").env("XDG_CACHE_HOME", "/nowhere");
        let done = mk.args(["bench", "gpu", "--json", "--out"]).arg(out.path()).output().unwrap();
        let says: Value = serde_json::from_slice(&done.stdout).unwrap();
        assert_eq!((done.status.code(), &says["ok"]), (Some(5), &json!(false)), "{driver}: {says}");
        words.iter().for_each(|word| assert!(says.to_string().contains(word), "{word}: {says}"));
        assert_eq!(out.path().read_dir().unwrap().count(), 0, "{driver}: there is nothing to record");
    }
}

/// A record of a GPU has its own panels, and says which GPU it was, with which driver and compiler.
#[test]
fn a_picture_of_a_gpu_says_which_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let mut record = record();
    record["name"] = json!("gpu");
    record["hardware"]["gpu"] = json!({
        "name": "NVIDIA H200", "multiprocessors": 132, "memory_bytes": 1u64 << 37, "driver": "580.65.06",
        "cuda": "13.0", "nvrtc": "13.1", "handlers": ["add", "nop"],
    });
    for case in record["cases"].as_array_mut().unwrap() {
        let (line, x) = (case["params"]["step"].clone(), case["params"]["tasks"].clone());
        case["params"] = json!({ "panel": "tasks that do nothing", "line": line, "x": x });
    }
    assert_eq!(plot(folder.path(), &record).code, Some(0));
    let svg = fs::read_to_string(folder.path().join("r.svg")).unwrap();
    for text in [
        "mk bench gpu",
        "NVIDIA H200, driver 580.65.06 for CUDA 13.0, NVRTC 13.1",
        "tasks that do nothing",
        "plan",
    ] {
        assert!(svg.contains(text), "{text}: {svg}");
    }
}

#[test]
fn a_picture_says_what_was_measured_where_and_when() {
    let folder = tempfile::tempdir().unwrap();
    let done = plot(folder.path(), &record());
    assert_eq!(done.code, Some(0), "{done:?}");
    let svg = fs::read_to_string(folder.path().join("r.svg")).unwrap();
    assert!(svg.len() < 300_000 && svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    for text in [
        "mk bench sim",
        "A &lt;fast&gt; &amp; &quot;good&quot; CPU, 2 cores",
        "2026-01-31",
        "commit 0123456789 and changes",
        "release build",
        "8 ranks of 1 node",
        "tasks",
        "time on one core, s",
        "plan",
        "prove",
        "slope 1: linear",
    ] {
        assert!(svg.contains(text), "{text}: {svg}");
    }
    assert!(!svg.contains("<fast>"));
}

/// The corners of every solid line, in pixels, as the picture has them.
fn lines(svg: &str) -> Vec<Vec<(f64, f64)>> {
    let attribute = |tag: &str, name: &str| {
        let from = tag.find(&format!("{name}=\""))? + name.len() + 2;
        Some(tag[from..from + tag[from..].find('"')?].to_string())
    };
    let thick = |tag: &&str| attribute(tag, "stroke-width").as_deref() == Some("2");
    let corner = |text: &str| {
        let (x, y) = text.split_once(',').unwrap();
        (x.parse().unwrap(), y.parse().unwrap())
    };
    let tags = svg.split("<polyline").skip(1).map(|tag| tag.split('>').next().unwrap());
    let corners = tags.filter(thick).filter_map(|tag| attribute(tag, "points"));
    corners
        .map(|points| points.split_whitespace().map(corner).collect::<Vec<_>>())
        .filter(|l| l.len() == 3)
        .collect()
}

#[test]
fn on_its_axes_what_is_linear_is_straight_and_what_is_quadratic_is_twice_as_steep() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(plot(folder.path(), &record()).code, Some(0));
    let lines = lines(&fs::read_to_string(folder.path().join("r.svg")).unwrap());
    assert_eq!(lines.len(), 2, "{lines:?}");
    let slope = |line: &[(f64, f64)], i: usize| (line[i].1 - line[i + 1].1) / (line[i + 1].0 - line[i].0);
    let linear = slope(&lines[0], 0);
    assert!(linear > 0.0);
    for (line, times) in [(&lines[0], 1.0), (&lines[1], 2.0)] {
        for i in 0..2 {
            // Corners are whole pixels.
            assert!((slope(line, i) / linear - times).abs() < 0.05, "{line:?}");
        }
    }
}

#[test]
fn what_cannot_be_drawn_is_refused_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let changed = |pointer: &str, value: Value| {
        let mut record = record();
        *record.pointer_mut(pointer).unwrap() = value;
        plot(folder.path(), &record)
    };
    refused(&changed("/schema", json!(2)), &["r.json", "version 2"]);
    refused(&changed("/name", json!("tea")), &["r.json", "'tea'", "known are: sim"]);
    refused(&changed("/cases", json!([])), &["r.json", "no points"]);
    refused(&changed("/hardware", json!("none")), &["r.json", "no record of a benchmark"]);
    let many: Vec<Value> = (0..40)
        .map(|i| {
            let mut case = record()["cases"][0].clone();
            case["params"]["world"] = json!(format!("world {i}"));
            case
        })
        .collect();
    refused(&changed("/cases", json!(many)), &["r.json", "more than 4 panels"]);
    // Nothing below or at 0 has a place on a logarithmic axis.
    let mut flat = record();
    flat["cases"].as_array_mut().unwrap().iter_mut().for_each(|c| c["ours"] = json!([0.0, -1.0, 1e300]));
    refused(&plot(folder.path(), &flat), &["no points"]);
    let from = folder.path().join("r.json").display().to_string();
    let at = |name: &str| folder.path().join(name).display().to_string();
    refused(&mk(&["bench", "plot", &from, "--out", &at("r.png")]), &["r.png", ".svg"]);
    refused(&mk(&["bench", "plot", &at("none.json"), "--out", &at("r.svg")]), &["none.json"]);
    refused(&mk(&["bench", "plot", &from, "--out", &at("nowhere/r.svg")]), &["no folder"]);
    fs::copy(&from, at("same.svg")).unwrap();
    refused(&mk(&["bench", "plot", &at("same.svg"), "--out", &at("same.svg")]), &["the same file"]);
    assert!(!folder.path().join("r.svg").exists());
}
