//! Loads a library in a process of its own, so that one that crashes or hangs is a line of the answer and not the end of it.

use super::library::{Library, Outcome};
use crate::console::Console;
use crate::error::Failure;
use mk_core::Error;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Names the library in the environment of the child.
const VARIABLE: &str = "MK_DOCTOR_LOADS";
/// The longest that a library may take: from a cold network disk, seconds are usual.
const LIMIT: Duration = Duration::from_secs(10);
/// How often a process that ends is asked whether it has.
const POLL: Duration = Duration::from_millis(5);

/// What becomes of loading a file, or a name that the loader searches for.
pub(super) fn load(library: Library, path: &Path) -> Outcome {
    match own_binary() {
        Some(mk) => in_child(&mk, path, LIMIT),
        None => library.load(path),
    }
}

/// The library that this process is to load, if it is the child. A variable, since an option would be one that users see.
pub(super) fn asked() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).map(PathBuf::from)
}

/// The child's side.
pub(super) fn answer(path: &Path, console: &mut Console<'_>) -> Result<(), Failure> {
    let Some(library) = Library::named(path) else {
        return Err(Error::input(
            "no library that mk knows",
            path.display(),
            "libcuda.so.1 and the like",
            format!("unset {VARIABLE}"),
        )
        .into());
    };
    let text = serde_json::to_string(&library.load(path)).map_err(|e| Failure::file(path, e, ""))?;
    console.text(&format!("\n{text}\n"));
    Ok(())
}

/// This process's file, if it is `mk`; a program that uses the library of this crate is not.
fn own_binary() -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?;
    (path.file_stem()? == "mk" && path.is_file()).then_some(path)
}

fn in_child(mk: &Path, path: &Path, limit: Duration) -> Outcome {
    let mut command = Command::new(mk);
    command.arg("doctor").env(VARIABLE, path);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    match command.spawn() {
        Ok(child) => watch(child, limit),
        Err(e) => Outcome::Broken(format!("it was not tried: no process could be started: {e}")),
    }
}

/// Waits for the answer of a child that may crash, hang, or say anything.
fn watch(mut child: Child, limit: Duration) -> Outcome {
    let end = Instant::now() + limit;
    let (to, from) = mpsc::channel();
    if let Some(mut stdout) = child.stdout.take() {
        // A thread, since a read has no bound. What the library itself prints does not matter.
        thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stdout.read_to_end(&mut text);
            let _ = to.send(String::from_utf8_lossy(&text).into_owned());
        });
    }
    let text = from.recv_timeout(limit);
    let status = ended(&mut child, end);
    match (text.ok().as_deref().and_then(last_answer), status) {
        (Some(outcome), _) => outcome,
        (None, Some(status)) => Outcome::Broken(format!("loading it ends a process: {status}")),
        (None, None) => Outcome::Broken(format!("loading it does not end within {} s", limit.as_secs_f32())),
    }
}

/// The answer is the last line that is one.
fn last_answer(text: &str) -> Option<Outcome> {
    text.lines().rev().find_map(|line| serde_json::from_str(line).ok())
}

/// How the child ended; nothing if it had to be killed. A process that hangs in a driver cannot even be killed, so its
/// end is not waited for.
fn ended(child: &mut Child, end: Instant) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < end => thread::sleep(POLL),
            _ => break,
        }
    }
    let _ = child.kill();
    thread::sleep(POLL);
    let _ = child.try_wait();
    None
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Outcome {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        watch(command.spawn().expect("sh starts"), limit)
    }

    const LONG: Duration = Duration::from_secs(30);
    const SHORT: Duration = Duration::from_millis(200);

    #[test]
    fn what_hangs_is_ended_and_said_to_hang() {
        let start = Instant::now();
        for script in ["exec sleep 1000", "exec >&-; exec sleep 1000", "sleep 3 & exec sleep 1000"] {
            let Outcome::Broken(why) = shell(script, SHORT) else { panic!("{script}") };
            assert!(why.contains("does not end within 0.2 s"), "{script}: {why}");
        }
        assert!(start.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn what_crashes_is_said_to_end_its_process() {
        for (script, word) in [("kill -SEGV $$", "11"), ("exit 3", "3"), ("echo nonsense", "0")] {
            let Outcome::Broken(why) = shell(script, LONG) else { panic!("{script}") };
            assert!(why.contains("ends a process") && why.contains(word), "{script}: {why}");
        }
    }

    #[test]
    fn the_last_answer_counts_whatever_the_library_prints() {
        let loaded = Outcome::Loaded { file: None, version: Some([1, 2, 3]), gpus: None };
        let answer = serde_json::to_string(&loaded).expect("an outcome is JSON");
        assert_eq!(
            shell(&format!("echo '\"Absent\"'; echo '{answer}'; echo bye; kill -SEGV $$"), LONG),
            loaded
        );
    }
}
