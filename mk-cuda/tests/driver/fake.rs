//! Starts a process with the fake driver, and reads what became of it.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names the scenario in the environment of the child.
pub(crate) const SCENARIO: &str = "MK_DRIVER_SCENARIO";
/// Begins the line with the child's answer: the test harness prints others.
pub(crate) const ANSWER: &str = "@answer ";

/// One call, as the fake driver wrote it down.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) code: u32,
    /// What was open after it, by kind.
    pub(crate) live: Value,
    /// The GPU whose context was current in the calling thread.
    pub(crate) current: String,
    /// Handles that lost their context before they were closed.
    pub(crate) orphans: u64,
}

/// What became of a scenario.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) answer: Value,
    pub(crate) calls: Vec<Call>,
}

/// Runs a scenario with a driver that is like this.
pub(crate) fn run(scenario: &str, config: &str) -> Done {
    run_with(scenario, config, &[])
}

/// The same, with variables.
pub(crate) fn run_with(scenario: &str, config: &str, variables: &[(&str, &str)]) -> Done {
    let folder = tempfile::tempdir().unwrap();
    std::fs::hard_link(library(), folder.path().join("libcuda.so.1"))
        .or_else(|_| std::fs::copy(library(), folder.path().join("libcuda.so.1")).map(drop))
        .unwrap();
    let log = folder.path().join("log");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child::child", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(SCENARIO, scenario).env("FAKE_CUDA", config).env("FAKE_CUDA_LOG", &log);
    command.env("LD_LIBRARY_PATH", folder.path());
    for name in ["CUDA_VISIBLE_DEVICES", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] {
        command.env_remove(name);
    }
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let answer = text.lines().find_map(|l| l.split_once(ANSWER)).map(|(_, json)| json);
    let answer = answer.unwrap_or_else(|| {
        panic!("{scenario}, {config}: {}\n{text}\n{}", output.status, String::from_utf8_lossy(&output.stderr))
    });
    Done { answer: serde_json::from_str(answer).unwrap(), calls: calls(&log) }
}

impl Done {
    /// The error as JSON: its variant's name and fields.
    pub(crate) fn error(&self, variant: &str) -> &Value {
        let error = &self.answer["error"][variant];
        assert!(!error.is_null(), "not {variant}: {}", self.answer);
        error
    }

    /// What the error says to people.
    pub(crate) fn says(&self, field: &str) -> &str {
        self.answer["says"][field].as_str().unwrap()
    }

    /// The last call.
    pub(crate) fn end(&self) -> &Call {
        self.calls.last().unwrap()
    }

    /// Nothing is mapped, open or locked, and both ledgers agree on it.
    pub(crate) fn assert_clean(&self) {
        let end = self.end();
        assert!(
            end.live.as_object().unwrap().values().all(|n| n == 0),
            "open: {}\n{}",
            end.live,
            self.answer
        );
        assert_eq!(end.live, self.answer["live"], "the ledgers differ");
        self.assert_tidy();
        assert_eq!(self.answer["kept"], Value::Array(Vec::new()), "releases failed");
    }

    /// After a context is lost, only what belongs to no context can be left.
    pub(crate) fn assert_tidy_but_for_memory(&self) {
        let left = |kind: &str| self.end().live[kind].as_u64().unwrap();
        let bound = ["contexts", "modules", "device_memory", "streams", "events", "peer_accesses"];
        assert!(bound.iter().all(|kind| left(kind) == 0), "open: {}", self.end().live);
        assert_eq!((self.end().current.as_str(), self.end().orphans), ("none", 0));
    }

    /// No descriptor is left, no context is current, and nothing outlived its context.
    pub(crate) fn assert_tidy(&self) {
        assert_eq!(self.answer["descriptors"], 0, "descriptors are left");
        assert_eq!((self.end().current.as_str(), self.end().orphans), ("none", 0));
    }
}

/// The library of the fake driver. Cargo builds it beside this test, which depends on its crate.
pub(crate) fn library() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let library = exe.with_file_name("libfake_cuda.so");
    assert!(library.is_file(), "cargo has not built {}", library.display());
    library
}

fn calls(log: &Path) -> Vec<Call> {
    // Without a single call there is none.
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().map(call).collect()
}

fn call(line: &str) -> Call {
    let (head, rest) = line.split_once(" {").unwrap();
    let (live, rest) = rest.split_once("} ").unwrap();
    let head: Vec<&str> = head.split(' ').collect();
    let field = |name: &str| rest.split(' ').find_map(|f| f.strip_prefix(name)).unwrap();
    Call {
        name: head[1].into(),
        code: head[2].parse().unwrap(),
        live: serde_json::from_str(&format!("{{{live}}}")).unwrap(),
        current: field("current=").into(),
        orphans: field("orphans=").parse().unwrap(),
    }
}
