//! Good runs, on real files; results are computed here in another way.

#![allow(clippy::unwrap_used)]

mod common;

use common::{bf16, f32s, mk, npy, safetensors};
use serde_json::Value;
use std::fs;
use std::path::Path;

const M: u64 = 24;
const K: u64 = 16;
const N: u64 = 40;

/// Small integers: every product and sum is exact in bf16, fp16 and f32.
fn a() -> Vec<f32> {
    (0..M * K).map(|i| ((i * 7 + i / K) % 5) as f32 - 2.0).collect()
}

fn b() -> Vec<f32> {
    (0..K * N).map(|i| ((i * 5 + i / N) % 7) as f32 - 3.0).collect()
}

fn c() -> Vec<f32> {
    let (a, b) = (a(), b());
    let sum =
        |i, j| (0..K).map(|x| a[(i * K + x) as usize] as i64 * b[(x * N + j) as usize] as i64).sum::<i64>();
    let c: Vec<f32> = (0..M * N).map(|e| sum(e / N, e % N) as f32).collect();
    assert!(c.iter().all(|x| x.abs() < 256.0) && c.iter().any(|&x| x != 0.0));
    c
}

fn object(args: &[&str]) -> Value {
    let done = mk(&[args, &["--json"]].concat());
    assert_eq!(done.code, Some(0), "{args:?}: {done:?}");
    assert_eq!(done.out.lines().count(), 1, "one object: {done:?}");
    serde_json::from_str(&done.out).expect("JSON")
}

/// Header and data of a `.safetensors` file.
fn read_safetensors(path: &Path) -> (Value, Vec<u8>) {
    let bytes = fs::read(path).unwrap();
    let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..end]).unwrap(), bytes[end..].to_vec())
}

#[test]
fn matrices_from_files_give_the_exact_product_on_any_number_of_ranks() {
    let d = tempfile::tempdir().unwrap();
    let at = |name: &str| d.path().join(name);
    // The only matrix of its file may be called anything; of two, it is the one that is called b.
    let vector: (&str, &str, &[u64], &[u8]) = ("scale", "F32", &[1], &[0; 4]);
    fs::write(at("a.safetensors"), safetensors(&[("weights", "BF16", &[M, K], &bf16(&a())), vector]))
        .unwrap();
    let two =
        [("b", "BF16", &[K, N][..], &bf16(&b())[..]), ("x", "BF16", &[K, N], &[0; (K * N * 2) as usize])];
    fs::write(at("b.safetensors"), safetensors(&two)).unwrap();
    for ranks in ["1", "2", "3", "8"] {
        for plan in ["fused", "unfused"] {
            let out = at("c.safetensors");
            let [a, b] = ["a.safetensors", "b.safetensors"].map(|n| at(n).display().to_string());
            let done = mk(&[
                "run",
                "ag-gemm",
                "--ranks",
                ranks,
                "--plan",
                plan,
                "--a",
                &a,
                "--b",
                &b,
                "--out",
                out.to_str().unwrap(),
            ]);
            assert_eq!(done.code, Some(0), "{done:?}");
            for words in [
                "planned: ag-gemm 24 x 40 x 16 bf16",
                "proved: ",
                "no deadlock, no race",
                "right: the worst error is 0 % of what rounding allows, at C[0,0]",
            ] {
                assert!(done.out.contains(words), "'{words}' is not in\n{}", done.out);
            }
            let (header, data) = read_safetensors(&out);
            assert_eq!(header["c"]["dtype"], "BF16");
            assert_eq!(header["c"]["shape"], serde_json::json!([M, N]));
            assert_eq!(data, bf16(&c()), "{ranks} ranks, {plan}");
        }
    }
    // Nothing but the files that were asked for, and with the rights of any other file.
    let mut names: Vec<_> = fs::read_dir(d.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["a.safetensors", "b.safetensors", "c.safetensors"]);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = |name| fs::metadata(at(name)).unwrap().permissions().mode();
        assert_eq!(mode("c.safetensors"), mode("a.safetensors"));
    }
}

#[test]
fn npy_files_are_rounded_to_dtype_and_written_as_floats() {
    let d = tempfile::tempdir().unwrap();
    let at = |name: &str| d.path().join(name).display().to_string();
    // Columns in Fortran order are refused, so A is written row by row.
    fs::write(at("a.npy"), npy("<f4", false, &[M, K], &f32s(&a()))).unwrap();
    fs::write(at("b.npy"), npy("<f4", false, &[K, N], &f32s(&b()))).unwrap();
    let run = |dtype, out: &str| {
        let (a, b) = (at("a.npy"), at("b.npy"));
        object(&["run", "ag-gemm", "--a", &a, "--b", &b, "--dtype", dtype, "--ranks", "2", "--out", out])
    };
    assert_eq!(run("bf16", &at("c.npy"))["dtype"], "bf16");
    let bytes = fs::read(at("c.npy")).unwrap();
    assert_eq!(npyz::NpyFile::new(&bytes[..]).unwrap().shape(), [M, N]);
    assert_eq!(npyz::NpyFile::new(&bytes[..]).unwrap().into_vec::<f32>().unwrap(), c());
    // fp16 stays 2 bytes wide, in both formats.
    run("fp16", &at("half.npy"));
    let bytes = fs::read(at("half.npy")).unwrap();
    let half = npyz::NpyFile::new(&bytes[..]).unwrap().into_vec::<half::f16>().unwrap();
    assert_eq!(half.iter().map(|x| x.to_f32()).collect::<Vec<_>>(), c());
    run("fp16", &at("half.safetensors"));
    let (header, data) = read_safetensors(Path::new(&at("half.safetensors")));
    assert_eq!(header["c"]["dtype"], "F16");
    assert_eq!(data, half.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>());
    // 2-byte floats are fp16 without being told.
    assert_eq!(object(&["run", "ag-gemm", "--b", &at("half.npy"), "--m", "8"])["dtype"], "fp16");
}

#[test]
fn tensors_are_found_by_name() {
    let d = tempfile::tempdir().unwrap();
    let path = d.path().join("both.safetensors").display().to_string();
    let (a, b) = (bf16(&a()), bf16(&b()));
    fs::write(
        &path,
        safetensors(&[("layers.0.x", "BF16", &[M, K], &a), ("layers.0.w", "BF16", &[K, N], &b)]),
    )
    .unwrap();
    let run = object(&[
        "run",
        "ag-gemm",
        "--a",
        &format!("{path}:layers.0.x"),
        "--b",
        &format!("{path}:layers.0.w"),
    ]);
    assert_eq!(run["result"]["blake3"], blake3::hash(&bf16(&c())).to_hex().as_str());
}

#[test]
fn random_matrices_give_the_same_bits_in_every_world_plan_and_schedule() {
    let size = ["run", "ag-gemm", "--m", "136", "--n", "144", "--k", "320"];
    let run = |options: &[&str]| object(&[&size[..], options].concat());
    let first = run(&["--ranks", "1"]);
    for options in [
        &["--ranks", "2"][..],
        &["--ranks", "3", "--schedule-seed", "7"],
        &["--ranks", "8", "--lanes", "1"],
        &["--ranks", "4", "--lanes", "3", "--plan", "unfused", "--schedule-seed", "99"],
    ] {
        let again = run(options);
        assert_eq!(again["result"], first["result"], "{options:?}");
        assert_eq!(again["worst"], first["worst"], "{options:?}");
    }
    assert_ne!(run(&["--seed", "1"])["result"]["blake3"], first["result"]["blake3"]);
    assert_ne!(run(&["--dtype", "fp16"])["result"]["blake3"], first["result"]["blake3"]);
    let worst = first["worst"]["of_bound"].as_f64().unwrap();
    assert!(worst > 0.0 && worst <= 1.0, "{worst}");
}

#[test]
fn the_object_of_a_run_has_these_fields() {
    let run = object(&["run", "ag-gemm", "--m", "64", "--n", "64", "--k", "64", "--ranks", "2"]);
    let mut keys: Vec<_> = run.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    let expected = [
        "backend",
        "checked",
        "command",
        "dtype",
        "k",
        "m",
        "n",
        "ok",
        "operator",
        "out",
        "plan",
        "proof",
        "result",
        "schema",
        "seconds",
        "simulated",
        "trace",
        "worst",
    ];
    assert_eq!(keys, expected);
    assert_eq!((&run["schema"], &run["ok"], &run["backend"]), (&1.into(), &true.into(), &"sim".into()));
    assert_eq!((&run["proof"]["verdict"], &run["proof"]["tasks"]), (&"proved".into(), &run["plan"]["tasks"]));
    assert!(run["simulated"]["us"].as_f64().unwrap() > 0.0);
    assert_eq!(run["checked"], true);
    assert_eq!((&run["result"]["nans"], &run["result"]["infinities"]), (&0.into(), &0.into()));
    let busy = run["simulated"]["busy"].as_f64().unwrap();
    assert!(busy > 0.0 && busy < 1.0, "{busy}");
    assert!(run["simulated"].get("overlap").is_none());
    // Each rank receives the 32 rows of A that the other has.
    assert_eq!(run["plan"]["moved_bytes"], 2 * 32 * 64 * 2);
}

#[test]
fn not_a_number_is_passed_on_and_is_not_an_error() {
    let d = tempfile::tempdir().unwrap();
    let path = d.path().join("a.npy").display().to_string();
    let mut values = a();
    values[K as usize + 3] = f32::NAN;
    fs::write(&path, npy("<f4", false, &[M, K], &f32s(&values))).unwrap();
    let run = object(&["run", "ag-gemm", "--a", &path, "--n", "40", "--ranks", "3"]);
    assert_eq!((run["result"]["nans"].as_u64(), run["checked"].as_bool()), (Some(N), Some(true)));
}

/// 8 products of +2e38 and 8 of -2e38 are 0 in f64; f32 partial sums overflow, to an infinity or to a NaN.
#[test]
fn overflowing_partial_sums_are_not_reported_as_wrong() {
    let d = tempfile::tempdir().unwrap();
    let at = |name: &str| d.path().join(name).display().to_string();
    let b: Vec<f32> = (0..16 * 8).map(|i| if i < 8 * 8 { 1.0 } else { -1.0 }).collect();
    fs::write(at("a.npy"), npy("<f4", false, &[8, 16], &f32s(&[2e38; 8 * 16]))).unwrap();
    fs::write(at("b.npy"), npy("<f4", false, &[16, 8], &f32s(&b))).unwrap();
    for ranks in ["1", "2"] {
        let run = object(&["run", "ag-gemm", "--a", &at("a.npy"), "--b", &at("b.npy"), "--ranks", ranks]);
        assert_eq!((&run["checked"], run["worst"]["of_bound"].as_f64()), (&true.into(), Some(0.0)));
    }
}

#[test]
fn a_product_without_rows_is_legal() {
    let run = object(&["run", "ag-gemm", "--m", "0", "--n", "8", "--k", "8"]);
    assert_eq!((&run["result"]["min"], &run["worst"]), (&Value::Null, &Value::Null));
    assert_eq!(run["simulated"]["busy"], Value::Null);
    let text = mk(&["run", "ag-gemm", "--m", "0", "--n", "8", "--k", "8"]).out;
    assert!(text.contains("simulated: ") && !text.contains('%'), "{text}");
}

#[test]
fn timing_moves_no_data_and_takes_as_long_as_with_data() {
    let size = ["run", "ag-gemm", "--m", "520", "--n", "576", "--k", "320", "--ranks", "3"];
    let with = object(&size);
    let without = object(&[&size[..], &["--timing"]].concat());
    assert_eq!(without["simulated"]["us"], with["simulated"]["us"]);
    assert_eq!((&without["result"], &without["checked"]), (&Value::Null, &false.into()));
}

#[test]
fn a_trace_is_chrome_json() {
    let d = tempfile::tempdir().unwrap();
    let path = d.path().join("trace.json");
    object(&["run", "ag-gemm", "--ranks", "2", "--timing", "--trace", path.to_str().unwrap()]);
    let trace: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().expect("traceEvents");
    assert!(events.iter().any(|e| e["pid"] == 1 && e["name"].as_str().is_some_and(|n| n.contains("tile"))));
}

#[test]
fn a_plan_that_was_written_is_proved_again() {
    let d = tempfile::tempdir().unwrap();
    let path = d.path().join("p.json").display().to_string();
    let plan = object(&["plan", "ag-gemm", "--ranks", "3", "--out", &path]);
    let header: Value =
        serde_json::from_str(fs::read_to_string(&path).unwrap().lines().next().unwrap()).unwrap();
    assert_eq!(header["blake3"], plan["blake3"]);
    let proof = object(&["verify", &path]);
    assert_eq!(
        (&proof["verdict"], &proof["tasks"], &proof["ranks"]),
        (&"proved".into(), &plan["tasks"], &3.into())
    );
    let text = mk(&["verify", &path]);
    assert!(text.out.contains("no deadlock, no race"), "{text:?}");
}

/// Kills a rank early: the survivors say who is gone, and the trace shows what they waited for.
#[test]
fn a_lost_rank_is_exit_code_4_on_the_survivors_word() {
    let d = tempfile::tempdir().unwrap();
    let at = |name: &str| d.path().join(name).display().to_string();
    fs::write(at("kill.toml"), "[kill]\nrank = 1\nat_us = 3.0\n").unwrap();
    let args =
        ["run", "ag-gemm", "--faults", &at("kill.toml"), "--trace", &at("trace.json"), "--out", &at("c.npy")];
    let done = mk(&args);
    assert_eq!(done.code, Some(4), "{done:?}");
    assert!(done.err.contains("rank 1 is lost") && done.err.contains("tile"), "{done:?}");
    let json: Value = serde_json::from_str(&mk(&[&args[..], &["--json"]].concat()).out).unwrap();
    assert_eq!((&json["ok"], &json["kind"]), (&false.into(), &"fault".into()));
    let trace: Value = serde_json::from_slice(&fs::read(at("trace.json")).unwrap()).unwrap();
    assert!(!trace["traceEvents"].as_array().unwrap().is_empty());
    assert!(!Path::new(&at("c.npy")).exists(), "no result of a run that failed");
}

#[test]
fn a_time_out_is_exit_code_4() {
    let d = tempfile::tempdir().unwrap();
    let path = d.path().join("slow.toml").display().to_string();
    fs::write(&path, "[slow]\nrank = 0\nfactor = 100000.0\n").unwrap();
    let done = mk(&["run", "ag-gemm", "--faults", &path, "--timeout-ms", "1"]);
    assert_eq!(done.code, Some(4), "{done:?}");
    assert!(done.err.contains("waited 1000 us"), "{done:?}");
    assert!(!done.err.contains("given"), "{done:?}");
    let done = mk(&["run", "ag-gemm", "--faults", &path, "--timeout-ms", "0.25"]);
    assert_eq!((done.code, done.err.contains("waited 250 us")), (Some(4), true), "{done:?}");
}

/// A network that delays what it carries changes the time, never the bits.
#[test]
fn delays_change_the_time_and_not_the_result() {
    let d = tempfile::tempdir().unwrap();
    let path = d.path().join("late.toml").display().to_string();
    fs::write(&path, "jitter = 2.0\ndelay = { probability = 0.5, max_us = 50.0 }\n").unwrap();
    let (good, late) = (object(&["run", "ag-gemm"]), object(&["run", "ag-gemm", "--faults", &path]));
    assert_eq!(late["result"], good["result"]);
    assert!(late["simulated"]["us"].as_f64() > good["simulated"]["us"].as_f64());
}

/// A program that does not wait for what it reads has a fitting file, but no proof.
#[test]
fn a_program_with_a_race_is_refuted_with_exit_code_3() {
    let d = tempfile::tempdir().unwrap();
    let path = d.path().join("p.json");
    object(&["plan", "ag-gemm", "--ranks", "2", "--out", path.to_str().unwrap()]);
    let text = fs::read_to_string(&path).unwrap();
    let body = text.split_once('\n').unwrap().1;
    // The first wait for an arrival: from "waits" to the list's end.
    let at = body.find("\"waits\":[{\"signal\":\"arrival\"").expect("a tile waits for slices");
    let end = at + body[at..].find("],").unwrap() + 2;
    let body = format!("{}{}", &body[..at], &body[end..]);
    let blake3 = blake3::hash(body.as_bytes()).to_hex();
    let header =
        format!(r#"{{"format":"mk-program","version":1,"blake3":"{blake3}","bytes":{}}}"#, body.len());
    fs::write(&path, format!("{header}\n{body}")).unwrap();
    let done = mk(&["verify", path.to_str().unwrap()]);
    assert_eq!(done.code, Some(3), "{done:?}");
    assert!(done.err.starts_with("error: refuted (race): "), "{}", done.err);
    let given = done.err.lines().find(|l| l.trim_start().starts_with("given")).unwrap();
    assert!(given.contains("tile") && given.contains("push"), "the tasks are named: {}", done.err);
    let json = mk(&["verify", path.to_str().unwrap(), "--json"]);
    assert_eq!(json.code, Some(3));
    assert_eq!(serde_json::from_str::<Value>(&json.out).unwrap()["kind"], "not-proved");
}

#[test]
fn a_reader_that_has_gone_away_is_not_an_error() {
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_mk"))
        .args(["plan", "ag-gemm", "--ranks", "2"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let done = child.wait_with_output().unwrap();
    assert_eq!((done.status.code(), String::from_utf8_lossy(&done.stderr).as_ref()), (Some(0), ""));
}

#[test]
fn a_check_that_is_skipped_is_said_to_be() {
    // 2 * 2048 * 2048 * 1224 operations, just above the bound.
    let size = ["run", "ag-gemm", "--m", "2048", "--n", "2048", "--k", "1224", "--ranks", "2"];
    let said = "not checked: 1.0e10 operations; --check compares anyway\n";
    let done = mk(&size);
    assert!(done.out.contains(said) && !done.out.contains("right:"), "{done:?}");
    let done = mk(&[&size[..], &["--no-check"]].concat());
    assert!(!done.out.contains("not checked"), "as asked: {done:?}");
    let done = mk(&["run", "ag-gemm", "--m", "64", "--n", "64", "--k", "64"]);
    assert!(done.out.contains("right: the worst error is ") && !done.out.contains("not checked"), "{done:?}");
}

#[test]
fn rounding_of_input_is_said_and_no_number_becomes_infinite() {
    let d = tempfile::tempdir().unwrap();
    let path = d.path().join("a.npy").display().to_string();
    let run = |values: &[f32], dtype| {
        fs::write(&path, npy("<f4", false, &[8, 8], &f32s(values))).unwrap();
        mk(&[
            "run",
            "ag-gemm",
            "--a",
            &path,
            "--n",
            "8",
            "--ranks",
            "2",
            "--dtype",
            dtype,
            "--backend",
            "sim",
        ])
    };
    let mut values = [1.0f32; 64];
    let done = run(&values, "fp16");
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(done.err, "mk: A is rounded from fp32 to fp16\n");
    // The first magnitude that rounds to an infinity in fp16, and the last that does not.
    values[3] = 65519.0;
    assert_eq!(run(&values, "fp16").code, Some(0));
    (values[4], values[5]) = (-65520.0, 1e9);
    let done = run(&values, "fp16");
    assert_eq!(done.code, Some(2), "{done:?}");
    for words in ["A does not fit into fp16: 2 of 64 elements", "1e9", "--dtype bf16"] {
        assert!(done.err.contains(words), "'{words}' is not in {done:?}");
    }
    assert!(!done.err.contains("mk: "), "no notes of a run that is refused: {done:?}");
    assert_eq!(run(&values, "bf16").code, Some(0));
    values[6] = f32::MAX;
    let done = run(&values, "bf16");
    assert_eq!(done.code, Some(2), "{done:?}");
    assert!(done.err.contains("1 of 64 elements") && !done.err.contains("--dtype bf16"), "{done:?}");
    // An infinity that was one before is the caller's own.
    values[6] = f32::INFINITY;
    let done = run(&values, "bf16");
    assert_eq!((done.code, done.out.contains(" infinit")), (Some(0), true), "{done:?}");
}

/// What the README shows is what is run here.
#[test]
fn the_files_of_the_readme_are_accepted() {
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let first = object(&["run", "ag-gemm"]);
    for name in ["faults", "topology", "hardware"] {
        let path = format!("{}/tests/data/{name}.toml", env!("CARGO_MANIFEST_DIR"));
        let text = fs::read_to_string(&path).unwrap();
        assert!(readme.contains(&format!("```toml\n{text}```\n")), "{name}.toml is not in README.md");
        let run = object(&["run", "ag-gemm", &format!("--{name}"), &path]);
        assert_eq!(run["result"], first["result"], "{name}");
        // A world of four ranks in one node is the default; the others change the time.
        let same = run["simulated"]["us"] == first["simulated"]["us"];
        assert_eq!(same, name == "topology", "{name}");
    }
}

/// The README shows what the first command prints.
#[test]
fn the_readme_shows_what_is_printed() {
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap();
    let done = mk(&["run", "ag-gemm", "--ranks", "4"]);
    for line in done.out.lines() {
        // The hash is cut short.
        let parts: Vec<&str> = match line.split_once("blake3 ") {
            Some((before, after)) => vec![before, &after[..8], after.split_once(',').unwrap().1],
            None => vec![line],
        };
        assert!(parts.iter().all(|part| readme.contains(part)), "README does not show '{line}'");
    }
}
