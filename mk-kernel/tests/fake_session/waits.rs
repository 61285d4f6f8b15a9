//! On this driver no run ever ends: it is given up in time, and so is a kernel that does not leave.

use super::child::{Failed, open};
use super::fake::run as start;
use super::inputs::placed;
use super::programs::{product, registry, tensors};
use mk_core::Session as _;
use mk_kernel::Limits;
use mk_kernel::driver::{Driver, Stream};
use serde_json::{Value, json};
use std::time::Instant;

fn limits() -> Limits {
    Limits { start_us: 100_000, run_us: 50_000, whole_us: 200_000, ..Limits::default() }
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

/// Beyond the bound of a whole run: what the fault's own bounds and a busy machine take.
const WITHIN_MS: std::ops::Range<u64> = 200..1500;

#[test]
fn a_run_that_never_ends_is_a_typed_fault_and_the_session_goes_on() {
    for how in ["stream", "resident"] {
        let done = start(&format!("run {how}"), "");
        for (run, generation) in done.answer["value"]["runs"].as_array().unwrap().iter().zip(2..) {
            assert_eq!(run["error"]["error"], "fault", "{how}: {run}");
            assert_eq!(run["error"]["reason"], "Timeout(200000)", "{how}: {run}");
            assert!(run["error"]["message"].as_str().unwrap().contains("200000 us"), "{how}: {run}");
            assert!(WITHIN_MS.contains(&run["ms"].as_u64().unwrap()), "{how}: {run}");
            assert_eq!(run["generation"], generation, "{how}: {run}");
        }
        assert!(done.answer["value"]["drop_ms"].as_u64().unwrap() < WITHIN_MS.end, "{how}: {}", done.answer);
        done.assert_clean();
    }
}

#[test]
fn a_session_that_is_dropped_with_a_run_under_way_closes_all_in_time() {
    for how in ["stream", "resident"] {
        let done = start(&format!("leave {how}"), "");
        assert!(!done.failed(), "{how}: {}", done.answer);
        assert!(done.answer["value"]["drop_ms"].as_u64().unwrap() < WITHIN_MS.end, "{how}: {}", done.answer);
        done.assert_clean();
    }
}
