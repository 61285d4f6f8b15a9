//! Completion scripts: shells accept them, and bash completes by them.

#![allow(clippy::unwrap_used)]

mod common;

use common::mk;
use std::process::Command;

fn script(shell: &str) -> String {
    let done = mk(&["completions", shell]);
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
    done.out
}

#[test]
fn every_shell_gets_a_script_that_knows_the_commands() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = script(shell);
        for word in ["ag-gemm", "doctor", "schedule-seed"] {
            assert!(script.contains(word), "{shell}: no {word}");
        }
    }
}

#[test]
fn another_shell_is_a_usage_error_that_names_those_there_are() {
    let done = mk(&["completions", "tcsh"]);
    assert_eq!(done.code, Some(2));
    assert!(done.err.contains("bash") && done.err.contains("fish"), "{}", done.err);
}

#[test]
fn with_json_the_script_is_a_field() {
    let object: serde_json::Value = serde_json::from_str(&mk(&["completions", "zsh", "--json"]).out).unwrap();
    assert_eq!(object["script"], script("zsh"));
}

/// What bash offers for the last of these words; nothing where there is no bash.
fn offered(words: &[&str]) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mk.bash");
    std::fs::write(&file, script("bash")).unwrap();
    let syntax = Command::new("bash").arg("-n").arg(&file).output().ok()?;
    assert!(syntax.status.success(), "{}", String::from_utf8_lossy(&syntax.stderr));
    let (last, before) = (words[words.len() - 1], words[words.len() - 2]);
    let complete = format!(
        "source {}; COMP_WORDS=({}); COMP_CWORD={}; _mk mk {last} {before}; echo \"${{COMPREPLY[@]}}\"",
        file.display(),
        words.join(" "),
        words.len() - 1,
    );
    let done = Command::new("bash").args(["--norc", "-c", &complete]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stderr), "");
    Some(String::from_utf8(done.stdout).unwrap().trim().to_string())
}

#[test]
fn bash_completes_commands_options_and_values() {
    for (words, expected) in [
        (&["mk", "doc"][..], "doctor"),
        (&["mk", "run", "ag"], "ag-gemm"),
        (&["mk", "run", "ag-gemm", "--schedule"], "--schedule-seed"),
        (&["mk", "run", "ag-gemm", "--dtype", "f"], "fp16"),
        (&["mk", "doctor", "--require", "r"], "rdma"),
        (&["mk", "self"], "selftest"),
        (&["mk", "selftest", "--require", "g"], "gpu"),
    ] {
        if let Some(offered) = offered(words) {
            assert_eq!(offered, expected, "{words:?}");
        }
    }
}
