//! Ranks that are processes of their own, on one GPU: the same bits, and faults that all of them tell alike.
//!
//! Under NVIDIA's MPS their kernels run at the same time; without it they take turns, which is slow but right. Without a GPU
//! these tests say that they are skipped.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "common/product.rs"]
mod product;

use mk_core::*;
use mk_kernel::driver::Device;
use mk_kernel::{Gpu, Limits, Sabotage};
use product::{Product, Size, device};
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// What makes another process of this file: the folder, its ranks, the ranks of the world.
const FOLDER: &str = "MK_TEST_FOLDER";
const RANKS: &str = "MK_TEST_RANKS";
const WORLD: &str = "MK_TEST_WORLD";
/// Begins its lines: the test harness prints others.
const SAYS: &str = "@says ";

fn limits() -> Limits {
    Limits { start_us: 2_000_000, run_us: 500_000, connect_us: 20_000_000, ..Limits::default() }
}

const SIZES: [Size; 3] = [(257, 264, 192), (129, 6288, 64), (1, 8, 320)];

/// All products of a world: each size in both types.
fn products(world: u32) -> Vec<Product> {
    let of = |size| [DType::Bf16, DType::F16].map(|dtype| Product::of(world, size, dtype, |op| op.lanes(8)));
    SIZES.into_iter().flat_map(of).collect()
}

/// The ranks of a process, which do what they are told.
struct Member {
    gpu: Gpu,
    products: Vec<Product>,
    ranks: Vec<u32>,
}

impl Member {
    fn new(folder: &Path, world: u32, ranks: &[u32], device: &Device, limits: Limits) -> Member {
        let products = products(world);
        let mut builder = Gpu::builder(&products[0].registry).limits(limits).meet_in(folder);
        for &r in ranks {
            builder = builder.rank(Rank(r as u16), device);
        }
        let gpu = builder.open().unwrap_or_else(|e| panic!("{e}: {}", e.explain().hint));
        Member { gpu, products, ranks: ranks.to_vec() }
    }

    /// Runs a product; `right`, `wrong`, or the fault.
    fn run(&mut self, product: usize, seed: u64) -> String {
        let p = &self.products[product];
        match self.gpu.run(&p.program, &p.tensors_of(self.ranks.iter().copied(), seed)) {
            Ok(results) => {
                let want = p.want(seed);
                let right = results.iter().all(|(rank, name, t)| want.get(rank, name) == Some(t));
                (if right && results.iter().count() == self.ranks.len() { "right" } else { "wrong" }).into()
            }
            Err(e) => e.to_string(),
        }
    }

    fn obey(&mut self, order: &str) -> String {
        let words: Vec<&str> = order.split(' ').collect();
        let number = |i: usize| words[i].parse::<u64>().unwrap();
        match words[0] {
            "load" => {
                let program = &self.products[number(1) as usize].program;
                self.gpu.load(program).map_or_else(|e| e.to_string(), |()| "loaded".into())
            }
            "run" => self.run(number(1) as usize, number(2)),
            "runs" => (0..number(2))
                .map(|seed| self.run(number(1) as usize, seed))
                .find(|r| r != "right")
                .unwrap_or("right".into()),
            // Without an end, the same data each time.
            "again" => loop {
                let said = self.run(number(1) as usize, number(2));
                if said != "right" {
                    return said;
                }
            },
            "lose" => {
                let program = &self.products[number(1) as usize].program;
                let how = Sabotage::LosePostsTo(Rank(number(2) as u16));
                self.gpu.sabotage(program, how).map_or_else(|e| e.to_string(), |()| "broken".into())
            }
            "generation" => self.gpu.generation().to_string(),
            other => panic!("'{other}'?"),
        }
    }
}

/// Another process. It does what it is told, line by line.
#[test]
#[ignore = "the other tests start it, in a process of its own"]
fn member() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let list = std::env::var(RANKS).unwrap();
    let ranks: Vec<u32> = list.split(',').map(|r| r.parse().unwrap()).collect();
    let world = std::env::var(WORLD).unwrap().parse().unwrap();
    let mut me = Member::new(Path::new(&folder), world, &ranks, &device().unwrap(), limits());
    println!("\n{SAYS}here");
    for line in std::io::stdin().lines() {
        println!("\n{SAYS}{}", me.obey(&line.unwrap()).replace('\n', " "));
    }
}

/// It, as the others see it.
struct Other {
    process: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Other {
    fn start(folder: &Path, world: u32, ranks: &[u32]) -> Other {
        let list = ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "member", "--ignored", "--nocapture", "--test-threads=1"]);
        command.env(FOLDER, folder).env(RANKS, list).env(WORLD, world.to_string());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let mut other = Other { process, input, lines: BufReader::new(output).lines() };
        assert_eq!(other.hear(), "here");
        other
    }

    fn tell(&mut self, order: &str) {
        writeln!(self.input, "{order}").unwrap();
    }

    fn hear(&mut self) -> String {
        let said = self.lines.find_map(|l| l.unwrap().split_once(SAYS).map(|(_, said)| said.to_string()));
        said.expect("it has not ended")
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// This process with its ranks, and another one with its own.
fn pair(
    world: u32,
    own: &[u32],
    others: &[u32],
    limits: Limits,
) -> Option<(tempfile::TempDir, Member, Other)> {
    let device = device()?;
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("meet");
    let other = Other::start(&folder, world, others);
    let member = Member::new(&folder, world, own, &device, limits);
    Some((root, member, other))
}

/// Both do it at the same time; what they say.
fn both(me: &mut Member, other: &mut Other, order: &str) -> [String; 2] {
    other.tell(order);
    [me.obey(order), other.hear()]
}

#[test]
fn two_processes_have_the_simulators_bits() {
    let worlds: [(u32, &[u32], &[u32]); 3] = [(2, &[0], &[1]), (3, &[1], &[0, 2]), (4, &[0, 1], &[2, 3])];
    for (world, own, others) in worlds {
        let Some((_root, mut me, mut other)) = pair(world, own, others, limits()) else { return };
        for product in 0..me.products.len() {
            let said = both(&mut me, &mut other, &format!("runs {product} 3"));
            assert_eq!(said, ["right", "right"], "{world} ranks, product {product}");
        }
    }
}

/// What one of them breaks, both tell alike; and both go on together, with fresh memory.
#[test]
fn regress_vllm_46509_both_processes_tell_the_same_fault_and_go_on() {
    let Some((_root, mut me, mut other)) = pair(2, &[0], &[1], limits()) else { return };
    assert_eq!(both(&mut me, &mut other, "runs 0 2"), ["right", "right"]);
    // No post of rank 0 reaches rank 1 any more: rank 1 waits, rank 0 does not notice in this run, or in its next.
    assert_eq!(me.obey("lose 0 1"), "broken");
    let start = Instant::now();
    let [mut mine, theirs] = both(&mut me, &mut other, "run 0 5");
    if mine == "right" {
        mine = me.obey("run 0 6");
    }
    println!("{theirs} after {:?}", start.elapsed());
    assert!(
        theirs.contains("waited") && theirs.contains("arrival") && theirs.contains("tile from rank 0"),
        "{theirs}"
    );
    assert_eq!(mine, theirs);
    assert!(start.elapsed() < Duration::from_secs(4), "it took {:?}", start.elapsed());
    assert_eq!(both(&mut me, &mut other, "generation"), ["2", "2"]);
    assert_eq!(both(&mut me, &mut other, "runs 0 3"), ["right", "right"]);
}

/// A rank that has loaded the program and never starts.
#[test]
fn a_rank_that_never_starts_is_a_fault_within_the_bound_of_the_start() {
    let Some((_root, mut me, mut other)) = pair(2, &[0], &[1], limits()) else { return };
    assert_eq!(both(&mut me, &mut other, "load 0"), ["loaded", "loaded"]);
    let start = Instant::now();
    let mine = me.obey("run 0 1");
    println!("{mine} after {:?}", start.elapsed());
    assert!(mine.contains("waited") && mine.contains("arrival") && mine.contains("rank 0"), "{mine}");
    assert!(start.elapsed() < Duration::from_micros(limits().start_us) + Duration::from_secs(1));
    // When it does start, it is told the same.
    other.tell("run 0 1");
    assert_eq!(other.hear(), mine);
    assert_eq!(both(&mut me, &mut other, "runs 0 2"), ["right", "right"]);
}

/// Killed at any of twenty moments of its work: the survivor tells a fault or that the other did not come, within its bounds;
/// its GPU is as good as before, and a new pair is right.
#[test]
fn regress_deepep_370_a_process_that_is_killed_is_a_fault_of_the_survivor() {
    let impatient = Limits { start_us: 600_000, run_us: 200_000, connect_us: 1_500_000, ..limits() };
    for moment in 0..20u64 {
        let Some((_root, mut me, mut other)) = pair(2, &[0], &[1], impatient) else { return };
        if moment > 0 {
            assert_eq!(both(&mut me, &mut other, "runs 0 2"), ["right", "right"]);
        }
        // Runs for a while, unless it is killed before that.
        if moment > 1 {
            other.tell("again 0 0");
        }
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(700 * moment.saturating_sub(2)));
            other.kill();
        });
        let start = Instant::now();
        let mut end = String::from("right");
        let mut runs = 0;
        while end == "right" && start.elapsed() < Duration::from_secs(10) {
            end = me.obey("run 0 0");
            runs += 1;
        }
        killer.join().unwrap();
        println!("moment {moment}: after {runs} runs, {:?}: {end}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(4), "moment {moment}: {:?}", start.elapsed());
        let expected = if moment == 0 { "did not come" } else { "rank 1 is lost" };
        assert!(end.contains(expected), "moment {moment}: {end}");
        // Alone, it cannot begin again; it is told so.
        let start = Instant::now();
        let alone = me.obey("run 0 0");
        assert!(alone.contains("rank 1"), "{alone}");
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    }
    let Some((_root, mut me, mut other)) = pair(2, &[0], &[1], limits()) else { return };
    assert_eq!(both(&mut me, &mut other, "runs 0 3"), ["right", "right"]);
}
