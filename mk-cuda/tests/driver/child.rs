//! The process with the fake driver.

use super::fake::{ANSWER, SCENARIO};
use super::{refusals, residency, setup, works};
use mk_cuda::{Driver, Error};
use serde_json::{Value, json};
use std::ffi::c_int;

/// Runs the scenario that the parent names, and says what became of it.
#[test]
#[ignore = "the other tests start it, in a process of its own"]
fn child() {
    let Ok(name) = std::env::var(SCENARIO) else { return };
    only_with_the_fake_driver();
    let before = descriptors();
    let driver = Driver::find();
    let result = driver.as_ref().map_err(Clone::clone).and_then(|driver| scenario(&name, driver));
    let error = result.as_ref().err();
    let answer = json!({
        "value": result.as_ref().ok(),
        "error": error,
        "says": error.map(Error::explain),
        "kept": driver.as_ref().map(Driver::take_failures).unwrap_or_default(),
        "live": driver.as_ref().map(Driver::live).unwrap_or_default(),
        "descriptors": descriptors() - before,
    });
    println!("\n{ANSWER}{answer}");
}

fn scenario(name: &str, driver: &Driver) -> Result<Value, Error> {
    match name {
        "set-up" => setup::open(driver).map(|_setup| Value::Null),
        "run" => setup::open(driver).and_then(|s| setup::run(&s)).map(|()| Value::Null),
        "everything" => works::everything(driver),
        "cycles" => works::cycles(driver),
        "contexts" => works::contexts(driver),
        "multicast" => refusals::multicast(driver),
        "memory" => refusals::memory(driver),
        "private export" => refusals::private_export(driver),
        "stranger import" => refusals::stranger_import(driver),
        "image" => refusals::image(driver),
        "no such" => refusals::no_such(driver),
        "parameter" => refusals::parameter(driver),
        _ => residency::scenario(name, driver),
    }
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
fn descriptors() -> i64 {
    let log = std::env::var_os("FAKE_CUDA_LOG").unwrap();
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = open.filter_map(|e| std::fs::read_link(e.path()).ok());
    targets.filter(|target| target.as_os_str() != log).count() as i64
}
