//! Starts processes with the fake driver, and tells them what to do.

use mk_core::Rank;
use mk_nvlink::Step;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use tempfile::TempDir;

/// The variable that tells a child what it is.
pub(crate) const ROLE: &str = "MK_MEETING_ROLE";
/// The variable that makes a child a stranger: what it does, and at which socket.
pub(crate) const STRANGER: &str = "MK_MEETING_STRANGER";
/// Begins a child's answer: the test harness prints other lines, and perhaps something before it.
pub(crate) const ANSWER: &str = "@answer ";
/// Begins the name of a step that a child begins.
pub(crate) const STEP: &str = "@step ";

/// Bytes on each rank.
pub(crate) const BYTES: u64 = 3 << 20;

/// What a process is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Role {
    /// TOML.
    pub(crate) topology: String,
    pub(crate) own: Vec<(Rank, u32)>,
    pub(crate) folder: Option<PathBuf>,
    pub(crate) key: u8,
    pub(crate) bytes: u64,
    pub(crate) bound_ms: u64,
    pub(crate) multicast: bool,
    /// Where it is killed.
    pub(crate) killed_at: Option<String>,
    /// Where it may open one more file, and no others.
    pub(crate) few_files_at: Option<String>,
    /// Where it sleeps for longer than any bound.
    pub(crate) sleeps_at: Option<String>,
}

/// A process.
pub(crate) struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    /// Its lowest rank.
    pub(crate) rank: Rank,
    log: PathBuf,
    /// Steps that it began.
    pub(crate) steps: Vec<String>,
}

/// A folder for everything, a driver, and what processes are like if nobody says otherwise.
pub(crate) struct Scene {
    root: TempDir,
    pub(crate) role: Role,
    pub(crate) driver: String,
}

impl Scene {
    /// A world of so many ranks on one node.
    pub(crate) fn of(ranks: u64) -> Scene {
        let root = tempfile::tempdir().unwrap();
        let library = std::env::current_exe().unwrap().with_file_name("libfake_cuda.so");
        let place = root.path().join("libcuda.so.1");
        std::fs::hard_link(&library, &place).or_else(|_| std::fs::copy(&library, &place).map(drop)).unwrap();
        let role = Role {
            topology: mk_core::Topology::single_node(ranks).unwrap().to_toml(),
            own: Vec::new(),
            folder: Some(root.path().join("meet")),
            key: 1,
            bytes: BYTES,
            bound_ms: 20_000,
            multicast: false,
            killed_at: None,
            few_files_at: None,
            sleeps_at: None,
        };
        Scene { root, role, driver: "devices=8".into() }
    }

    /// A scene in which nobody waits for long.
    pub(crate) fn hurried(ranks: u64, bound_ms: u64) -> Scene {
        let mut scene = Scene::of(ranks);
        scene.role.bound_ms = bound_ms;
        scene
    }

    /// Where processes meet.
    pub(crate) fn folder(&self) -> PathBuf {
        self.root.path().join("meet")
    }

    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    /// A process with these ranks, each on the GPU of its number.
    pub(crate) fn start(&self, ranks: &[u16]) -> Process {
        self.start_as(ranks, |_| {})
    }

    /// The same, but for what `change` makes of it.
    pub(crate) fn start_as(&self, ranks: &[u16], change: impl FnOnce(&mut Scene)) -> Process {
        let mut role = self.role.clone();
        role.own = ranks.iter().map(|&r| (Rank(r), u32::from(r))).collect();
        let mut scene = Scene {
            root: tempfile::Builder::new().tempdir_in(self.root.path()).unwrap(),
            role,
            driver: self.driver.clone(),
        };
        change(&mut scene);
        Process::start(&scene.role, &scene.driver, self.root.path())
    }

    /// Processes with these ranks, which have met.
    pub(crate) fn met(&self, ranks: &[&[u16]]) -> Vec<Process> {
        let mut all: Vec<Process> = ranks.iter().map(|r| self.start(r)).collect();
        connect(&mut all).iter().for_each(|answer| assert_eq!(answer["error"], Value::Null, "{answer}"));
        all
    }

    /// No socket is left.
    pub(crate) fn assert_no_socket(&self) {
        let left: Vec<_> = std::fs::read_dir(self.folder()).into_iter().flatten().flatten().collect();
        assert!(left.is_empty(), "left: {left:?}");
    }
}

/// Lets all of them meet at the same time; their answers.
pub(crate) fn connect(all: &mut [Process]) -> Vec<Value> {
    all.iter_mut().for_each(|p| p.tell("connect"));
    all.iter_mut().map(Process::answer).collect()
}

impl Process {
    fn start(role: &Role, driver: &str, folder: &Path) -> Process {
        let rank = role.own.iter().map(|(rank, _)| *rank).min().unwrap();
        let log = tempfile::Builder::new().prefix("log-").tempfile_in(folder).unwrap();
        let (_, log) = log.keep().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child::child", "--ignored", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, serde_json::to_string(role).unwrap());
        command.env("FAKE_CUDA", driver).env("FAKE_CUDA_LOG", &log).env("LD_LIBRARY_PATH", folder);
        command.env_remove("CUDA_VISIBLE_DEVICES");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Process { input: child.stdin.take(), child, output, rank, log, steps: Vec::new() }
    }

    /// Tells it to do something.
    pub(crate) fn tell(&mut self, what: &str) {
        writeln!(self.input.as_mut().unwrap(), "{what}").unwrap();
    }

    /// What it answers; nothing if it has ended.
    pub(crate) fn answer(&mut self) -> Value {
        for line in self.output.by_ref() {
            let line = line.unwrap();
            if let Some((_, step)) = line.split_once(STEP) {
                self.steps.push(step.into());
            }
            if let Some((_, json)) = line.split_once(ANSWER) {
                return serde_json::from_str(json).unwrap();
            }
        }
        Value::Null
    }

    /// Both.
    pub(crate) fn ask(&mut self, what: &str) -> Value {
        self.tell(what);
        self.answer()
    }

    /// The error of a meeting that failed, in words.
    pub(crate) fn meet(&mut self) -> Value {
        self.ask("connect")
    }

    /// Whether it began this step.
    pub(crate) fn reached(&self, step: Step) -> bool {
        self.steps.contains(&name(step))
    }

    /// Kills it, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until it has been killed.
    pub(crate) fn was_killed(&mut self) -> bool {
        self.child.wait().unwrap().signal() == Some(9)
    }

    /// It has nothing open, mapped or locked, by its own count and by the driver's.
    pub(crate) fn assert_clean(&mut self) {
        let state = self.ask("state");
        assert_eq!(state["live"], "nothing is open", "{}: {state}", self.rank);
        assert_eq!((&state["kept"], &state["descriptors"]), (&0.into(), &0.into()), "{}: {state}", self.rank);
        let log = std::fs::read_to_string(&self.log).unwrap();
        let Some(last) = log.lines().last() else { return };
        let (_, live) = last.split_once('{').unwrap();
        let (live, rest) = live.split_once('}').unwrap();
        assert!(live.split(',').all(|kind| kind.ends_with(":0")), "{}: {last}", self.rank);
        assert!(rest.contains("current=none") && rest.contains("orphans=0"), "{}: {last}", self.rank);
    }

    /// The calls of the driver that it made: names and results.
    pub(crate) fn calls(&self) -> Vec<(String, u32)> {
        let log = std::fs::read_to_string(&self.log).unwrap();
        let call = |line: &str| {
            let mut words = line.split(' ').skip(1);
            (words.next().unwrap().into(), words.next().unwrap().parse().unwrap())
        };
        log.lines().map(call).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It ends when nobody tells it anything any more; if it hangs, it is ended.
        drop(self.input.take());
        if std::thread::panicking() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// A step as text.
pub(crate) fn name(step: Step) -> String {
    serde_json::to_value(step).unwrap().as_str().unwrap().into()
}
