//! Each step of opening a session and loading a program fails once; and sessions one after the other.

use super::child::{Failed, descriptors, open};
use super::fake::{Call, Done, run};
use super::programs::{product, registry};
use mk_core::Session as _;
use mk_kernel::Limits;
use mk_kernel::driver::Driver;
use serde_json::{Value, json};

/// Opens a session of two ranks, loads a program, and drops both.
pub(crate) fn set_up(driver: &Driver, how: &str) -> Result<Value, Failed> {
    let registry = registry(2);
    let mut gpu = open(driver, &registry, how, Limits::default())?;
    gpu.load(&product(&registry))?;
    Ok(Value::Null)
}

/// The same, fifty times.
pub(crate) fn cycles(driver: &Driver, how: &str) -> Result<Value, Failed> {
    let mut after = Vec::new();
    for _ in 0..50 {
        set_up(driver, how)?;
        after.push((driver.live().is_empty(), descriptors()));
    }
    let flat = after.iter().all(|a| *a == after[0]);
    Ok(json!({"empty": after[0].0, "flat": flat}))
}

/// The calls of a set-up that works.
fn whole(how: &str) -> Vec<Call> {
    let done = run(&format!("set-up {how}"), "");
    assert!(!done.failed(), "{}", done.answer);
    done.assert_clean();
    done.calls
}

const RELEASES: [&str; 9] = [
    "cuStreamDestroy_v2",
    "cuMemFree_v2",
    "cuMemFreeHost",
    "cuMemUnmap",
    "cuMemAddressFree",
    "cuMemRelease",
    "cuModuleUnload",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxDisablePeerAccess",
];

/// What call `n` is made for: around a call in a context, that context is asked for, set, and set back.
fn purpose(calls: &[Call], n: usize) -> &str {
    let name = |n: usize| calls.get(n - 1).map_or("", |c| c.name.as_str());
    match name(n) {
        "cuCtxGetCurrent" => name(n + 2),
        "cuCtxSetCurrent" if name(n - 1) == "cuCtxGetCurrent" => name(n + 1),
        "cuCtxSetCurrent" => name(n - 1),
        other => other,
    }
}

/// The set-up again, in which this call fails.
fn failing_at(how: &str, n: usize, code: u32, whole: &[Call]) -> Done {
    let done = run(&format!("set-up {how}"), &format!("fail_at={n}:{code}"));
    let (call, name) = (&done.calls[n - 1], &whole[n - 1].name);
    assert_eq!((&call.name, call.code), (name, code), "the calls before it are those of a whole set-up");
    done
}

/// A typed error that says this, and all is closed.
fn assert_refused(done: &Done, says: &str) {
    assert!(["open", "hardware"].contains(&done.says("error")), "{says}: {}", done.answer);
    assert!(done.says("message").contains(says), "{says}: {}", done.answer);
    assert!(!done.says("hint").is_empty(), "{says}: {}", done.answer);
    done.assert_clean();
}

/// The failure is kept, and everything else is closed.
fn assert_kept(done: &Done, call: &str) {
    assert!(!done.failed(), "{call}: {}", done.answer);
    let kept = done.answer["kept"].as_array().unwrap();
    assert_eq!(kept[0]["call"], call, "{}", done.answer);
    let open = done.answer["live"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum::<u64>();
    assert!(open <= kept.len() as u64, "{call}: {}", done.answer);
    // Memory that could not be closed is a file of the fake driver's.
    assert!(done.answer["descriptors"].as_u64() <= Some(open), "{call}: {}", done.answer);
}

/// Each of these calls fails once.
fn each_step(how: &str, part: impl Fn(&Call, usize) -> bool) {
    let whole = whole(how);
    let steps: Vec<usize> = (1..=whole.len()).filter(|&n| part(&whole[n - 1], n)).collect();
    assert!(steps.len() >= 100, "{} steps of {}", steps.len(), whole.len());
    for n in steps {
        let done = failing_at(how, n, 999, &whole);
        let name = &whole[n - 1].name;
        if RELEASES.contains(&purpose(&whole, n)) {
            assert_kept(&done, name);
        } else {
            assert_refused(&done, name);
        }
    }
}

#[test]
fn regress_nccl_2206_a_session_that_fails_half_way_leaves_nothing_open() {
    each_step("stream", |_, n| n % 8 < 4);
}

#[test]
fn regress_nccl_2225_a_session_that_fails_half_way_leaves_nothing_open() {
    each_step("stream", |_, n| n % 8 >= 4);
}

#[test]
fn the_same_holds_for_a_resident_one() {
    each_step("resident", |call, _| !call.name.starts_with("cuCtx"));
}

#[test]
fn a_session_that_runs_out_of_memory_at_any_step_leaves_nothing_open() {
    for how in ["stream", "resident"] {
        let whole = whole(how);
        let takes = ["cuMemAlloc_v2", "cuMemHostAlloc", "cuMemCreate", "cuModuleLoadData", "cuMemMap"];
        let steps: Vec<usize> = (1..=whole.len()).filter(|n| takes.contains(&&*whole[n - 1].name)).collect();
        assert!(steps.len() >= 12, "{steps:?}");
        for n in steps {
            let done = failing_at(how, n, 2, &whole);
            assert_refused(&done, "out of memory");
            assert_eq!(done.says("kind"), "out-of-memory", "{}", done.answer);
        }
    }
}

#[test]
fn a_gpu_with_too_little_memory_is_a_typed_error() {
    let done = run("set-up stream", "memory=1000000");
    assert_refused(&done, "out of memory");
    assert!(done.says("given").contains("bytes"), "{}", done.answer);
}

#[test]
fn regress_uccl_988_fifty_sessions_leave_nothing_behind() {
    for how in ["stream", "resident"] {
        let done = run(&format!("cycles {how}"), "");
        assert_eq!(done.answer["value"], json!({"empty": true, "flat": true}), "{}", done.answer);
        done.assert_clean();
    }
}
