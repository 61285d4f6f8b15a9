//! Each call of the driver fails once, on the host and on a guest: both fail, and nothing is left.

use super::world::{Process, Scene};
use serde_json::Value;

/// Both processes of a world of two, of which this one fails at its call of this number.
fn failing(rank: u16, at: usize) -> ([Value; 2], [Process; 2], Scene) {
    let mut scene = Scene::hurried(2, 10_000);
    scene.driver = "devices=2".into();
    let start = |r| {
        scene.start_as(&[r], |s| {
            if r == rank && at > 0 {
                s.driver = format!("devices=2; fail_at={at}");
            }
        })
    };
    let mut all = [0, 1].map(start);
    all.iter_mut().for_each(|p| p.tell("connect"));
    let answers = all.each_mut().map(Process::answer);
    (answers, all, scene)
}

fn each_call_fails_once(rank: u16) {
    let (_, whole, _scene) = failing(rank, 0);
    let calls = whole[usize::from(rank)].calls();
    drop(whole);
    // What is done when a heap is made; nothing is closed in it but the stream that clears the memory.
    let opening = calls.iter().rposition(|(name, _)| name == "cuMemSetAccess").unwrap() + 1;
    let mut names = std::collections::BTreeSet::new();
    for at in 1..=opening {
        let name = &calls[at - 1].0;
        let (answers, mut all, scene) = failing(rank, at);
        let failed = &all[usize::from(rank)].calls()[at - 1];
        assert_eq!(failed, &(name.clone(), 999), "the calls before it are those of a whole meeting");
        // What cannot be closed, or a context that cannot be put back, is kept, and goes with its context.
        if answers.iter().all(|a| a["error"] == Value::Null) {
            assert!(
                ["cuStreamDestroy_v2", "cuCtxGetCurrent", "cuCtxSetCurrent"].contains(&name.as_str()),
                "{name}"
            );
            continue;
        }
        for (p, answer) in all.iter_mut().zip(&answers) {
            let message =
                answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{at}, {name}: {answer}"));
            assert!(message.contains(name) && message.contains(&format!("rank {rank}")), "{at}: {message}");
            assert!(!answer["error"]["hint"].as_str().unwrap().is_empty());
            assert!(answer["ms"].as_u64().unwrap() < 5000, "{at}, {name}: {answer}");
            p.assert_clean();
        }
        scene.assert_no_socket();
        names.insert(name.clone());
    }
    // It is a set-up of many kinds of steps, all of which failed once.
    for name in [
        "cuInit",
        "cuDevicePrimaryCtxRetain",
        "cuMemCreate",
        "cuMemAddressReserve",
        "cuMemMap",
        "cuMemSetAccess",
        "cuStreamCreate",
        "cuMemsetD8Async",
        "cuMemExportToShareableHandle",
        "cuMemImportFromShareableHandle",
    ] {
        assert!(names.contains(name), "{name} did not fail: {names:?}");
    }
}

#[test]
fn regress_nccl_2206_each_call_of_a_host_fails_once() {
    each_call_fails_once(0);
}

#[test]
fn regress_nccl_2225_each_call_of_a_guest_fails_once() {
    each_call_fails_once(1);
}
