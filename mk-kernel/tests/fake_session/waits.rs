//! On this driver no run ever ends: it is given up in time, and so is a kernel that does not leave.

use super::child::{Failed, open};
use super::fake::{Done, run as start};
use super::inputs::placed;
use super::programs::{product, registry, tensors};
use mk_core::Session as _;
use mk_kernel::Limits;
use mk_kernel::driver::{Driver, Stream};
use serde_json::{Value, json};
use std::time::Instant;

fn limits() -> Limits {
    Limits { start_us: 100_000, run_us: 10_000, whole_us: 200_000, ..Limits::default() }
}

fn milliseconds(since: Instant) -> u64 {
    since.elapsed().as_millis() as u64
}

/// Runs a program twice and drops the session: what came of it, and how long each took.
pub(crate) fn run(driver: &Driver, how: &str) -> Result<Value, Failed> {
    let registry = registry(2);
    let program = product(&registry);
    let mut gpu = open(driver, &registry, how, limits())?;
    let mut runs = Vec::new();
    for _ in 0..2 {
        let begin = Instant::now();
        let result = gpu.run(&program, &tensors(&program));
        let error = result.map_err(|e| Failed::from(e).answer()).err();
        runs.push(json!({"error": error, "ms": milliseconds(begin), "generation": gpu.generation()}));
    }
    let begin = Instant::now();
    drop(gpu);
    Ok(json!({"runs": runs, "drop_ms": milliseconds(begin)}))
}

/// Starts a run, does not wait for it, and drops the session.
#[allow(unsafe_code, reason = "what is bound and launched is the caller's promise")]
pub(crate) fn leave(driver: &Driver, how: &str) -> Result<Value, Failed> {
    let registry = registry(2);
    let program = product(&registry);
    let mut gpu = open(driver, &registry, how, limits())?;
    let stream = Stream::new(&driver.device(0)?.context()?)?;
    // SAFETY: no kernel runs.
    let bound = unsafe { gpu.bind(&program, &placed(&program, |_, _, t| Some(t))) }?;
    // SAFETY: as above.
    unsafe { gpu.launch(&bound, &[&stream]) }?;
    let begin = Instant::now();
    drop(gpu);
    Ok(json!({"drop_ms": milliseconds(begin)}))
}

/// A scenario in both ways, side by side: most of it is waiting.
fn both(scenario: &str) -> [(&'static str, Done); 2] {
    let child = |how| (how, start(&format!("{scenario} {how}"), ""));
    std::thread::scope(|scope| {
        let resident = scope.spawn(|| child("resident"));
        [child("stream"), resident.join().unwrap()]
    })
}

/// The bound of a whole run, and a second in which lanes may leave. Here none says that it has left.
const WITHIN_MS: std::ops::Range<u64> = 200..1500;
/// A kernel that is resident is first asked to leave.
const DROP_WITHIN_MS: u64 = 2000;

/// A launch is out only when its lanes say so, which here they never do: what it may use is kept. That a resident kernel has
/// left, its stream says.
fn assert_kept(how: &str, done: &Done) {
    match how {
        "resident" => done.assert_clean(),
        _ => assert!(done.answer["live"]["device_memory"].as_u64() > Some(0), "{}", done.answer),
    }
}

#[test]
fn a_run_that_never_ends_is_a_typed_error() {
    for (how, done) in both("run") {
        let runs = done.answer["value"]["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 2);
        for (i, run) in runs.iter().enumerate() {
            let (error, ms) = (&run["error"], run["ms"].as_u64().unwrap());
            let message = error["message"].as_str().unwrap();
            if how == "resident" {
                assert_eq!(error["reason"], "Timeout(200000)", "{how}: {run}");
                assert!(message.contains("had not ended after 200000 us"), "{how}: {run}");
                assert_eq!(run["generation"], i + 2, "{how}: {run}");
            } else {
                let kind = (&error["error"], &error["kind"]);
                assert_eq!(kind, (&json!("hardware"), &json!("stuck")), "{how}: {run}");
                assert!(message.contains("GPU 0"), "{how}: {run}");
                assert_eq!(run["generation"], 2, "{how}: {run}");
            }
            // Nothing more is tried on a GPU that a kernel keeps.
            let at_once = how == "stream" && i > 0;
            let within = if at_once { 0..WITHIN_MS.start } else { WITHIN_MS };
            assert!(within.contains(&ms), "{how}: {run}");
        }
        // What was started was given up.
        let took = done.answer["value"]["drop_ms"].as_u64().unwrap();
        assert!(took < WITHIN_MS.start, "{how}: {}", done.answer);
        assert_kept(how, &done);
    }
}

#[test]
fn a_session_that_is_dropped_with_a_run_under_way_closes_all_in_time() {
    for (how, done) in both("leave") {
        assert!(!done.failed(), "{how}: {}", done.answer);
        let took = done.answer["value"]["drop_ms"].as_u64().unwrap();
        assert!((WITHIN_MS.start..DROP_WITHIN_MS).contains(&took), "{how}: {}", done.answer);
        assert_kept(how, &done);
    }
}
