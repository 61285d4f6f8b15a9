//! Where results go: what is never overwritten, and what is said when a result gets lost.

#![cfg(unix)]
#![allow(clippy::unwrap_used)]

mod common;

use common::{mk, npy};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt as _, symlink};
use std::path::Path;

const RUN: [&str; 10] = ["run", "ag-gemm", "--m", "8", "--n", "8", "--k", "8", "--ranks", "2"];
const PLAN: [&str; 10] = ["plan", "ag-gemm", "--m", "8", "--n", "8", "--k", "8", "--ranks", "2"];

#[track_caller]
fn refused(args: &[&str], words: &[&str]) {
    let done = mk(args);
    assert_eq!(done.code, Some(2), "{args:?}: {done:?}");
    assert!(words.iter().all(|w| done.err.contains(w)), "{words:?} are not in\n{}", done.err);
    assert_eq!(done.out, "", "refused before any work");
}

fn fifo(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn what_is_no_regular_file_is_not_replaced() {
    let d = tempfile::tempdir().unwrap();
    let at = |name: &str| d.path().join(name).display().to_string();
    fifo(&d.path().join("pipe.npy"));
    symlink("pipe.npy", d.path().join("link.npy")).unwrap();
    for name in ["pipe.npy", "link.npy"] {
        for args in [
            [&RUN[..], &["--out", &at(name)]],
            [&RUN, &["--trace", &at(name)]],
            [&PLAN, &["--out", &at(name)]],
        ] {
            refused(&args.concat(), &["not a regular file", name]);
        }
    }
    assert!(d.path().join("pipe.npy").symlink_metadata().unwrap().file_type().is_fifo());
    refused(&["bench", "sim", "--samples", "1", "--out", &at("pipe.npy")], &["pipe.npy"]);
    refused(&["bench", "sim", "--samples", "1", "--out", &at("nowhere")], &["no folder"]);
    assert_eq!(fs::read_dir(d.path()).unwrap().count(), 2, "nothing else was written");
}

#[test]
fn a_link_is_followed_and_stays_a_link() {
    let d = tempfile::tempdir().unwrap();
    let at = |name: &str| d.path().join(name);
    fs::create_dir(at("folder")).unwrap();
    fs::write(at("folder/old.npy"), "old").unwrap();
    symlink("folder/old.npy", at("old.npy")).unwrap();
    symlink("folder/new.npy", at("new.npy")).unwrap();
    for name in ["old.npy", "new.npy"] {
        let done = mk(&[&RUN[..], &["--out", at(name).to_str().unwrap()]].concat());
        assert_eq!(done.code, Some(0), "{done:?}");
        assert!(at(name).symlink_metadata().unwrap().is_symlink());
        let file = at("folder").join(name);
        assert!(file.symlink_metadata().unwrap().is_file());
        assert!(fs::read(file).unwrap().starts_with(b"\x93NUMPY"));
    }
}

#[test]
fn a_result_is_a_file_of_its_own() {
    let d = tempfile::tempdir().unwrap();
    let at = |name: &str| d.path().join(name).display().to_string();
    let matrix = npy("<f4", false, &[8, 8], &[0; 256]);
    for name in ["a.npy", "b.npy"] {
        fs::write(at(name), &matrix).unwrap();
    }
    fs::write(at("faults.toml"), "jitter = 0.0\n").unwrap();
    fs::write(at("world.npy"), "[[node]]\nranks = 2\n").unwrap();
    symlink("a.npy", at("link.npy")).unwrap();
    let run = |options: &[&str], words: &[&str]| refused(&[&["run", "ag-gemm"], options].concat(), words);
    let (a, b, link, c) = (at("a.npy"), at("b.npy"), at("link.npy"), at("c.npy"));
    let dotted = at("./b.npy");
    run(&["--a", &a, "--out", &a], &["--out and --a are the same file"]);
    run(&["--a", &a, "--b", &dotted, "--out", &b], &["--out and --b are"]);
    run(&["--a", &a, "--out", &link], &["--out and --a are"]);
    run(&["--a", &link, "--out", &a], &["--out and --a are"]);
    run(&["--b", &b, "--trace", &b], &["--trace and --b are"]);
    run(&["--out", &c, "--trace", &c], &["--trace and --out are"]);
    run(&["--faults", &at("faults.toml"), "--trace", &at("faults.toml")], &["--trace and --faults are"]);
    let world = at("world.npy");
    run(&["--topology", &world, "--out", &world], &["--out and --topology are"]);
    refused(&["plan", "ag-gemm", "--topology", &world, "--out", &world], &["--out and --topology are"]);
    assert_eq!((fs::read(&a).unwrap(), fs::read(&b).unwrap()), (matrix.clone(), matrix));
    // One file may be both operands.
    let done = mk(&["run", "ag-gemm", "--a", &a, "--b", &a, "--out", &c]);
    assert_eq!(done.code, Some(0), "{done:?}");
}

/// Takes some bytes, and then fails.
struct Full {
    left: usize,
    kind: io::ErrorKind,
}

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.left);
        self.left -= taken;
        if taken == 0 { Err(io::Error::new(self.kind, "no more")) } else { Ok(taken) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn into_full(args: &[&str], left: usize, kind: io::ErrorKind) -> (mk_cli::Exit, String) {
    let mut err = Vec::new();
    let args = ["mk"].iter().chain(args).map(Into::into);
    let exit = mk_cli::run(args, &mut Full { left, kind }, &mut err);
    (exit, String::from_utf8(err).unwrap())
}

#[test]
fn a_lost_result_is_not_a_success() {
    for args in [&PLAN[..], &[&PLAN[..], &["--json"]].concat(), &["--help"], &["--version"]] {
        for left in [0, 3] {
            let (exit, err) = into_full(args, left, io::ErrorKind::StorageFull);
            assert_eq!(exit, mk_cli::Exit::Internal, "{args:?}: {err}");
            assert!(err.contains("results are lost: no more"), "{args:?}: {err}");
            assert_eq!(
                into_full(args, left, io::ErrorKind::BrokenPipe),
                (mk_cli::Exit::Success, String::new())
            );
        }
    }
    // What went wrong before counts more.
    let (exit, err) = into_full(&["plan", "tea", "--json"], 0, io::ErrorKind::StorageFull);
    assert_eq!((exit, err.contains("results are lost")), (mk_cli::Exit::Input, true), "{err}");
}

/// What is only noticed when everything is written out.
struct Late;

impl Write for Late {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::QuotaExceeded, "no more"))
    }
}

#[test]
fn a_buffer_that_cannot_be_written_out_is_not_a_success() {
    let args = ["mk"].iter().chain(&PLAN).map(Into::into);
    assert_eq!(mk_cli::run(args, &mut Late, &mut Vec::new()), mk_cli::Exit::Internal);
}
