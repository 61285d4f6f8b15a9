//! What does not fit is said before anything is started.

use super::child::{Failed, open, with_code};
use super::fake::{Done, run};
use super::programs::{lanes, product, registry};
use mk_core::{Io, Rank, Region, RegionKind, Session as _, Verified};
use mk_kernel::driver::Driver;
use mk_kernel::{DeviceTensor, DeviceTensors, Gpu, Limits};
use serde_json::Value;

/// Loads a program of so many lanes where so many multiprocessors are kept free.
pub(crate) fn load_lanes(driver: &Driver, count: u16, reserved_sms: u32, how: &str) -> Result<Value, Failed> {
    let registry = registry(1);
    let mut gpu = open(driver, &registry, how, Limits { reserved_sms, ..Limits::default() })?;
    gpu.load(&lanes(&registry, count))?;
    Ok(Value::Null)
}

/// Loads a program for two ranks in a session with these, `0,1`.
pub(crate) fn load_on_ranks(driver: &Driver, ranks: &str) -> Result<Value, Failed> {
    let (registry, device) = (registry(2), driver.device(0)?);
    let mut builder = with_code(Gpu::builder(&registry));
    for rank in ranks.split(',').filter_map(|r| r.parse().ok()) {
        builder = builder.rank(Rank(rank), &device);
    }
    builder.open()?.load(&product(&registry))?;
    Ok(Value::Null)
}

/// Tensors for all regions of the caller's, where `place` puts them.
pub(crate) fn placed(
    program: &Verified,
    place: impl Fn(Rank, &Region, DeviceTensor) -> Option<DeviceTensor>,
) -> DeviceTensors {
    let mut tensors = DeviceTensors::new();
    for rank in [Rank(0), Rank(1)] {
        for region in program.program().regions.iter().filter(|r| r.kind == RegionKind::Bound) {
            let pitch_bytes = region.extent(rank)[1] * region.dtype.bytes();
            if let Some(tensor) = place(rank, region, DeviceTensor { address: 1 << 20, pitch_bytes }) {
                tensors.set(rank, &region.name, tensor);
            }
        }
    }
    tensors
}

/// Binds tensors of which the last rank's result is missing, misplaced or too narrow.
#[allow(unsafe_code, reason = "what is bound is the caller's promise")]
pub(crate) fn bind(driver: &Driver, what: &str, how: &str) -> Result<Value, Failed> {
    let registry = registry(2);
    let program = product(&registry);
    let mut gpu = open(driver, &registry, how, Limits::default())?;
    let tensors = placed(&program, |rank, region, t| {
        if rank != Rank(1) || region.io != Io::Output {
            return Some(t);
        }
        match what {
            "misaligned" => Some(DeviceTensor { address: t.address + 8, ..t }),
            "narrow" => Some(DeviceTensor { pitch_bytes: t.pitch_bytes - 16, ..t }),
            "missing" => None,
            _ => Some(t),
        }
    });
    // SAFETY: no kernel runs.
    unsafe { gpu.bind(&program, &tensors) }?;
    Ok(Value::Null)
}

fn load(lanes: u32, reserved: u32, how: &str, config: &str) -> Done {
    let done = run(&format!("lanes {lanes} {reserved} {how}"), config);
    assert!(
        !done.calls.iter().any(|c| c.name == "cuLaunchKernelEx"),
        "it is known before anything is started"
    );
    done.assert_clean();
    done
}

/// So many lanes fit, and one more is an error with both numbers.
fn at_most(lanes: u32, reserved: u32, how: &str, config: &str) -> Done {
    let fits = load(lanes, reserved, how, config);
    assert!(!fits.failed(), "{}", fits.answer);
    let done = load(lanes + 1, reserved, how, config);
    done.assert_error("hardware", "not-resident");
    for number in [lanes, lanes + 1] {
        assert!(done.says("message").contains(&number.to_string()), "{}", done.answer);
    }
    done
}

#[test]
fn regress_mirage_761_more_lanes_than_can_be_resident() {
    for how in ["stream", "resident"] {
        at_most(132, 0, how, "");
    }
}

#[test]
fn regress_vllm_41189_on_a_gpu_of_any_size_with_room_for_others() {
    for how in ["stream", "resident"] {
        let done = at_most(128, 4, how, "");
        assert!(done.says("hint").contains("leave fewer multiprocessors free"), "{}", done.answer);
        at_most(78, 0, how, "sms=78");
    }
}

#[test]
fn a_tensor_that_does_not_fit_is_an_input_error() {
    for how in ["stream", "resident"] {
        for (what, says) in [
            ("misaligned", "the tensor does not fit 'c' on rank 1"),
            ("narrow", "the tensor does not fit 'c' on rank 1"),
            ("missing", "no tensor is bound to 'c' on rank 1"),
        ] {
            let done = run(&format!("bind {what} {how}"), "");
            done.assert_error("input", "input");
            assert!(done.says("message").contains(says), "{}", done.answer);
            assert!(done.says("allowed").contains("multiples of 16 bytes"), "{}", done.answer);
            done.assert_clean();
        }
        let done = run(&format!("bind well {how}"), "");
        assert!(!done.failed(), "{}", done.answer);
        done.assert_clean();
    }
}

#[test]
fn ranks_that_are_not_there_twice_or_none_are_input_errors() {
    for (ranks, says) in [
        ("0,2", "the session has a rank that the world has not"),
        ("0,0", "a process has a rank twice"),
        ("none", "the session has no rank"),
    ] {
        let done = run(&format!("ranks {ranks}"), "");
        done.assert_error("input", "input");
        assert!(done.says("message").contains(says), "{}", done.answer);
        done.assert_clean();
    }
    assert!(!run("ranks 0,1", "").failed());
}
