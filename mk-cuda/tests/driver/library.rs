//! Libraries that are no driver.

use mk_cuda::{Driver, Error};
use std::path::Path;
use std::process::Command;

/// A shared library of this C source.
fn library(folder: &Path, source: &str) -> std::path::PathBuf {
    let (text, file) = (folder.join("cuda.c"), folder.join("libcuda.so.1"));
    std::fs::write(&text, source).unwrap();
    let done = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&file, &text]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    file
}

fn error(source: &str) -> Error {
    let folder = tempfile::tempdir().unwrap();
    Driver::at(&library(folder.path(), source)).unwrap_err()
}

#[test]
fn a_driver_that_is_not_there_is_missing() {
    let file = Path::new("/nowhere/libcuda.so.1");
    let e = Driver::at(file).unwrap_err();
    assert_eq!(e, Error::Missing { library: file.display().to_string() });
    assert_eq!(e.explain().kind, "missing");
    assert!(e.explain().hint.contains("docker run --gpus all"));
}

#[test]
fn a_file_that_is_no_library_is_unusable() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libcuda.so.1");
    std::fs::write(&file, "not a library").unwrap();
    let Err(Error::Unusable { message, .. }) = Driver::at(&file) else { panic!() };
    assert!(message.contains("file too short"), "{message}");
}

#[test]
fn functions_that_are_missing_are_named_and_nothing_is_called() {
    let Error::Unusable { message, .. } = error("int nothing;") else { panic!() };
    assert_eq!(message, "it has no function cuDriverGetVersion");
    // An old driver lacks functions, too, but its age is the better reason.
    let version = |v: u32| format!("int cuDriverGetVersion(int *v) {{ *v = {v}; return 0; }}");
    let Error::TooOld { found, .. } = error(&version(11_040)) else { panic!() };
    assert_eq!((found.major, found.minor), (11, 4));
    let crash = "int cuInit(int f) { __builtin_trap(); }";
    let Error::Unusable { message, .. } = error(&format!("{}\n{crash}", version(13_010))) else { panic!() };
    assert!(message.contains("cuMemCreate") && !message.contains("cuInit"), "{message}");
}

#[test]
fn a_stub_for_linking_is_said_to_be_one() {
    let Error::Unusable { message, hint, .. } = error("int cuDriverGetVersion(int *v) { return 34; }") else {
        panic!()
    };
    assert!(message.contains("cuDriverGetVersion returned 34"), "{message}");
    assert!(hint.contains("stubs"));
}
