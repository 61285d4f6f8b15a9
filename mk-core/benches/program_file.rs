//! How fast program files are written and read: tasks per second.

#![allow(clippy::unwrap_used)]

use divan::{Bencher, counter::ItemsCount};
use mk_core::{
    CopyArgs, DType, Lane, PostTo, Program, ProgramBuilder, Queue, Rank, Region, Registry, Shape, SignalKind,
    WaitFor, fuzz,
};

const TASKS: u64 = 100_000;

fn main() {
    divan::main();
}

/// Copies that each wait for one word and post one.
fn program() -> (Registry, Program) {
    let registry = fuzz::registry(4);
    let mut b = ProgramBuilder::new("bench", &registry);
    let shape = Shape::Uniform([1 << 20, 64]);
    let src = b.region(Region::input("a", DType::Bf16, shape.clone())).unwrap();
    let dst = b.region(Region::heap("got", DType::Bf16, shape)).unwrap();
    let arrival = b.signal("arrival", SignalKind::Add, TASKS).unwrap();
    let op = b.op("copy").unwrap();
    for i in 0..TASKS {
        let label = b.label(format!("copy {i}"));
        let (rank, peer) = (Rank((i % 4) as u16), Rank(((i + 1) % 4) as u16));
        let args = CopyArgs {
            src,
            dst,
            peer,
            units: 4,
            src_row: i,
            src_col: 0,
            dst_row: i,
            dst_col: 0,
            rows: 1,
            cols: 64,
        };
        let task = b.task(rank, Queue::Lane(Lane((i / 4 % 8) as u16)), op, label, &args).unwrap();
        b.post(task, PostTo::done(peer, arrival, i)).unwrap();
        if i > 0 {
            b.wait(task, WaitFor::all(arrival, i - 1).lag(1)).unwrap();
        }
    }
    (registry, b.finish().unwrap())
}

#[divan::bench]
fn write(bencher: Bencher) {
    let (registry, program) = program();
    bencher.counter(ItemsCount::new(TASKS)).bench(|| program.write(&registry, &mut std::io::sink()).unwrap());
}

#[divan::bench]
fn read(bencher: Bencher) {
    let (registry, program) = program();
    let mut file = Vec::new();
    program.write(&registry, &mut file).unwrap();
    bencher.counter(ItemsCount::new(TASKS)).bench(|| Program::read(&file, &registry).unwrap());
}
