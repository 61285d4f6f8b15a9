//! Each step of a set-up fails once.

use super::fake::{Call, Done, run};
use serde_json::Value;
use std::collections::BTreeSet;

/// Opens everything and closes it; the call of this number fails.
fn failing_at(n: usize) -> Done {
    run("set-up", &format!("fail_at={n}"))
}

/// The calls of a set-up that works, and how many of them are before it is all open.
fn whole() -> (Vec<Call>, usize) {
    let done = run("set-up", "");
    done.assert_clean();
    // The first thing that is closed; before it, its context is asked for and set.
    let closing = done.calls.iter().position(|c| c.name == "cuModuleUnload").unwrap();
    (done.calls, closing - 2)
}

/// The call of this number failed, once.
fn failed(done: &Done, n: usize, whole: &[Call]) -> String {
    let call = &done.calls[n - 1];
    assert_eq!(
        (&call.name, call.code),
        (&whole[n - 1].name, 999),
        "the calls before it are those of a whole set-up"
    );
    call.name.clone()
}

fn each_step(part: impl Fn(usize) -> bool) {
    let (whole, opening) = whole();
    let mut names = BTreeSet::new();
    for n in (1..=opening).filter(|n| part(*n)) {
        let done = failing_at(n);
        let name = failed(&done, n, &whole);
        assert!(!done.answer["error"].is_null(), "step {n}, {name}: no error");
        assert!(done.says("message").contains(&name), "step {n}, {name}: {}", done.answer);
        assert!(!done.says("hint").is_empty(), "step {n}, {name}: {}", done.answer);
        done.assert_clean();
        names.insert(name);
    }
    // It is a set-up of many kinds of steps, all of which were reached.
    assert!(names.len() >= 18, "{names:?}");
}

#[test]
fn regress_nccl_2206() {
    each_step(|n| n / 4 % 2 == 0);
}

#[test]
fn regress_nccl_2225() {
    each_step(|n| n / 4 % 2 == 1);
}

fn sum(live: &Value) -> u64 {
    live.as_object().unwrap().values().map(|v| v.as_u64().unwrap()).sum()
}

#[test]
fn a_release_that_fails_is_kept_and_everything_else_is_closed() {
    let (whole, opening) = whole();
    for n in opening + 1..=whole.len() {
        let done = failing_at(n);
        let name = failed(&done, n, &whole);
        assert!(done.answer["error"].is_null(), "step {n}, {name}: {}", done.answer);
        // What hangs on it may fail, too: addresses cannot be given back while they are mapped.
        let kept = done.answer["kept"].as_array().unwrap();
        assert_eq!((&kept[0]["call"], &kept[0]["code"]), (&name.clone().into(), &999.into()), "step {n}");
        let mapped = name != "cuMemUnmap" && done.end().live["mappings"] == 0;
        assert!(kept.len() == 1 || !mapped, "step {n}, {name}: {}", done.answer);
        // What could not be closed went with its context, if it was of one.
        let open = sum(&done.answer["live"]);
        assert_eq!(open, sum(&done.end().live) + done.end().orphans, "step {n}, {name}: the ledgers differ");
        assert!(open <= kept.len() as u64, "step {n}, {name}: {}", done.answer);
        assert_eq!(done.end().current, "none", "step {n}, {name}");
    }
}

#[test]
fn a_set_up_that_runs_out_of_memory_at_any_step_is_closed() {
    let (whole, opening) = whole();
    let takes = |c: &Call| {
        [
            "cuMemAlloc_v2",
            "cuMemHostAlloc",
            "cuMemCreate",
            "cuModuleLoadData",
            "cuMemMap",
            "cuDevicePrimaryCtxRetain",
        ]
        .contains(&c.name.as_str())
    };
    let steps: Vec<usize> = (1..=opening).filter(|n| takes(&whole[n - 1])).collect();
    assert!(steps.len() >= 8, "{steps:?}");
    for n in steps {
        let done = run("set-up", &format!("fail_at={n}:2"));
        let name = &whole[n - 1].name;
        assert_eq!(done.error("OutOfMemory")["failure"]["call"], name.as_str());
        done.assert_clean();
    }
}
