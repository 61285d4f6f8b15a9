//! Starts a process with the fake driver, and reads what became of it.

use mk_kernel::abi::Launch;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names the scenario in the environment of the child.
pub(crate) const SCENARIO: &str = "MK_SESSION_SCENARIO";
/// Begins the line with the child's answer: the test harness prints others.
pub(crate) const ANSWER: &str = "@answer ";

/// One call, as the fake driver wrote it down: its name, what it returned, and what was open after it.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) code: u32,
    pub(crate) live: Value,
}

/// What became of a scenario.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) answer: Value,
    pub(crate) calls: Vec<Call>,
}

/// Runs a scenario with a driver that is like this, and whose kernel takes what a session gives it.
pub(crate) fn run(scenario: &str, config: &str) -> Done {
    let folder = tempfile::tempdir().unwrap();
    let driver = folder.path().join("libcuda.so.1");
    std::fs::hard_link(library(), &driver).or_else(|_| std::fs::copy(library(), &driver).map(drop)).unwrap();
    let log = folder.path().join("log");
    let config = format!("parameter={}; {config}", size_of::<Launch>());
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child::child", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(SCENARIO, scenario).env("FAKE_CUDA", &config).env("FAKE_CUDA_LOG", &log);
    command.env("LD_LIBRARY_PATH", folder.path());
    for name in ["CUDA_VISIBLE_DEVICES", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] {
        command.env_remove(name);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let answer = text.lines().find_map(|l| l.split_once(ANSWER)).map(|(_, json)| json);
    let answer = answer.unwrap_or_else(|| {
        panic!("{scenario}, {config}: {}\n{text}\n{}", output.status, String::from_utf8_lossy(&output.stderr))
    });
    Done { answer: serde_json::from_str(answer).unwrap(), calls: calls(&log) }
}

/// The library of the fake driver. Cargo builds it beside this test, which depends on its crate.
pub(crate) fn library() -> PathBuf {
    let library = std::env::current_exe().unwrap().with_file_name("libfake_cuda.so");
    assert!(library.is_file(), "cargo has not built {}", library.display());
    library
}

fn calls(log: &Path) -> Vec<Call> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().map(call).collect()
}

fn call(line: &str) -> Call {
    let (head, rest) = line.split_once(" {").unwrap();
    let (live, _) = rest.split_once("} ").unwrap();
    let head: Vec<&str> = head.split(' ').collect();
    let live = serde_json::from_str(&format!("{{{live}}}")).unwrap();
    Call { name: head[1].into(), code: head[2].parse().unwrap(), live }
}

impl Done {
    /// A part of the error.
    pub(crate) fn says(&self, field: &str) -> &str {
        self.answer["error"][field].as_str().unwrap_or_else(|| panic!("no error: {}", self.answer))
    }

    pub(crate) fn failed(&self) -> bool {
        !self.answer["error"].is_null()
    }

    /// It ended in an error of this kind, which says what to do.
    pub(crate) fn assert_error(&self, error: &str, kind: &str) {
        assert_eq!((self.says("error"), self.says("kind")), (error, kind), "{}", self.answer);
        assert!(!self.says("message").is_empty() && !self.says("hint").is_empty(), "{}", self.answer);
    }

    /// Nothing is open, by the session's count and by the driver's, and no release has failed.
    pub(crate) fn assert_clean(&self) {
        let live = &self.calls.last().unwrap().live;
        assert!(live.as_object().unwrap().values().all(|n| n == 0), "open: {live}\n{}", self.answer);
        assert_eq!(live, &self.answer["live"], "the ledgers differ");
        assert_eq!(self.answer["kept"], Value::Array(Vec::new()), "releases failed");
        assert_eq!(self.answer["descriptors"], 0, "descriptors are left");
    }
}
