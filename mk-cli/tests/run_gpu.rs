//! `mk run --backend gpu`, with the driver for tests, which runs no kernel: what is chosen, what is refused, and what is said.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod common;

use common::{Mk, fake_driver};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// `mk run ag-gemm` of a product of `m` rows, with a driver like this.
fn run(m: &str, args: &[&str], driver: &str, vars: &[(&str, &Path)]) -> Mk {
    let folder = tempfile::tempdir().unwrap();
    fake_driver(folder.path());
    let mut mk = Command::new(env!("CARGO_BIN_EXE_mk"));
    mk.env("LD_LIBRARY_PATH", folder.path()).env("FAKE_CUDA", driver).env_remove("CUDA_VISIBLE_DEVICES");
    mk.args(["run", "ag-gemm", "--m", m, "--n", "64", "--k", "64"]).args(args).envs(vars.iter().copied());
    let done = mk.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Mk { code: done.status.code(), out: text(done.stdout), err: text(done.stderr) }
}

/// The same, without a compiler.
fn without_nvrtc(args: &[&str], driver: &str) -> Mk {
    run("64", args, driver, &[("MK_NVRTC", Path::new("/nowhere"))])
}

#[test]
fn what_is_missing_for_a_gpu_is_exit_code_5() {
    for (driver, words) in [
        ("devices=0", ["the driver has no GPU", "nvidia-smi"]),
        ("driver=12040", ["CUDA 12.4", "newer driver"]),
        ("capability=80", ["compute capability 8.0", "9.0 (sm_90a)"]),
        ("", ["NVRTC was not found", "pip install nvidia-cuda-nvrtc"]),
    ] {
        let done = without_nvrtc(&["--backend", "gpu", "--ranks", "2"], driver);
        assert_eq!((done.code, done.out.as_str()), (Some(5), ""), "{driver}: {done:?}");
        assert!(words.iter().all(|w| done.err.contains(w)), "{driver}: {done:?}");
        // The choice that is left to mk falls on the simulator, and says why.
        let done = without_nvrtc(&["--ranks", "2"], driver);
        assert_eq!(done.code, Some(0), "{driver}: {done:?}");
        assert!(done.out.contains("\nsimulated: "), "{driver}: {done:?}");
        assert!(done.err.starts_with("mk: backend: simulator (") && done.err.contains(words[0]), "{done:?}");
    }
}

#[test]
fn options_of_the_simulator_are_usage_errors_on_a_gpu_and_choose_the_simulator_elsewhere() {
    let faults = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/faults.toml");
    for option in [&["--timing"][..], &["--faults", faults], &["--schedule-seed", "0"]] {
        let gpu = [option, &["--backend", "gpu", "--ranks", "2", "--json"]].concat();
        let done = without_nvrtc(&gpu, "");
        let says: Value = serde_json::from_str(&done.out).unwrap();
        assert_eq!((done.code, &says["kind"]), (Some(2), &"usage".into()), "{done:?}");
        let message = says["message"].as_str().unwrap();
        assert!(
            message.starts_with(&format!("{} cannot be used with --backend gpu: ", option[0])),
            "{message}"
        );
        let done = without_nvrtc(&[option, &["--ranks", "3"]].concat(), "");
        assert_eq!(done.code, Some(0), "{done:?}");
        assert_eq!(done.err, format!("mk: backend: simulator ({} is for it)\n", option[0]));
    }
}

/// So what is missing for it is said as without a trace, and where the simulator runs instead, it writes one.
#[test]
fn a_gpu_traces_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.json");
    let trace = ["--trace", path.to_str().unwrap(), "--ranks", "2"];
    let done = without_nvrtc(&[&trace[..], &["--backend", "gpu"]].concat(), "");
    assert!(done.code == Some(5) && done.err.contains("NVRTC was not found"), "{done:?}");
    assert!(!path.exists(), "nothing has run");
    let done = without_nvrtc(&trace, "");
    assert!(done.code == Some(0) && done.err.contains("NVRTC was not found"), "{done:?}");
    assert!(done.out.contains("\ntrace: ") && path.exists(), "{done:?}");
}

#[test]
fn a_world_that_no_gpu_runs_is_refused_or_simulated() {
    for (world, message) in [
        (&["--ranks", "9"][..], "one GPU runs worlds of at most 8 ranks"),
        (&["--ranks", "4", "--nodes", "2"], "one GPU runs worlds of one node, in one NVLink group"),
    ] {
        let done = without_nvrtc(&[world, &["--backend", "gpu"]].concat(), "");
        assert_eq!(done.code, Some(2), "{done:?}");
        assert!(done.err.starts_with(&format!("error: {message}\n")), "{done:?}");
        let done = without_nvrtc(world, "");
        assert_eq!((done.code, done.err), (Some(0), format!("mk: backend: simulator ({message})\n")));
    }
    let done = without_nvrtc(&["--ranks", "2", "--backend", "sim"], "");
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "what was asked for needs no reason");
}

/// The fake driver takes kernel and program, but a launch does nothing.
#[test]
fn a_program_is_loaded_and_run_on_the_gpu_and_what_the_driver_refuses_is_told() {
    // The compiler looks for the real driver, so the kernel is compiled without the fake one.
    let cache = tempfile::tempdir().unwrap();
    let mut mk = Command::new(env!("CARGO_BIN_EXE_mk"));
    let compiled = mk.args(["codegen", "--report"]).env("XDG_CACHE_HOME", cache.path()).output().unwrap();
    if compiled.status.code() == Some(5) && std::env::var_os("CI").is_none() {
        return eprintln!("skipped: {}", String::from_utf8_lossy(&compiled.stderr));
    }
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let run = |m, args: &[&str], driver: &str| run(m, args, driver, &[("XDG_CACHE_HOME", cache.path())]);
    let parameter = format!("parameter={}", size_of::<mk_kernel::abi::Launch>());

    // No row, so no task: nothing is launched, and C has no element.
    let done = run("0", &["--ranks", "8"], &parameter);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(done.err, "mk: backend: GPU 0 (Fake H200) (it can run this world)\n");
    assert!(
        done.out.contains("\nran: ") && done.out.contains(" us on GPU 0 (Fake H200) for 8 ranks, "),
        "{done:?}"
    );
    let done = run("0", &["--ranks", "8", "--backend", "gpu", "--json"], &parameter);
    let says: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((done.code, done.err.as_str(), &says["backend"]), (Some(0), "", &"gpu".into()), "{says}");
    assert!(says.get("simulated").is_none() && says["checked"] == true, "{says}");
    let gpu = &says["gpu"];
    assert_eq!((&gpu["ranks"], &gpu["multiprocessors"]), (&8.into(), &132.into()));
    assert!(gpu["device"] == "GPU 0 (Fake H200)" && gpu["us"].as_f64().unwrap() > 0.0, "{gpu}");
    assert!(says["plan"]["settings"]["lanes"].as_u64().unwrap() <= 132 / 8, "{}", says["plan"]);

    // Whatever the driver refuses is missing hardware, with what it says.
    for (fault, word) in
        [("fail=cuLaunchKernelEx:719", "719"), ("memory=4096", "out of memory"), ("sms=1", "lanes")]
    {
        let driver = format!("{parameter};{fault}");
        let done = run("64", &["--ranks", "2", "--backend", "gpu", "--json"], &driver);
        let says: Value = serde_json::from_str(&done.out).unwrap();
        assert_eq!(done.code, Some(5), "{fault}: {done:?}");
        assert!(says["kind"] != "internal" && done.out.contains(word), "{fault}: {says}");
    }
}
