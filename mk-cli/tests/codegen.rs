//! `mk codegen`: source for people, files for editors, and what the compiler says.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Mk, mk};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn codegen(args: &[&str], vars: &[(&str, &Path)]) -> Mk {
    finish(start(args, vars))
}

fn start(args: &[&str], vars: &[(&str, &Path)]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mk"));
    command.arg("codegen").args(args).envs(vars.iter().copied());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn finish(child: Child) -> Mk {
    let done = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Mk { code: done.status.code(), out: text(done.stdout), err: text(done.stderr) }
}

#[test]
fn what_is_generated_is_printed() {
    let done = mk(&["codegen"]);
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    for text in [
        "// ======== mk/abi.cuh ========",
        "struct alignas(16) Task {",
        "#define MK_HANDLERS(X)",
        "rdma.get@1",
    ] {
        assert!(done.out.contains(text), "{text}");
    }
    let json: Value = serde_json::from_str(&mk(&["codegen", "--json"]).out).unwrap();
    assert_eq!(json["source"][1]["name"], "mk/table.cuh");
    let without: Vec<&str> =
        json["without_device"].as_array().unwrap().iter().map(|h| h.as_str().unwrap()).collect();
    assert!(without.contains(&"rdma.put@1"), "{without:?}");
}

#[test]
fn all_of_the_source_is_written_to_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("new/kernel");
    let done = mk(&["codegen", "--out", out.to_str().unwrap()]);
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    assert_eq!(fs::read_to_string(out.join("mk_kernel.cu")).unwrap(), "#include \"mk/kernel.cuh\"\n");
    for file in ["mk/abi.cuh", "mk/table.cuh", "mk/kernel.cuh"] {
        assert!(!fs::read(out.join(file)).unwrap().is_empty());
    }
    let blocked = folder.path().join("file");
    fs::write(&blocked, "").unwrap();
    let done = mk(&["codegen", "--out", blocked.to_str().unwrap()]);
    assert_eq!(done.code, Some(2), "{done:?}");
    assert!(done.err.contains("file"), "{done:?}");
}

#[test]
fn without_nvrtc_a_report_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap();
    let by_option = codegen(&["--report", "--nvrtc", place], &[]);
    let by_variable = codegen(&["--report"], &[("MK_NVRTC", folder.path())]);
    for done in [by_option, by_variable] {
        assert_eq!(done.code, Some(5), "{done:?}");
        assert!(done.err.contains("pip install nvidia-cuda-nvrtc") && done.err.contains(place), "{done:?}");
    }
}

#[test]
fn an_architecture_that_is_none_is_refused_before_any_work() {
    let done = mk(&["codegen", "--arch", "hopper"]);
    assert_eq!(done.code, Some(2), "{done:?}");
    assert!(done.err.contains("hopper") && done.err.contains("sm_90a"), "{done:?}");
}

/// Two processes at once with an empty cache of their own: each gets the same kernel, and the next one finds it there.
#[test]
fn processes_share_a_cache_without_a_lock() {
    let cache = tempfile::tempdir().unwrap();
    let vars = [("XDG_CACHE_HOME", cache.path())];
    let report = |done: Mk| -> Option<Value> {
        if done.code == Some(5) && std::env::var_os("CI").is_none() {
            eprintln!("skipped: {}", done.err);
            return None;
        }
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
        Some(serde_json::from_str(&done.out).unwrap())
    };
    let children: Vec<Child> = (0..2).map(|_| start(&["--report", "--json"], &vars)).collect();
    let reports: Vec<_> = children.into_iter().map(|c| report(finish(c))).collect();
    let Some(reports) = reports.into_iter().collect::<Option<Vec<Value>>>() else { return };
    let last = report(codegen(&["--report", "--json"], &vars)).unwrap();
    assert_eq!(last["kernel"]["cached"], true);
    for r in &reports {
        for field in ["functions", "cubin_bytes", "wgmma"] {
            assert_eq!(r["kernel"][field], last["kernel"][field]);
        }
    }
    assert_eq!(
        fs::read_dir(cache.path().join("mkernel")).unwrap().count(),
        1,
        "one entry, nothing temporary"
    );
    assert!(last["kernel"]["wgmma"].as_u64().unwrap() > 0, "{last}");
    assert_eq!(last["kernel"]["non_coherent_loads"], 0);
}
