//! The process with the fake driver.

use super::fake::{ANSWER, SCENARIO};
use super::{inputs, steps, waits};
use mk_core::{Explanation, Registry, RunError};
use mk_kernel::abi::Geometry;
use mk_kernel::driver::Driver;
use mk_kernel::{Error, Gpu, GpuBuilder, Limits};
use serde_json::{Value, json};
use std::ffi::c_int;

/// Why a scenario has ended early.
pub(crate) enum Failed {
    Open(Error),
    Run(RunError),
}

impl From<Error> for Failed {
    fn from(e: Error) -> Failed {
        Failed::Open(e)
    }
}

impl From<RunError> for Failed {
    fn from(e: RunError) -> Failed {
        Failed::Run(e)
    }
}

impl From<mk_kernel::driver::Error> for Failed {
    fn from(e: mk_kernel::driver::Error) -> Failed {
        Failed::Open(Error::Driver(e))
    }
}

impl Failed {
    pub(crate) fn answer(self) -> Value {
        let (error, explanation) = match self {
            Failed::Open(e) => ("open", e.explain()),
            Failed::Run(RunError::Hardware(e)) => ("hardware", *e),
            Failed::Run(RunError::Input(e)) => ("input", e.explain()),
            Failed::Run(RunError::Fault(fault)) => {
                return json!({"error": "fault", "message": fault.to_string(), "reason": format!("{:?}", fault.reason)});
            }
            Failed::Run(other) => return json!({"error": "other", "message": other.to_string()}),
        };
        let Explanation { kind, message, given, allowed, hint } = explanation;
        json!({"error": error, "kind": kind, "message": message, "given": given, "allowed": allowed, "hint": hint})
    }
}

/// Runs the scenario that the parent names, and says what became of it.
#[test]
#[ignore = "the other tests start it, in a process of its own"]
fn child() {
    let Ok(name) = std::env::var(SCENARIO) else { return };
    only_with_the_fake_driver();
    let before = descriptors();
    let driver = Driver::find();
    let result = driver.as_ref().map_err(|e| e.clone().into()).and_then(|driver| scenario(&name, driver));
    let (value, error) = match result {
        Ok(value) => (value, Value::Null),
        Err(failed) => (Value::Null, failed.answer()),
    };
    let answer = json!({
        "value": value,
        "error": error,
        "kept": driver.as_ref().map(Driver::take_failures).unwrap_or_default(),
        "live": driver.as_ref().map(Driver::live).unwrap_or_default(),
        "descriptors": descriptors() - before,
    });
    println!("\n{ANSWER}{answer}");
}

fn scenario(name: &str, driver: &Driver) -> Result<Value, Failed> {
    let words: Vec<&str> = name.split(' ').collect();
    match words[..] {
        ["set-up", how] => steps::set_up(driver, how),
        ["cycles", how] => steps::cycles(driver, how),
        ["lanes", lanes, reserved, how] => {
            inputs::load_lanes(driver, lanes.parse().unwrap(), reserved.parse().unwrap(), how)
        }
        ["ranks", ranks] => inputs::load_on_ranks(driver, ranks),
        ["bind", what, how] => inputs::bind(driver, what, how),
        ["run", how] => waits::run(driver, how),
        ["leave", how] => waits::leave(driver, how),
        _ => panic!("'{name}'?"),
    }
}

/// A session with all ranks on one GPU; `how`: a launch a run, or a resident kernel.
pub(crate) fn open(driver: &Driver, registry: &Registry, how: &str, limits: Limits) -> Result<Gpu, Failed> {
    let builder = with_code(Gpu::builder(registry)).all(&driver.device(0)?).limits(limits);
    Ok(if how == "resident" { builder.resident() } else { builder }.open()?)
}

/// What the fake driver takes for machine code: any ELF file.
pub(crate) fn with_code(builder: GpuBuilder<'_>) -> GpuBuilder<'_> {
    builder.code(&std::fs::read(super::fake::library()).unwrap(), Geometry::SHARED_BYTES)
}

/// Some scenarios do what must not be done to a GPU that others use.
#[allow(unsafe_code, reason = "a library can be loaded and called in no other way")]
fn only_with_the_fake_driver() {
    // SAFETY: the driver's initialisers run, as they would in a moment.
    let library = unsafe { libloading::Library::new("libcuda.so.1") }.expect("a driver is found");
    // SAFETY: it is `int fake_cuda_is_fake(void)`.
    let is_fake = unsafe { library.get::<unsafe extern "C" fn() -> c_int>("fake_cuda_is_fake") };
    assert!(is_fake.is_ok(), "this is a real driver");
    std::mem::forget(library);
}

/// How many descriptors are open, without that of the fake driver's log.
pub(crate) fn descriptors() -> i64 {
    let log = std::env::var_os("FAKE_CUDA_LOG").unwrap();
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = open.filter_map(|e| std::fs::read_link(e.path()).ok());
    targets.filter(|target| target.as_os_str() != log).count() as i64
}
