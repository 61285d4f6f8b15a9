//! What `mk doctor` finds, on machines that are made for the test: fake libraries, limits, variables.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod common;

use common::fake_driver;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const MK: &str = env!("CARGO_BIN_EXE_mk");

/// `mk` with nothing in its environment.
fn bare() -> Command {
    let mut command = Command::new(MK);
    command.env_clear();
    command
}

struct Diagnosis {
    code: Option<i32>,
    says: Value,
}

impl Diagnosis {
    fn of(done: &Output) -> Diagnosis {
        let out = String::from_utf8(done.stdout.clone()).unwrap();
        assert_eq!(out.lines().count(), 1, "one object on stdout: {out}");
        Diagnosis { code: done.status.code(), says: serde_json::from_str(&out).unwrap() }
    }

    fn check(&self, name: &str) -> &Value {
        let checks = self.says["checks"].as_array().unwrap();
        checks
            .iter()
            .find(|c| c["name"] == name)
            .unwrap_or_else(|| panic!("no check '{name}': {}", self.says))
    }

    fn text(&self, name: &str, field: &str) -> &str {
        self.check(name)[field].as_str().unwrap()
    }
}

fn doctor(command: &mut Command) -> Diagnosis {
    Diagnosis::of(&command.args(["doctor", "--json"]).output().unwrap())
}

/// A shared library of this name and C source.
fn library(folder: &Path, name: &str, source: &str) {
    let file = folder.join(name).with_extension("c");
    fs::write(&file, source).unwrap();
    let done = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(folder.join(name))
        .arg(&file)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// NVRTC of this version: it has all functions, and compiles nothing.
fn nvrtc(major: u32, minor: u32) -> String {
    let functions =
        ["CreateProgram", "CompileProgram", "DestroyProgram", "GetErrorString", "GetProgramLogSize"];
    let more = ["GetProgramLog", "GetPTXSize", "GetPTX", "GetCUBINSize", "GetCUBIN"];
    let mut source =
        format!("int nvrtcVersion(int *a, int *b) {{ *a = {major}; *b = {minor}; return 0; }}\n");
    source += "int nvrtcGetNumSupportedArchs(int *n) { *n = 1; return 0; }\n";
    source += "int nvrtcGetSupportedArchs(int *a) { *a = 90; return 0; }\n";
    for name in functions.iter().chain(&more) {
        source += &format!("int nvrtc{name}(void) {{ return 1; }}\n");
    }
    source
}

/// What `mk doctor` says with that driver.
fn with_driver(config: &str) -> Diagnosis {
    let folder = tempfile::tempdir().unwrap();
    fake_driver(folder.path());
    doctor(bare().env("LD_LIBRARY_PATH", folder.path()).env("FAKE_CUDA", config))
}

/// A driver that only tells its version.
fn cuda(version: u32) -> String {
    format!("int cuDriverGetVersion(int *v) {{ *v = {version}; return 0; }}")
}

/// What `mk doctor` says where the loader finds these libraries first.
fn with_libraries(libraries: &[(&str, &str)], args: &[&str]) -> Diagnosis {
    let folder = tempfile::tempdir().unwrap();
    for (name, source) in libraries {
        library(folder.path(), name, source);
    }
    doctor(bare().env("LD_LIBRARY_PATH", folder.path()).args(args))
}

#[test]
fn an_old_driver_is_found_and_said_to_be_too_old() {
    let folder = tempfile::tempdir().unwrap();
    library(folder.path(), "libcuda.so.1", &cuda(11_040));
    let done = bare()
        .env("LD_LIBRARY_PATH", folder.path())
        .args(["doctor", "--json", "--require", "gpu"])
        .output()
        .unwrap();
    let d = Diagnosis::of(&done);
    assert_eq!((d.code, &d.says["ok"], &d.says["kind"]), (Some(5), &false.into(), &"missing".into()));
    assert!(d.says["given"].as_str().unwrap().contains("libcuda.so.1"));
    assert_eq!(d.text("libcuda.so.1", "status"), "missing");
    let file = folder.path().canonicalize().unwrap().join("libcuda.so.1");
    assert_eq!(d.text("libcuda.so.1", "found"), format!("CUDA 11.4: too old in {}", file.display()));
    assert!(d.text("libcuda.so.1", "needed").contains("CUDA 13.0 or newer"));
    assert!(d.text("libcuda.so.1", "hint").contains("newer driver"));
}

#[test]
fn every_library_tells_its_version() {
    let d = with_libraries(
        &[
            ("libnvrtc.so.13", &nvrtc(13, 0)),
            (
                "libucp.so.0",
                "void ucp_get_version(unsigned *a, unsigned *b, unsigned *c) { *a = 1; *b = 17; *c = 2; }",
            ),
            ("libibverbs.so.1", "int ibv_fork_init(void) { return 0; }"),
            ("libnccl.so.2", "int ncclGetVersion(int *v) { *v = 22703; return 0; }"),
        ],
        &[],
    );
    for (name, found) in [
        ("libnvrtc", "NVRTC 13.0 in "),
        ("libucp.so.0", "1.17.2 in "),
        ("libibverbs.so.1", "there in "),
        ("libnccl.so.2", "2.27.3 in "),
    ] {
        assert_eq!(d.text(name, "status"), "ok", "{name}");
        assert!(d.text(name, "found").starts_with(found), "{name}: {}", d.text(name, "found"));
    }
}

#[test]
fn a_driver_tells_its_version_and_its_gpus() {
    let d = with_driver("driver=13010; devices=4; sms=78; memory=150754820096");
    assert_eq!((d.text("libcuda.so.1", "status"), d.text("GPUs", "status")), ("ok", "ok"));
    assert!(d.text("libcuda.so.1", "found").starts_with("CUDA 13.1 in "), "{}", d.says);
    assert_eq!(d.text("GPUs", "found"), "4 x Fake H200, 9.0, 78 multiprocessors, 140.4 GiB");
}

#[test]
fn what_connects_gpus_is_told() {
    for (config, status, found) in [
        ("devices=1", "ok", "one GPU, so none"),
        ("devices=3", "ok", "each two: NVLink (P2P access, native atomics)"),
        ("devices=2; peers=0", "warning", "each two: no P2P access"),
        ("fail=cuDeviceCanAccessPeer:999", "warning", "unknown: "),
        ("devices=0", "warning", "unknown: no driver tells"),
    ] {
        let d = with_driver(config);
        assert_eq!(d.text("links between GPUs", "status"), status, "{config}");
        assert!(d.text("links between GPUs", "found").starts_with(found), "{config}: {}", d.says);
    }
}

#[test]
fn gpus_that_kernels_do_not_run_on_are_told_with_what_is_needed() {
    for (config, found) in [
        ("capability=80", "GPU 0 (Fake H200) has compute capability 8.0, and the kernel needs 9.0 (sm_90a)"),
        ("devices=0", "the driver has no GPU"),
        ("fail=cuDeviceGetCount:999", "cuDeviceGetCount returned 999 (CUDA_ERROR_UNKNOWN)"),
    ] {
        let d = with_driver(config);
        assert_eq!(
            (d.text("libcuda.so.1", "status"), d.text("GPUs", "status")),
            ("ok", "missing"),
            "{config}"
        );
        assert!(d.text("GPUs", "found").contains(found), "{config}: {}", d.text("GPUs", "found"));
    }
    // A driver that does not start: its library is not as its kernel module.
    let d = with_driver("fail=cuInit:803");
    assert_eq!((d.text("libcuda.so.1", "status"), d.text("GPUs", "status")), ("ok", "missing"));
    assert!(d.text("GPUs", "found").contains("cuInit returned 803"), "{}", d.says);
    assert!(d.text("GPUs", "hint").contains("same release as its kernel module"), "{}", d.says);
}

#[test]
fn nvrtc_is_looked_for_where_kernels_look_for_it() {
    let folder = tempfile::tempdir().unwrap();
    // Too old.
    library(folder.path(), "libnvrtc.so.12", &nvrtc(12, 9));
    let d = doctor(bare().env("MK_NVRTC", folder.path()));
    assert_eq!(d.text("libnvrtc", "status"), "missing");
    let file = folder.path().join("libnvrtc.so.12");
    assert_eq!(d.text("libnvrtc", "found"), format!("NVRTC 12.9 in {}: too old", file.display()));
    // New enough, in a folder, or by its own name.
    library(folder.path(), "libnvrtc.so.13", &nvrtc(13, 1));
    let file = folder.path().join("libnvrtc.so.13");
    for place in [folder.path(), &file] {
        let d = doctor(bare().env("MK_NVRTC", place));
        assert_eq!(d.text("libnvrtc", "status"), "ok");
        assert_eq!(d.text("libnvrtc", "found"), format!("NVRTC 13.1 in {}", file.display()));
    }
    // Named, and not there.
    let d = doctor(bare().env("MK_NVRTC", "/nowhere"));
    assert_eq!(d.text("libnvrtc", "status"), "missing");
    assert_eq!(d.text("libnvrtc", "found"), "not found in MK_NVRTC=/nowhere");
    assert!(d.text("libnvrtc", "hint").contains("pip install nvidia-cuda-nvrtc"));
    // One that ends the process that loads it.
    library(
        folder.path(),
        "libnvrtc.so.13",
        "__attribute__((constructor)) static void f(void) { __builtin_trap(); }",
    );
    let d = doctor(bare().env("MK_NVRTC", folder.path()));
    assert!(d.text("libnvrtc", "found").contains("ends a process"), "{}", d.says);
}

#[test]
fn a_library_that_is_broken_is_a_finding() {
    let crash = "__attribute__((constructor)) static void f(void) { __builtin_trap(); }";
    let talk = "#include <stdio.h>\n__attribute__((constructor)) static void f(void) { printf(\"\\\"Absent\\\" no, hello\"); }";
    for (source, word) in [
        (crash, "ends a process"),
        ("int nothing;", "no function cuDriverGetVersion"),
        ("int cuDriverGetVersion(int *v) { *v = 1; return 34; }", "returned 34"),
        (
            "extern int no_such_thing; int cuDriverGetVersion(int *v) { return no_such_thing; }",
            "no_such_thing",
        ),
        (&format!("{talk}\nint cuDriverGetVersion(int *v) {{ return 999; }}"), "returned 999"),
        ("int cuDriverGetVersion(int *v) { *(volatile int *)1 = 0; return 0; }", "ends a process"),
    ] {
        let d = with_libraries(&[("libcuda.so.1", source)], &[]);
        assert_eq!((d.code, d.text("libcuda.so.1", "status")), (Some(0), "missing"), "{source}");
        let found = d.text("libcuda.so.1", "found");
        assert!(found.starts_with("there, but not usable: ") && found.contains(word), "{source}: {found}");
    }
}

#[test]
fn a_file_that_is_no_library_is_a_finding() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("libcuda.so.1"), "not a library").unwrap();
    let d = doctor(bare().env("LD_LIBRARY_PATH", folder.path()));
    assert_eq!(d.text("libcuda.so.1", "status"), "missing");
    assert!(d.text("libcuda.so.1", "found").contains("libcuda.so.1: file too short"), "{}", d.says);
}

#[test]
fn a_library_that_needs_one_that_is_not_there_is_a_finding_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    library(folder.path(), "libneeded.so", "int needed(void) { return 0; }");
    let (lib, needed) = (folder.path().join("libcuda.so.1"), folder.path().join("libneeded.so"));
    let (source, needs) = (folder.path().join("cuda.c"), format!("int needed(void); {}", cuda(13_000)));
    fs::write(&source, needs).unwrap();
    let mut cc = Command::new("cc");
    let done = cc.args(["-shared", "-fPIC", "-Wl,--no-as-needed", "-o"]).arg(lib).arg(source).arg(&needed);
    assert!(done.status().unwrap().success());
    fs::remove_file(needed).unwrap();
    let d = doctor(bare().env("LD_LIBRARY_PATH", folder.path()));
    let found = d.text("libcuda.so.1", "found");
    assert!(found.starts_with("there, but not usable: ") && found.contains("libneeded.so"), "{found}");
}

#[test]
fn an_nvrtc_of_a_wheel_is_found_and_loaded_by_its_file() {
    let venv = tempfile::tempdir().unwrap();
    let lib = venv.path().join("lib/python3.12/site-packages/nvidia/cu13/lib");
    fs::create_dir_all(&lib).unwrap();
    library(&lib, "libnvrtc.so.13", &nvrtc(13, 0));
    let d = doctor(bare().env("VIRTUAL_ENV", venv.path()));
    assert_eq!(d.text("libnvrtc", "status"), "ok", "{}", d.says);
    // Where the machine has an NVRTC that the loader knows, that one is taken.
    let in_wheel = d.text("libnvrtc", "found").ends_with(&lib.join("libnvrtc.so.13").display().to_string());
    assert!(in_wheel || d.text("libnvrtc", "found").starts_with("NVRTC 13."), "{}", d.says);
}

#[test]
fn a_library_of_a_wheel_comes_with_what_to_tell_the_loader() {
    let venv = tempfile::tempdir().unwrap();
    let lib = venv.path().join("lib/python3.12/site-packages/nvidia/nccl/lib");
    fs::create_dir_all(&lib).unwrap();
    library(&lib, "libnccl.so.2", "int ncclGetVersion(int *v) { *v = 22703; return 0; }");
    let d = doctor(bare().env("VIRTUAL_ENV", venv.path()));
    // Where the machine has an NCCL that the loader knows, that one is taken.
    if d.text("libnccl.so.2", "status") != "ok" {
        assert_eq!(d.text("libnccl.so.2", "status"), "warning");
        assert!(d.text("libnccl.so.2", "found").starts_with("2.27.3 in "), "{}", d.says);
        assert_eq!(
            d.text("libnccl.so.2", "hint"),
            format!("tell it: export LD_LIBRARY_PATH={}:$LD_LIBRARY_PATH", lib.display())
        );
    }
}

/// `mk doctor --json` of a shell that has first lowered its limit of locked memory, in KiB.
fn with_locked_limit(kib: u32) -> Diagnosis {
    let script = format!("ulimit -l {kib} && exec {MK} doctor --json");
    Diagnosis::of(&Command::new("/bin/sh").env_clear().args(["-c", &script]).output().unwrap())
}

fn limit_and_need_are_shown() {
    let d = with_locked_limit(64);
    assert_eq!(d.code, Some(0));
    // A process that may lock what it likes is not limited itself, but ranks may be.
    let expected = if d.text("locked memory", "found").contains("exempt") { "warning" } else { "missing" };
    assert_eq!(d.text("locked memory", "status"), expected);
    let found = d.text("locked memory", "found");
    assert!(found.starts_with("limit 64.0 KiB, which may be raised to 64.0 KiB"), "{found}");
    assert_eq!(d.text("locked memory", "needed"), "unlimited, or at least 1.0 GiB");
    assert!(d.text("locked memory", "hint").contains("ulimit -l unlimited"));
}

#[test]
fn regress_nccl_tests_206() {
    limit_and_need_are_shown();
}

#[test]
fn regress_ucx_8229() {
    limit_and_need_are_shown();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let bits = status.lines().find_map(|l| l.strip_prefix("CapEff:")).unwrap().trim();
    let may_lock = u64::from_str_radix(bits, 16).unwrap() & 0x4000 != 0;
    assert_eq!(with_locked_limit(64).says["ready"]["rdma"], false);
    assert_eq!(with_locked_limit(64).text("locked memory", "found").contains("CAP_IPC_LOCK"), may_lock);
}

#[test]
fn launchers_that_disagree_are_named_with_their_variables() {
    let d = doctor(bare().envs([
        ("RANK", "1"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "8"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
    ]));
    assert_eq!((d.code, d.text("ranks", "status")), (Some(0), "warning"));
    let expected = "torchrun and Open MPI disagree: WORLD_SIZE=4, OMPI_COMM_WORLD_SIZE=8";
    assert_eq!(d.text("ranks", "found"), expected);
    assert!(
        d.text("ranks", "hint")
            .starts_with("unset the variables of the launcher that did not start the ranks")
    );
}

#[test]
fn the_rank_is_the_launchers() {
    let d = doctor(bare().envs([("SLURM_PROCID", "3"), ("SLURM_NTASKS", "8"), ("SLURM_NNODES", "2")]));
    assert_eq!(
        (d.text("ranks", "status"), d.text("ranks", "found")),
        ("ok", "Slurm: rank 3 of 8, on 2 nodes")
    );
}

#[test]
fn without_anything_the_simulator_is_ready() {
    let done = bare().arg("doctor").output().unwrap();
    let (out, err) = (String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr).unwrap());
    assert_eq!((done.status.code(), err.as_str()), (Some(0), ""));
    assert!(out.starts_with("simulator (needs no hardware): ready\n  ok       programs: "), "{out}");
    for heading in ["\nGPU: ", "\nnetwork (RDMA between servers): ", "\nlauncher: "] {
        assert!(out.contains(heading), "{out}");
    }
}

#[test]
fn a_requirement_that_is_met_succeeds_and_one_that_is_not_names_what_is_missing() {
    for (what, group) in [("gpu", "gpu"), ("rdma", "network")] {
        let done = bare().args(["doctor", "--json", "--require", what]).output().unwrap();
        let d = Diagnosis::of(&done);
        let checks = d.says["checks"].as_array().unwrap();
        let missing = checks.iter().filter(|c| c["group"] == group && c["status"] == "missing");
        let missing: Vec<&str> = missing.map(|c| c["name"].as_str().unwrap()).collect();
        assert_eq!(d.says["ready"][what], missing.is_empty());
        assert_eq!(d.code, Some(if missing.is_empty() { 0 } else { 5 }));
        assert!(missing.iter().all(|name| d.says["given"].as_str().unwrap().contains(name)), "{}", d.says);
    }
    let usage = bare().args(["doctor", "--require", "tpu"]).output().unwrap();
    assert_eq!(usage.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&usage.stderr).contains("rdma"));
}

#[test]
fn as_a_library_it_looks_without_a_child() {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let exit = mk_cli::run(["mk", "doctor", "--json"].map(Into::into), &mut out, &mut err);
    assert_eq!(exit, mk_cli::Exit::Success);
    let says: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(says["ready"]["simulator"], true);
}

/// What depends on the machine is taken out: what was found, and what follows from it.
#[test]
fn the_object_has_the_same_shape_everywhere() {
    let mut d = doctor(&mut bare());
    for ready in ["gpu", "rdma"] {
        assert!(d.says["ready"][ready].is_boolean());
        d.says["ready"][ready] = "[a boolean]".into();
    }
    for check in d.says["checks"].as_array_mut().unwrap() {
        let status = check["status"].as_str().unwrap();
        assert!(["ok", "warning", "missing"].contains(&status));
        assert_eq!(status == "ok", check["hint"] == "", "a hint where something is wrong: {check}");
        for field in ["status", "found", "hint"] {
            assert!(check[field].is_string());
            check[field] = "[text]".into();
        }
    }
    insta::assert_snapshot!(serde_json::to_string_pretty(&d.says).unwrap());
}
