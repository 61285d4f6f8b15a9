//! `mk selftest`: the simulator is always tested; without a GPU, what is for GPUs is skipped, and said to be.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod common;

use common::fake_driver;
use serde_json::Value;
use std::process::{Command, Output};

/// `mk selftest` on a machine whose driver is the one for tests, which runs no kernel.
fn selftest(args: &[&str], driver: &str, nvrtc: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    fake_driver(folder.path());
    let mut mk = Command::new(env!("CARGO_BIN_EXE_mk"));
    mk.env_clear().env("LD_LIBRARY_PATH", folder.path()).env("FAKE_CUDA", driver).env("MK_NVRTC", nvrtc);
    mk.arg("selftest").args(args).output().unwrap()
}

#[test]
fn without_a_gpu_its_checks_are_skipped_and_that_fails_where_it_is_required() {
    let done = selftest(&["--require", "gpu"], "devices=0", "");
    let (out, err) = (String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr).unwrap());
    assert_eq!(done.status.code(), Some(5), "{out}{err}");
    let mut lines = out.lines().map(|l| l.split_whitespace().collect::<Vec<_>>());
    assert_eq!(lines.next().unwrap(), ["check", "backend", "result", "seconds"]);
    let rows: Vec<_> = lines.collect();
    let has = |row: &[&str]| rows.iter().any(|r| r.starts_with(row));
    for row in [
        &["gemm", "simulator", "run"][..],
        &["rdma", "unordered", "put", "signal", "simulator", "run"],
        &["all", "gather", "gemm", "simulator", "run"],
        &["gemm", "GPU", "skipped", "-"],
        &["nvlink", "put", "GPU", "skipped", "-"],
    ] {
        assert!(has(row), "{row:?}: {out}");
    }
    assert!(!out.contains("rdma ordered put                       GPU"), "no GPU serves a network: {out}");
    assert!(out.contains("\nsimulator: 33 right, 0 skipped, 0 failed\n"), "{out}");
    assert!(out.contains("\nGPU: 0 right, 21 skipped, 0 failed: the driver has no GPU"), "{out}");
    assert!(err.starts_with("error: the part for GPUs was skipped: the driver has no GPU"), "{err}");
}

/// The fake driver has GPUs, but there is no compiler; the simulator has nothing to do with it.
#[test]
fn the_object_has_every_check_and_what_is_lacking() {
    let done = selftest(&["--json"], "", "/nowhere");
    assert_eq!((done.status.code(), String::from_utf8_lossy(&done.stderr).as_ref()), (Some(0), ""));
    let says: Value = serde_json::from_slice(&done.stdout).unwrap();
    let [simulator, gpu] = says["backends"].as_array().unwrap().as_slice() else { panic!("{says}") };
    assert_eq!((&simulator["failed"], &simulator["skipped"]), (&0.into(), &0.into()));
    assert_eq!(simulator["lacks"], Value::Null);
    assert_eq!((&gpu["backend"], &gpu["run"], &gpu["device"]), (&"GPU".into(), &0.into(), &Value::Null));
    assert!(gpu["lacks"]["message"].as_str().unwrap().contains("NVRTC was not found"), "{gpu}");
    let checks = says["checks"].as_array().unwrap();
    let count = |backend: &str| checks.iter().filter(|c| c["backend"] == backend).count() as u64;
    for part in [simulator, gpu] {
        let of = |field: &str| part[field].as_u64().unwrap();
        assert_eq!(count(part["backend"].as_str().unwrap()), of("run") + of("skipped") + of("failed"));
    }
    let first = &checks[0];
    assert_eq!((&first["check"], &first["status"]), (&"add".into(), &"run".into()));
    assert!(first["seconds"].as_f64().unwrap() > 0.0 && first["reason"].is_null());
}

#[test]
fn only_a_gpu_can_be_required() {
    let done = selftest(&["--require", "rdma"], "", "");
    assert_eq!(done.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&done.stderr).contains("gpu"));
}
