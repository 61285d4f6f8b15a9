//! How many lanes can be resident: more of them would wait for each other for ever.

use super::fake::{Done, run, run_with};
use super::setup::{self, SHARED_BYTES};
use mk_cuda::{Driver, Error};
use serde_json::{Value, json};

/// `lanes L, F free`: whether so many lanes can be resident.
pub(crate) fn scenario(name: &str, driver: &Driver) -> Result<Value, Error> {
    let numbers: Vec<u32> =
        name.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    let [lanes, free] = numbers[..] else { panic!("no scenario '{name}'") };
    let context = driver.device(0)?.context()?;
    let kernel = setup::kernel(&context)?;
    let residency = kernel.residency(setup::THREADS, SHARED_BYTES)?;
    residency.check(lanes, free)?;
    let pairs = kernel.pairs(setup::THREADS, SHARED_BYTES)?;
    Ok(json!({"blocks": residency.blocks(free), "pairs": pairs}))
}

fn lanes(lanes: u32, free: u32, config: &str) -> Done {
    let done = run(&format!("lanes {lanes}, {free} free"), config);
    done.assert_clean();
    // It is known before anything is started.
    assert!(!done.calls.iter().any(|c| c.name == "cuLaunchKernelEx"));
    done
}

#[test]
fn regress_mirage_761() {
    assert_eq!(lanes(132, 0, "").answer["value"]["blocks"], 132);
    let done = lanes(133, 0, "");
    let error = done.error("Resident");
    assert_eq!((&error["lanes"], &error["resident"]), (&json!(133), &json!(132)));
    assert_eq!(error["limit"], "multiprocessors");
    for number in ["133", "132"] {
        assert!(done.says("message").contains(number), "{}", done.says("message"));
    }
    assert_eq!((done.says("given"), done.says("allowed")), ("133 lanes", "at most 132"));
}

#[test]
fn blocks_come_in_pairs_where_two_multiprocessors_are_neighbours() {
    for (sms, pairs) in [(132, 66), (133, 66), (1, 0)] {
        assert_eq!(lanes(1, 0, &format!("sms={sms}")).answer["value"]["pairs"], pairs);
    }
}

#[test]
fn regress_mirage_775() {
    // A kernel of which not even one block fits.
    let done = lanes(1, 0, "kernel_registers=200");
    assert_eq!(done.error("Resident")["resident"], 0);
    assert_eq!(done.error("Resident")["limit"], json!({"registers": {"needed": 76_800, "found": 65_536}}));
    let done = lanes(1, 0, "resident=0");
    assert_eq!(done.error("Resident")["limit"], "unknown");
}

#[test]
fn regress_vllm_41189() {
    // The same check on a GPU of any size.
    for sms in [1, 78, 114, 132, 144, 148] {
        let config = format!("sms={sms}");
        assert_eq!(lanes(sms, 0, &config).answer["value"]["blocks"], sms);
        let done = lanes(sms + 1, 0, &config);
        let error = done.error("Resident");
        assert_eq!((&error["lanes"], &error["resident"]), (&json!(sms + 1), &json!(sms)));
    }
    // And where several blocks fit on a multiprocessor.
    assert_eq!(lanes(264, 0, "resident=2").answer["value"]["blocks"], 264);
    assert_eq!(lanes(265, 0, "resident=2").error("Resident")["resident"], 264);
}

#[test]
fn regress_pytorch_170162() {
    // Room for other kernels.
    assert_eq!(lanes(128, 4, "").answer["value"]["blocks"], 128);
    let done = lanes(129, 4, "");
    let error = done.error("Resident");
    assert_eq!(
        (&error["resident"], &error["left_free"], &error["limit"]),
        (&json!(128), &json!(4), &json!("left_free"))
    );
    assert!(done.says("hint").contains("leave fewer multiprocessors free"));
    // A service that gives this process a part of the GPU only.
    let share = [("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50")];
    let done = run_with("lanes 132, 0 free", "sms=66", &share);
    assert_eq!(done.error("Resident")["limit"], json!({"process_share": {"percent": 50}}));
    assert!(done.says("message").contains("50 %"));
}
