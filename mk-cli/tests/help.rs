//! Help that teaches, and does not change by accident.

#![allow(clippy::unwrap_used)]

mod common;

use common::mk;

fn help(args: &[&str]) -> String {
    let done = mk(args);
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{done:?}");
    done.out
}

#[test]
fn help_of_every_command() {
    for (name, args) in [
        ("mk", &["--help"][..]),
        ("mk_run", &["run", "--help"]),
        ("mk_run_ag_gemm", &["run", "ag-gemm", "--help"]),
        ("mk_plan_ag_gemm", &["plan", "ag-gemm", "-h"]),
        ("mk_verify", &["verify", "-h"]),
        ("mk_trace", &["trace", "--help"]),
        ("mk_selftest", &["selftest", "--help"]),
        ("mk_bench", &["bench", "--help"]),
        ("mk_bench_gpu", &["bench", "gpu", "--help"]),
    ] {
        insta::assert_snapshot!(name, help(args));
    }
}

#[test]
fn version() {
    assert_eq!(help(&["--version"]), format!("mk {}\n", env!("CARGO_PKG_VERSION")));
}
