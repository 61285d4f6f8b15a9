//! Input that is meant to hurt: files that lie about their size, names that act on a terminal, worlds that exhaust memory.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Mk, mk, npy, safetensors};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const SMALL: [&str; 8] = ["run", "ag-gemm", "--m", "64", "--n", "64", "--k", "64"];
const HUGE_BYTES: u64 = 8 << 30;

#[track_caller]
fn refused(args: &[&str], words: &[&str]) -> Mk {
    let done = mk(args);
    assert_eq!(done.code, Some(2), "{args:?}: {done:?}");
    for word in words {
        assert!(done.err.contains(word), "{args:?}: '{word}' is not in\n{}", done.err);
    }
    done
}

/// Runs `mk` in a shell with `kilobytes` of address space.
#[cfg(unix)]
fn limited(kilobytes: u64, args: &[&str]) -> Mk {
    let script = format!("ulimit -v {kilobytes}; exec \"$0\" \"$@\"");
    let done =
        Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_mk")]).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Mk { code: done.status.code(), out: text(done.stdout), err: text(done.stderr) }
}

/// A file with these first bytes and nothing but holes after them.
fn sparse(path: &Path, start: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(start).unwrap();
    file.set_len(HUGE_BYTES).unwrap();
}

#[test]
#[cfg(unix)]
fn a_large_file_with_a_bad_header_is_refused_at_once_and_without_memory() {
    let d = tempfile::tempdir().unwrap();
    let good = safetensors(&[("a", "BF16", &[8, 8], &[0; 128])]);
    let long = [&u64::to_le_bytes(1 << 32)[..], b"{"].concat();
    let garbage = [&u64::to_le_bytes(90_000_000)[..], b"x"].concat();
    for (name, start, words) in [
        ("zeros.npy", &b""[..], "not a .npy file"),
        ("small.npy", &npy("<f4", false, &[8, 8], &[0; 256]), "8 x 8 elements are 256 bytes"),
        ("long.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\x7f{", "2147483647 bytes"),
        ("zeros.safetensors", b"", "not a whole .safetensors file"),
        ("small.safetensors", &good, "8589934592 bytes"),
        ("long.safetensors", &long, "4294967296 bytes"),
        ("garbage.safetensors", &garbage, "not a whole .safetensors file"),
    ] {
        let path = d.path().join(name);
        sparse(&path, start);
        let start = Instant::now();
        // 400 MB of address space, code and libraries included.
        let done = limited(400_000, &["run", "ag-gemm", "--a", path.to_str().unwrap()]);
        assert_eq!(done.code, Some(2), "{name}: {done:?}");
        assert!(done.err.contains(words), "{name}: {done:?}");
        assert!(start.elapsed() < Duration::from_secs(5), "{name}: {:?}", start.elapsed());
    }
}

/// One small matrix of a large file needs no more memory than the matrix.
#[test]
#[cfg(unix)]
fn only_the_tensor_that_is_wanted_is_read() {
    let d = tempfile::tempdir().unwrap();
    let path = d.path().join("large.safetensors");
    let rows = (HUGE_BYTES / 2) / 2;
    let header = format!(
        r#"{{"large":{{"dtype":"BF16","shape":[{rows},1],"data_offsets":[0,{large}]}},"a":{{"dtype":"BF16","shape":[8,8],"data_offsets":[{large},{end}]}}}}"#,
        large = rows * 2,
        end = rows * 2 + 128,
    );
    let mut file = File::create(&path).unwrap();
    file.write_all(&[&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()).unwrap();
    file.set_len(8 + header.len() as u64 + rows * 2 + 128).unwrap();
    let given = format!("{}:a", path.display());
    let done = limited(400_000, &["run", "ag-gemm", "--a", &given, "--n", "8", "--ranks", "2"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    // All of it would not fit, and is refused before it is read.
    let given = format!("{}:large", path.display());
    let done = limited(400_000, &["run", "ag-gemm", "--a", &given]);
    assert_eq!((done.code, done.err.contains("does not fit into memory")), (Some(2), true), "{done:?}");
}

#[test]
#[cfg(unix)]
fn a_plan_that_needs_too_much_memory_for_its_signals_is_refused() {
    let many = ["run", "ag-gemm", "--m", "32", "--n", "32", "--k", "16", "--ranks", "23000", "--timing"];
    let start = Instant::now();
    let done = limited(9_000_000, &many);
    assert_eq!((done.code, done.err.contains("does not fit into memory")), (Some(2), true), "{done:?}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    // On many nodes, most tasks are transfers and credits.
    let far = [
        "plan", "ag-gemm", "--ranks", "1024", "--nodes", "1024", "--m", "1024", "--n", "8192", "--k", "1024",
    ];
    let done = limited(1_500_000, &far);
    assert_eq!((done.code, done.err.contains("does not fit into memory")), (Some(2), true), "{done:?}");
    // What fits is run.
    let few = ["run", "ag-gemm", "--m", "32", "--n", "32", "--k", "16", "--ranks", "64", "--timing"];
    assert_eq!(limited(9_000_000, &few).code, Some(0));
}

#[test]
fn a_key_that_is_given_twice_is_refused() {
    let d = tempfile::tempdir().unwrap();
    let path = d.path().join("twice.safetensors");
    let one = r#""a":{"dtype":"BF16","shape":[8,8],"data_offsets":[0,128]}"#;
    for header in [format!("{{{one},{one}}}"), format!("{{{one},{}}}", one.replace("\"a\"", r#""\u0061""#))] {
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 128]].concat();
        fs::write(&path, bytes).unwrap();
        refused(&["run", "ag-gemm", "--a", path.to_str().unwrap()], &["'a' is given twice"]);
    }
}

#[test]
fn shapes_that_are_no_matrix_are_shown() {
    let d = tempfile::tempdir().unwrap();
    let path = d.path().join("shapes.safetensors");
    let tensors = [("flat", "BF16", &[64u64][..], &[0u8; 128][..]), ("cube", "BF16", &[4, 4, 4], &[0; 128])];
    fs::write(&path, safetensors(&tensors)).unwrap();
    refused(
        &["run", "ag-gemm", "--a", path.to_str().unwrap()],
        &["'flat' of shape [64]", "'cube' of shape [4, 4, 4]"],
    );
}

/// No byte of a name or of a file acts on the terminal.
#[test]
fn control_characters_are_escaped() {
    let d = tempfile::tempdir().unwrap();
    let at = |name: &str| d.path().join(name).display().to_string();
    let name = r"\u001b[2J\u0000\nerror: none";
    fs::write(at("x.safetensors"), safetensors(&[(name, "F32", &[1, 1], &[0; 4])])).unwrap();
    fs::write(at("x.npy"), npy("<\x1b[2J", false, &[1, 1], &[0; 4])).unwrap();
    fs::write(at("x.toml"), "jitter = \"\x1b[2J\"\n").unwrap();
    fs::write(at("\x1b[2J.npy"), "").unwrap();
    for (option, file) in
        [("--a", "x.safetensors"), ("--a", "x.npy"), ("--faults", "x.toml"), ("--a", "\x1b[2J.npy")]
    {
        let done = refused(&[&SMALL[..], &[option, &at(file)]].concat(), &[r"\u{1b}"]);
        let raw = |c: char| c.is_control() && c != '\n';
        assert!(!done.err.contains(raw) && !done.err.contains("\nerror: none"), "{file}: {:?}", done.err);
    }
    refused(&["run", "ag-gemm", "--a", &at("x.safetensors")], &[r"[2J\u{0}\nerror: none"]);
}

#[test]
#[cfg(unix)]
fn file_names_that_are_not_text_are_names() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    let d = tempfile::tempdir().unwrap();
    let at = |name: &[u8]| d.path().join(OsStr::from_bytes(name)).into_os_string();
    fs::write(at(b"\xff.safetensors"), safetensors(&[("w", "BF16", &[8, 8], &[0; 128])])).unwrap();
    let run = |args: &[&OsStr]| {
        let done =
            Command::new(env!("CARGO_BIN_EXE_mk")).args(["run", "ag-gemm"]).args(args).output().unwrap();
        (done.status.code(), String::from_utf8(done.stderr).unwrap())
    };
    let (plain, named, out) = (at(b"\xff.safetensors"), at(b"\xff.safetensors:w"), at(b"\xfe.npy"));
    let (code, err) =
        run(&["--a".as_ref(), &plain, "--b".as_ref(), &named, "--out".as_ref(), &out, "--json".as_ref()]);
    assert_eq!(code, Some(0), "{err}");
    assert!(Path::new(&out).is_file());
    // Where a name is no file's, it is shown.
    let (code, err) = run(&["--m".as_ref(), OsStr::from_bytes(b"\xff1")]);
    assert_eq!(code, Some(2));
    assert!(err.contains("--m \u{fffd}1") && err.contains("UTF-8"), "{err}");
}

#[test]
fn numbers_below_zero_are_out_of_range() {
    for option in ["--seed", "--schedule-seed", "--timeout-ms", "--m", "--ranks", "--nodes"] {
        refused(&["run", "ag-gemm", option, "-1"], &["-1", option, "out of range"]);
    }
    refused(&["run", "ag-gemm", "--seed", "18446744073709551616"], &["--seed", "out of range"]);
    refused(&["run", "ag-gemm", "--seed", "x"], &["--seed", "not a whole number"]);
    refused(&["bench", "sim", "--samples", "-1"], &["--samples", "-1 is not in"]);
}

/// A user of the command line cannot register a transport, and `verify` has no --ranks.
#[test]
fn hints_name_what_can_be_done() {
    let d = tempfile::tempdir().unwrap();
    let at = |name: &str| d.path().join(name).display().to_string();
    let groups = "[[node]]\nranks = 4\nnvlink = [[0, 1], [2, 3]]\n";
    fs::write(at("groups.toml"), groups).unwrap();
    let mut plan = SMALL;
    plan[0] = "plan";
    // No network connects the two groups: the pair is named, and what to change.
    for command in [SMALL, plan] {
        let done =
            refused(&[&command[..], &["--topology", &at("groups.toml")]].concat(), &["rank 2", "fabric"]);
        assert!(!done.err.contains("register"), "{}", done.err);
        assert!(!done.err.contains("backend"), "nothing but the error: {done:?}");
    }
    let done = mk(&[&plan[..], &["--ranks", "3", "--out", &at("p.json")]].concat());
    assert_eq!(done.code, Some(0), "{done:?}");
    let done = refused(&["verify", &at("p.json"), "--nodes", "2"], &["3 ranks on 2 nodes", "change --nodes"]);
    assert!(!done.err.contains("--ranks"), "{}", done.err);
    let done = mk(&["verify", &at("p.json"), "--nodes", "3"]);
    assert_eq!((done.code, done.err.contains("planned for")), (Some(3), true), "{}", done.err);
}

/// An empty file is a legal list of faults, and a topology without a node.
#[test]
fn empty_text_files_are_judged_by_their_own_readers() {
    let d = tempfile::tempdir().unwrap();
    let path = d.path().join("empty.toml").display().to_string();
    fs::write(&path, "").unwrap();
    let done = mk(&[&SMALL[..], &["--faults", &path]].concat());
    assert_eq!(done.code, Some(0), "{done:?}");
    refused(&[&SMALL[..], &["--topology", &path]].concat(), &["empty.toml", "node"]);
}
