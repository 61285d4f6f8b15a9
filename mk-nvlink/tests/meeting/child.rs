//! The process with the fake driver: does what it is told, line by line.

use super::world::{ANSWER, ROLE, Role, STEP};
use mk_core::{Heap, Meeting, Rank, RunError, Topology, Transport as _};
use mk_cuda::{Driver, ForeignMemory, Stream};
use mk_nvlink::{NvLink, Step};
use rustix::process::{Resource, Rlimit};
use serde_json::{Value, json};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Bytes that are written and read at once.
const WORDS: usize = 16;

static OWN: OnceLock<Role> = OnceLock::new();

#[test]
#[ignore = "the other tests start it, in a process of its own"]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    OWN.get_or_init(|| serde_json::from_str(&role).unwrap());
    only_with_the_fake_driver();
    let before = descriptors();
    let mut heap: Option<Box<dyn Heap>> = None;
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match words[..] {
            ["connect"] => connect(&mut heap),
            ["cycles", n] => cycles(n.parse().unwrap(), &mut heap),
            ["address", rank] => json!(address(&heap, rank).is_some()),
            ["write", rank, slot, text] => write(&heap, rank, slot, text),
            ["read", rank, slot] => read(&heap, rank, slot),
            ["lost"] => json!(heap.as_ref().unwrap().lost()),
            ["drop"] => {
                heap = None;
                Value::Null
            }
            ["panic"] => {
                let heap = heap.take();
                let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                    let _heap = heap;
                    panic!("as it was told");
                }));
                json!(panicked.is_err())
            }
            ["state"] => state(before),
            _ => panic!("'{line}'?"),
        };
        println!("\n{ANSWER}{answer}");
    }
}

fn meeting() -> Meeting {
    let role = OWN.get().unwrap();
    Meeting {
        topology: Topology::from_toml(&role.topology).unwrap(),
        own: role.own.clone(),
        folder: role.folder.clone(),
        key: [role.key; 32],
        bytes: role.bytes,
        bound: Duration::from_millis(role.bound_ms),
    }
}

/// Tells of the step, and is killed or sleeps there if it is to.
fn observe(step: Step) {
    let name = super::world::name(step);
    println!("\n{STEP}{name}");
    let role = OWN.get().unwrap();
    if role.killed_at.as_deref() == Some(&name) {
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
    }
    if role.few_files_at.as_deref() == Some(&name) {
        let next = std::fs::File::open("/dev/null").unwrap();
        let limit = std::os::fd::AsRawFd::as_raw_fd(&next) as u64 + 1;
        set_limit(Some(limit));
    }
    if role.sleeps_at.as_deref() == Some(&name) {
        std::thread::sleep(Duration::from_secs(600));
    }
}

fn connect(heap: &mut Option<Box<dyn Heap>>) -> Value {
    let nvlink = NvLink::new().multicast(OWN.get().unwrap().multicast).observe(observe);
    let began = Instant::now();
    let connected = nvlink.connect(&meeting());
    if OWN.get().unwrap().few_files_at.is_some() {
        set_limit(rustix::process::getrlimit(Resource::Nofile).maximum);
    }
    let ms = began.elapsed().as_millis() as u64;
    match connected {
        Ok(connected) => {
            *heap = connected;
            json!({"error": null, "ms": ms})
        }
        Err(RunError::Hardware(e)) => json!({"error": e, "ms": ms}),
        Err(RunError::Input(e)) => json!({"error": e.explain(), "ms": ms}),
        Err(e) => panic!("{e}"),
    }
}

/// How many files this process may open, until it is set again.
fn set_limit(current: Option<u64>) {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
}

fn cycles(n: usize, heap: &mut Option<Box<dyn Heap>>) -> Value {
    for _ in 0..n {
        let answer = connect(heap);
        if answer["error"] != Value::Null {
            return answer;
        }
        *heap = None;
    }
    Value::Null
}

fn address(heap: &Option<Box<dyn Heap>>, rank: &str) -> Option<u64> {
    heap.as_ref().unwrap().address(Rank(rank.parse().unwrap()))
}

/// Memory of a rank as this process's GPU reaches it, and a stream of that GPU.
#[allow(unsafe_code, reason = "a heap tells addresses only")]
fn reach(heap: &Option<Box<dyn Heap>>, rank: &str) -> (ForeignMemory, Stream) {
    let role = OWN.get().unwrap();
    // SAFETY: the heap lives, and has as many bytes.
    let memory = unsafe { ForeignMemory::at(address(heap, rank).unwrap(), role.bytes) };
    let device = Driver::find().unwrap().device(role.own[0].1 as usize).unwrap();
    (memory, Stream::new(&device.context().unwrap()).unwrap())
}

fn write(heap: &Option<Box<dyn Heap>>, rank: &str, slot: &str, text: &str) -> Value {
    let (memory, stream) = reach(heap, rank);
    let mut bytes = [0; WORDS];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    stream.upload(&memory, slot.parse::<u64>().unwrap() * WORDS as u64, &bytes).unwrap();
    Value::Null
}

fn read(heap: &Option<Box<dyn Heap>>, rank: &str, slot: &str) -> Value {
    let (memory, stream) = reach(heap, rank);
    let mut bytes = [0xff; WORDS];
    stream.download(&memory, slot.parse::<u64>().unwrap() * WORDS as u64, &mut bytes).unwrap();
    json!(String::from_utf8_lossy(&bytes).trim_end_matches('\0'))
}

fn state(before: i64) -> Value {
    let driver = Driver::find().ok();
    let live = driver.as_ref().map_or_else(|| "nothing is open".into(), |d| d.live().to_string());
    let kept = driver.map_or(0, |d| d.take_failures().len());
    json!({"live": live, "kept": kept, "descriptors": descriptors() - before})
}

/// Some tests do what must not be done to a GPU that others use.
fn only_with_the_fake_driver() {
    let loader = std::env::var("LD_LIBRARY_PATH").unwrap();
    assert!(std::path::Path::new(&loader).join("libcuda.so.1").is_file());
}

/// How many descriptors are open, without that of the fake driver's log.
fn descriptors() -> i64 {
    let log = std::env::var_os("FAKE_CUDA_LOG").unwrap();
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = open.filter_map(|e| std::fs::read_link(e.path()).ok());
    targets.filter(|target| target.as_os_str() != log).count() as i64
}
