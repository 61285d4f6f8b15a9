//! Ranks reach each other's memory on a real GPU: in one process, and in two.
//!
//! Without a GPU these tests say that they are skipped.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use mk_core::{Heap, Meeting, Rank, Topology, Transport as _};
use mk_cuda::{Driver, ForeignMemory, Stream};
use mk_nvlink::NvLink;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Bytes on each rank: not a whole number of the driver's pages.
const BYTES: u64 = (5 << 20) + 4096;
/// What is moved at once.
const TEXT: usize = 32;

/// The variables that make a second process of this file.
const FOLDER: &str = "MK_GPU_MEETING_FOLDER";
const GPU: &str = "MK_GPU_MEETING_GPU";
/// Begins its lines: the test harness prints others.
const SAYS: &str = "@says ";

/// How many GPUs there are.
fn gpus() -> usize {
    match Driver::find().and_then(|driver| driver.devices()) {
        Ok(devices) => devices.len(),
        Err(e) => {
            println!("skipped: {e}");
            0
        }
    }
}

fn meeting(own: Vec<(Rank, u32)>, folder: Option<PathBuf>) -> Meeting {
    let topology = Topology::single_node(2).unwrap();
    Meeting { topology, own, folder, key: [42; 32], bytes: BYTES, bound: Duration::from_secs(60) }
}

fn connect(own: Vec<(Rank, u32)>, folder: Option<&Path>) -> Box<dyn Heap> {
    let connected = NvLink::new().connect(&meeting(own, folder.map(Into::into)));
    connected.unwrap_or_else(|e| panic!("{e}")).unwrap()
}

/// A rank's memory, as this GPU reaches it.
struct Reach {
    memory: ForeignMemory,
    stream: Stream,
}

impl Reach {
    #[allow(unsafe_code, reason = "a heap tells addresses only")]
    fn of(heap: &dyn Heap, rank: u16, gpu: u32) -> Reach {
        // SAFETY: the tests hold the heap longer, and it has as many bytes.
        let memory = unsafe { ForeignMemory::at(heap.address(Rank(rank)).unwrap(), BYTES) };
        let device = Driver::find().unwrap().device(gpu as usize).unwrap();
        Reach { memory, stream: Stream::new(&device.context().unwrap()).unwrap() }
    }

    fn write(&self, at: u64, text: &str) {
        let mut bytes = [0; TEXT];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        self.stream.upload(&self.memory, at, &bytes).unwrap();
    }

    fn read(&self, at: u64) -> String {
        let mut bytes = [0xff; TEXT];
        self.stream.download(&self.memory, at, &mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).trim_end_matches('\0').into()
    }

    /// Where texts are put: at the beginning, and as far back as they fit.
    const PLACES: [u64; 2] = [0, BYTES - TEXT as u64];
}

/// Two ranks of this process, on these GPUs.
#[allow(unsafe_code, reason = "asynchronous copies are a promise of the caller's")]
fn one_process(on: [u32; 2]) {
    let heap = connect(vec![(Rank(0), on[0]), (Rank(1), on[1])], None);
    let from = |gpu: usize, rank: u16| Reach::of(&*heap, rank, on[gpu]);
    for at in Reach::PLACES {
        for (gpu, rank) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            assert_eq!(from(gpu, rank).read(at), "", "new memory is all 0");
        }
        // Written by one GPU, copied by the other.
        from(0, 1).write(at, "from one GPU");
        let [to, source] = [from(1, 0), from(1, 1)];
        // SAFETY: both live until the stream is waited for.
        unsafe { to.stream.copy_async((&to.memory, at), (&source.memory, at), TEXT as u64) }.unwrap();
        to.stream.synchronize().unwrap();
        assert_eq!(from(0, 0).read(at), "from one GPU");
    }
    assert_eq!((heap.lost(), heap.address(Rank(2))), (None, None));
}

#[test]
fn ranks_of_one_process_reach_each_other() {
    let gpus = gpus();
    if gpus > 0 {
        (0..10).for_each(|_| one_process([0, 0]));
        let live = Driver::find().unwrap().live();
        assert!(live.is_empty(), "{live}");
    }
    if gpus > 1 {
        one_process([0, 1]);
        one_process([1, 0]);
    }
}

/// Rank 1, in a process of its own. It does what it is told, line by line.
#[test]
#[ignore = "the other test starts it, in a process of its own"]
fn second_process() {
    let (Some(folder), Ok(gpu)) = (std::env::var_os(FOLDER), std::env::var(GPU)) else { return };
    let gpu = gpu.parse().unwrap();
    let heap = connect(vec![(Rank(1), gpu)], Some(Path::new(&folder)));
    let [zero, one] = [0, 1].map(|rank| Reach::of(&*heap, rank, gpu));
    for line in std::io::stdin().lines() {
        let said = match line.unwrap().as_str() {
            "read own" => Reach::PLACES.map(|at| one.read(at)).join(", "),
            "write other" => {
                Reach::PLACES.iter().for_each(|at| zero.write(*at, "from the second"));
                "written".into()
            }
            other => panic!("'{other}'?"),
        };
        println!("\n{SAYS}{said}");
    }
}

/// Rank 0 on one GPU in this process, rank 1 on another (or the same) in one of its own.
fn two_processes(on: [u32; 2]) {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("meet");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "second_process", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(FOLDER, &folder).env(GPU, on[1].to_string());
    let mut second = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let heap = connect(vec![(Rank(0), on[0])], Some(&folder));
    let [zero, one] = [0, 1].map(|rank| Reach::of(&*heap, rank, on[0]));

    let mut input = second.stdin.take().unwrap();
    let mut lines = BufReader::new(second.stdout.take().unwrap()).lines();
    let mut ask = |what: &str| {
        writeln!(input, "{what}").unwrap();
        let said = lines.find_map(|l| l.unwrap().split_once(SAYS).map(|(_, said)| said.to_string()));
        said.expect("it has not ended")
    };
    assert_eq!(ask("read own"), ", ", "new memory is all 0");
    Reach::PLACES.iter().for_each(|at| one.write(*at, "from the first"));
    assert_eq!(ask("read own"), "from the first, from the first");
    ask("write other");
    assert_eq!(Reach::PLACES.map(|at| zero.read(at)), ["from the second"; 2]);
    assert_eq!(heap.lost(), None);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "the socket is gone");

    // When it is killed, it is lost; its memory stays as long as it is mapped here.
    second.kill().unwrap();
    second.wait().unwrap();
    let end = Instant::now() + Duration::from_secs(5);
    while heap.lost().is_none() && Instant::now() < end {
        std::thread::yield_now();
    }
    assert_eq!(heap.lost(), Some(Rank(1)));
    assert_eq!(one.read(0), "from the first");
}

#[test]
fn ranks_of_two_processes_reach_each_other() {
    let gpus = gpus();
    if gpus > 0 {
        two_processes([0, 0]);
    }
    if gpus > 1 {
        two_processes([0, 1]);
        two_processes([1, 0]);
    }
}
