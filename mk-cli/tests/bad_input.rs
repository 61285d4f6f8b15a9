//! Bad input: a clear error, exit code 2, and no panic.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Mk, mk, npy, safetensors};
use std::fs;

/// Runs `mk` and asserts that it refuses with these words.
#[track_caller]
fn refused(args: &[&str], words: &[&str]) {
    let done = mk(args);
    assert_eq!(done.code, Some(2), "{args:?}: {done:?}");
    assert!(done.err.contains("error: "), "{args:?}: {done:?}");
    assert!(!done.err.contains("panicked"), "{args:?}: {done:?}");
    for word in words {
        assert!(done.err.contains(word), "{args:?}: '{word}' is not in\n{}", done.err);
    }
    // The same as an object, and nothing but it.
    let json = mk(&[args, &["--json"]].concat());
    assert_eq!(json.code, Some(2), "{args:?}: {json:?}");
    let object: serde_json::Value = serde_json::from_str(&json.out).expect("one object on stdout");
    let mut keys: Vec<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["allowed", "given", "hint", "kind", "message", "ok", "schema"], "{args:?}");
    assert_eq!((object["schema"].as_u64(), object["ok"].as_bool()), (Some(1), Some(false)));
    assert!(!object["message"].as_str().unwrap().is_empty());
}

const SMALL: [&str; 8] = ["run", "ag-gemm", "--m", "64", "--n", "64", "--k", "64"];

#[track_caller]
fn run_refused(options: &[&str], words: &[&str]) {
    refused(&[&SMALL[..], options].concat(), words);
}

#[test]
fn usage_errors_list_what_is_allowed() {
    refused(&["run", "ag-gem"], &["unknown operator", "ag-gem", "allowed", "ag-gemm"]);
    refused(&["run"], &["no operator", "ag-gemm"]);
    refused(&[], &["no command", "run, plan, verify"]);
    refused(&["runn"], &["unknown command", "runn", "verify"]);
    refused(&["plan", "tea"], &["unknown operator", "tea", "ag-gemm"]);
    refused(&["bench"], &["no benchmark", "sim"]);
    refused(&["bench", "nope"], &["unknown benchmark", "nope", "sim"]);
    refused(&["run", "ag-gemm", "extra"], &["unexpected argument", "extra"]);
    for ms in ["0", "-1", "nan", "inf", "soon"] {
        run_refused(&["--timeout-ms", ms], &["--timeout-ms", "a number above 0"]);
    }
    refused(&["verify"], &["FILE"]);
    run_refused(&["--rank", "4"], &["unknown option", "--ranks"]);
    run_refused(&["--ranks", "four"], &["four", "--ranks"]);
    run_refused(&["--dtype", "fp64"], &["fp64", "bf16, fp16"]);
    run_refused(&["--backend", "tpu"], &["tpu", "auto, sim, gpu"]);
    run_refused(&["--plan", "fast"], &["fast", "fused, unfused"]);
    run_refused(&["--timing", "--out", "c.npy"], &["--timing", "--out"]);
    run_refused(&["--topology", "t.toml", "--ranks", "2"], &["--topology", "--ranks"]);
}

#[test]
fn worlds_that_do_not_exist() {
    run_refused(&["--ranks", "0"], &["0 ranks", "65536"]);
    run_refused(&["--ranks", "8589934592"], &["8589934592 ranks", "65536"]);
    run_refused(&["--ranks", "18446744073709551616"], &["18446744073709551616"]);
    run_refused(&["--ranks", "-1"], &["-1"]);
    run_refused(&["--nodes", "0"], &["0 nodes"]);
    run_refused(&["--nodes", "3"], &["4 ranks on 3 nodes", "multiple"]);
}

#[test]
fn sizes_that_are_not_legal_name_the_next_one_that_is() {
    refused(&["run", "ag-gemm", "--n", "13"], &["N = 13", "16"]);
    refused(&["run", "ag-gemm", "--k", "1001"], &["K = 1001", "1008"]);
    refused(&["run", "ag-gemm", "--m", "-5"], &["-5"]);
    refused(
        &["run", "ag-gemm", "--m", "1099511627776", "--n", "1048576"],
        &["memory", "available", "--timing"],
    );
    refused(&["plan", "ag-gemm", "--m", "18446744073709551615"], &["M"]);
    refused(&["plan", "ag-gemm", "--m", "140737488355328", "--n", "140737488355328"], &["too many tasks"]);
    refused(&["plan", "ag-gemm", "--m", "8388608", "--n", "8388608"], &["memory"]);
    run_refused(&["--lanes", "0"], &["--lanes 0", "1 to 132"]);
    run_refused(&["--lanes", "133"], &["--lanes 133", "1 to 132"]);
    run_refused(&["--lanes", "70000"], &["--lanes 70000", "1 to 132"]);
    refused(&["plan", "ag-gemm", "--lanes", "133"], &["1 to 132"]);
}

#[test]
fn topology_and_hardware_files() {
    let d = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = d.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let island = file("island.toml", "[[node]]\nranks = 2\nnvlink = [[0]]\n");
    run_refused(&["--topology", &island], &["island", "rank 1", "island.toml"]);
    let huge = file("huge.toml", "[[node]]\nranks = 8589934592\n");
    run_refused(&["--topology", &huge], &["line 2", "8589934592"]);
    let zero = file("zero.toml", "[[node]]\nranks = 0\n");
    run_refused(&["--topology", &zero], &["0 ranks"]);
    let key = file("key.toml", "[[node]]\nranks = 2\ngpus = 2\n");
    run_refused(&["--topology", &key], &["line 3", "gpus"]);
    let bytes = d.path().join("bytes.toml");
    fs::write(&bytes, b"\xff\xfe").unwrap();
    run_refused(&["--topology", bytes.to_str().unwrap()], &["not text"]);
    run_refused(&["--topology", "no-such.toml"], &["no-such.toml", "cannot be read"]);
    run_refused(&["--hardware", "h900"], &["h900", "h200"]);
    let slow = file("slow.toml", "name = \"slow\"\nsms = 0\n");
    run_refused(&["--hardware", &slow], &["slow.toml", "line"]);
}

#[test]
fn faults_files() {
    let d = tempfile::tempdir().unwrap();
    let file = |text: &str| {
        let path = d.path().join("faults.toml");
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    run_refused(&["--faults", &file("jitter = 1.0\nreordr = 0.5\n")], &["faults.toml", "line 2", "reordr"]);
    run_refused(&["--faults", &file("reorder = nan\n")], &["reorder", "0 to 1"]);
    run_refused(&["--faults", &file("[kill]\nrank = 4\nat_us = 0.0\n")], &["rank 4", "ranks 0 to 3"]);
}

#[test]
fn files_that_cannot_be_read() {
    let d = tempfile::tempdir().unwrap();
    let at = |name: &str| d.path().join(name).display().to_string();
    fs::write(at("empty.safetensors"), "").unwrap();
    fs::create_dir(at("folder.npy")).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(at("nowhere"), at("link.npy")).unwrap();
    fs::write(at("text.csv"), "1,2").unwrap();
    run_refused(&["--a", &at("empty.safetensors")], &["empty"]);
    run_refused(&["--a", &at("folder.npy")], &["folder"]);
    #[cfg(unix)]
    run_refused(&["--a", &at("link.npy")], &["link to a file that is not there"]);
    #[cfg(unix)]
    run_refused(&["--faults", "/dev/zero"], &["not a regular file"]);
    run_refused(&["--b", &at("missing.npy")], &["missing.npy", "cannot be read"]);
    run_refused(&["--b", &at("text.csv")], &[".safetensors or .npy"]);
    run_refused(&["--out", &at("c.csv")], &[".safetensors or .npy"]);
    run_refused(&["--out", &at("no/c.npy")], &["no folder"]);
    run_refused(&["--out", &at("folder.npy")], &["folder"]);
    run_refused(&["--trace", d.path().to_str().unwrap()], &["folder"]);
}

#[test]
fn files_that_are_damaged() {
    let d = tempfile::tempdir().unwrap();
    let at = |name: &str| d.path().join(name).display().to_string();
    let good = safetensors(&[("a", "BF16", &[64, 64], &[0; 64 * 64 * 2])]);
    for (name, cut) in
        [("head.safetensors", 5), ("header.safetensors", 40), ("data.safetensors", good.len() - 1)]
    {
        fs::write(at(name), &good[..cut]).unwrap();
        run_refused(&["--a", &at(name)], &["not a whole .safetensors file"]);
    }
    // A header that promises 2^63 bytes.
    let mut huge = good.clone();
    huge[7] = 0x7f;
    fs::write(at("huge.safetensors"), &huge).unwrap();
    run_refused(&["--a", &at("huge.safetensors")], &["not a whole .safetensors file"]);
    let good = npy("<f4", false, &[64, 64], &[0; 64 * 64 * 4]);
    fs::write(at("cut.npy"), &good[..good.len() - 1]).unwrap();
    run_refused(&["--a", &at("cut.npy")], &["64 x 64", "16383"]);
    fs::write(at("kind.npy"), npy("<f8", false, &[64, 64], &[0; 64 * 64 * 8])).unwrap();
    run_refused(
        &["--a", &at("kind.npy")],
        &[&format!("error: --a {} holds '<f8', not f2 or f4", at("kind.npy"))],
    );
    for descr in ["<V2", "|V2"] {
        fs::write(at("void.npy"), npy(descr, false, &[64, 64], &[0; 64 * 64 * 2])).unwrap();
        run_refused(&["--a", &at("void.npy")], &[descr, "bfloat16? use .safetensors"]);
    }
    for shape in [&[64][..], &[4, 4, 4]] {
        fs::write(at("flat.npy"), npy("<f4", false, shape, &[0; 64 * 4])).unwrap();
        run_refused(&["--b", &at("flat.npy")], &["--b ", "two dimensions", "reshape it to [rows, columns]"]);
    }
    fs::write(at("order.npy"), npy("<f4", true, &[64, 64], &[0; 64 * 64 * 4])).unwrap();
    run_refused(&["--a", &at("order.npy")], &["Fortran"]);
    fs::write(at("zip.npy"), b"PK\x03\x04").unwrap();
    run_refused(&["--a", &at("zip.npy")], &["not a .npy"]);
}

#[test]
fn matrices_that_do_not_fit() {
    let d = tempfile::tempdir().unwrap();
    let save = |name: &str, bytes: Vec<u8>| {
        fs::write(d.path().join(name), bytes).unwrap();
        d.path().join(name).display().to_string()
    };
    let matrix = |kind: &str, rows: u64, cols: u64| {
        safetensors(&[(
            "x",
            kind,
            &[rows, cols],
            &vec![0; (rows * cols * if kind == "F32" { 4 } else { 2 }) as usize],
        )])
    };
    let a = save("a.safetensors", matrix("BF16", 64, 32));
    let b = save("b.safetensors", matrix("BF16", 64, 16));
    let half = save("half.safetensors", matrix("F16", 32, 16));
    let single = save("single.safetensors", matrix("F32", 32, 16));
    let odd = save("odd.safetensors", matrix("BF16", 32, 13));
    let two = save(
        "two.safetensors",
        safetensors(&[("x", "BF16", &[8, 8], &[0; 128]), ("y", "BF16", &[8, 8], &[0; 128])]),
    );
    let flat = save("flat.safetensors", safetensors(&[("x", "BF16", &[64], &[0; 128])]));
    let run = ["run", "ag-gemm"];
    refused(&[&run[..], &["--a", &a, "--b", &b]].concat(), &["A is 64 x 32, B is 64 x 16"]);
    refused(&[&run[..], &["--a", &a, "--m", "65"]].concat(), &["--m 65", "64"]);
    refused(&[&run[..], &["--a", &a, "--k", "64"]].concat(), &["--k 64", "32"]);
    refused(&[&run[..], &["--a", &a, "--b", &half]].concat(), &["A is bf16, B is fp16"]);
    refused(&[&run[..], &["--a", &a, "--dtype", "fp16"]].concat(), &["A is bf16, --dtype is fp16"]);
    refused(&[&run[..], &["--b", &single]].concat(), &["F32", ".npy"]);
    refused(&[&run[..], &["--a", &a, "--b", &odd]].concat(), &["N = 13", "16"]);
    refused(&[&run[..], &["--a", &two]].concat(), &["several matrices", "'x', 'y'", "FILE.safetensors:NAME"]);
    refused(&[&run[..], &["--a", &format!("{two}:z")]].concat(), &["no tensor 'z'", "'x', 'y'"]);
    refused(&[&run[..], &["--a", &flat]].concat(), &["no matrix"]);
    refused(
        &[&run[..], &["--a", &format!("{flat}:x")]].concat(),
        &["[64]", "two dimensions", "reshape it to [rows, columns]"],
    );
}

#[test]
fn program_files() {
    let d = tempfile::tempdir().unwrap();
    let at = |name: &str| d.path().join(name).display().to_string();
    let Mk { code, err, .. } = mk(&[
        "plan",
        "ag-gemm",
        "--m",
        "64",
        "--n",
        "64",
        "--k",
        "64",
        "--ranks",
        "2",
        "--out",
        &at("p.json"),
    ]);
    assert_eq!(code, Some(0), "{err}");
    let good = fs::read(at("p.json")).unwrap();
    let save = |name: &str, bytes: &[u8]| {
        fs::write(at(name), bytes).unwrap();
        at(name)
    };
    let text = String::from_utf8(good.clone()).unwrap();
    let newer = save("newer.json", text.replacen("\"version\":1", "\"version\":2", 1).as_bytes());
    refused(&["verify", &newer], &["newer.json", "version 2", "version 1"]);
    for at in [0, 30, 60, 200, good.len() - 1] {
        let mut flipped = good.clone();
        flipped[at] ^= 4;
        refused(&["verify", &save("flipped.json", &flipped)], &["program file"]);
    }
    refused(&["verify", &save("cut.json", &good[..good.len() / 2])], &["length"]);
    refused(&["verify", &save("empty.json", b"")], &["empty"]);
    refused(&["verify", &save("other.json", b"{\"a\": 1}\n")], &["mk-program"]);
    refused(&["verify", &at("p.json"), "--nodes", "0"], &["0 nodes"]);
    let three = save("three.toml", b"[[node]]\nranks = 3\n");
    refused(&["verify", &at("p.json"), "--topology", &three], &["3 ranks", "2 ranks"]);
    refused(&["verify", d.path().to_str().unwrap()], &["folder"]);
    refused(&["verify", "no-such-file.json"], &["cannot be read"]);
}
