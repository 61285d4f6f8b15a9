//! Packets, words that programs share, updates in a chosen order.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "common/ring.rs"]
mod ring;

#[path = "common/mod.rs"]
mod common;

use mk_compute::{Scale, ScaleArgs};
use mk_core::*;
use mk_rdma::Ordering;
use mk_sim::{Faults, Simulator};
use ring::{COLS, lane, nodes, row, rows};

fn proved(program: Program, registry: &Registry) -> Verified {
    program.verify(registry, &Hardware::h200()).unwrap()
}

fn shape() -> Shape {
    Shape::Uniform([1, COLS])
}

fn scale(src: RegionId, dst: RegionId, factor: f32) -> ScaleArgs {
    ScaleArgs { src, dst, factor, rows: 1, cols: COLS as u32, src_row: 0, src_col: 0, dst_row: 0, dst_col: 0 }
}

fn copy(src: RegionId, dst: RegionId, peer: u16) -> CopyArgs {
    let (peer, rows, cols) = (Rank(peer), 1, COLS as u32);
    CopyArgs { src, dst, peer, units: 1, src_row: 0, src_col: 0, dst_row: 0, dst_col: 0, rows, cols }
}

fn multiplied(rank: u16, epoch: u64, factor: f32) -> Tensor {
    let values: Vec<f32> = row(rank, epoch).to_f32().iter().map(|x| factor * x).collect();
    Tensor::from_f32(DType::F32, 1, COLS, &values)
}

const NASTY: &str = "reorder = 0.6\nduplicate = 0.6\njitter = 2.0\ntorn = true";

/// Rank 0 sends a row to rank 1 with a word of this kind, which doubles it and gives credit back.
fn send(registry: &Registry, kind: SignalKind) -> Program {
    let mut b = ProgramBuilder::new("send", registry);
    let x = b.region(Region::input("x", DType::F32, shape())).unwrap();
    let inbox = b.region(Region::heap("inbox", DType::F32, shape()).rotating(2)).unwrap();
    let y = b.region(Region::output("y", DType::F32, Shape::PerRank(vec![[0, COLS], [1, COLS]]))).unwrap();
    let arrival = b.signal("arrival", kind, 1).unwrap();
    let read = b.signal("read", SignalKind::Add, 1).unwrap();
    let credit = b.signal("credit", SignalKind::Set, 1).unwrap();
    let [put, tell, double] = ["rdma.put_signal", "rdma.signal", "scale"].map(|n| b.op(n).unwrap());
    let label = b.label("send");
    let sent = b.task(Rank(0), lane(0), put, label, &copy(x, inbox, 1)).unwrap();
    b.wait(sent, WaitFor::all(credit, 0).lag(2)).unwrap();
    b.post(sent, PostTo::done(Rank(1), arrival, 0)).unwrap();
    let take = b.task(Rank(1), lane(0), double, label, &scale(inbox, y, 2.0)).unwrap();
    b.wait(take, WaitFor::all(arrival, 0)).unwrap();
    b.post(take, PostTo::loaded(Rank(1), read, 0)).unwrap();
    let free = b.task(Rank(1), lane(0), tell, label, &SyncArgs { peer: Rank(0) }).unwrap();
    b.wait(free, WaitFor::all(read, 0)).unwrap();
    b.post(free, PostTo::done(Rank(0), credit, 0)).unwrap();
    b.finish().unwrap()
}

#[test]
fn a_packet_is_one_transfer_of_twice_the_bytes() {
    let registry = nodes(2, Ordering::Unordered);
    let run = |kind| {
        let program = proved(send(&registry, kind), &registry);
        for seed in 0..20 {
            let faults = Faults::from_toml(NASTY).unwrap();
            let mut sim = Simulator::builder(&registry).schedule_seed(seed).faults(faults).build();
            let inputs: Vec<Bindings> = (0..5).map(|e| rows(2, e)).collect();
            let out = sim.run_epochs(&program, &inputs).unwrap();
            for (e, out) in out.iter().enumerate() {
                assert_eq!(
                    *out.get(Rank(1), "y").unwrap(),
                    multiplied(0, e as u64, 2.0),
                    "seed {seed}, epoch {e}"
                );
            }
        }
        let mut sim = Simulator::builder(&registry).build();
        sim.run(&program, &rows(2, 0)).unwrap();
        let there = |l: &&mk_sim::LinkReport| l.from == Rank(0);
        (sim.report().time_ns as f64, sim.report().links.iter().find(there).unwrap().bytes)
    };
    let (set, packet) = (run(SignalKind::Set), run(SignalKind::Packet));
    assert_eq!((set.1, packet.1), (4 * COLS, 8 * COLS));
    // A Set word goes after the acknowledgement: two latencies that a packet saves.
    let saved = (set.0 - packet.0) / Hardware::h200().nic_latency_ns;
    assert!((1.9..2.1).contains(&saved), "{saved} latencies");
}

/// Rank 0 sends a row to rank 1's inbox, which all programs of the session share, as they share its words.
fn shared(registry: &Registry, name: &str, factor: f32, decoy: bool) -> Program {
    let mut b = ProgramBuilder::new(name, registry);
    if decoy {
        // Words of its own move the shared ones to another place in this program.
        let decoy = b.region(Region::heap("decoy", DType::F32, shape())).unwrap();
        let x = b.region(Region::input("x", DType::F32, shape())).unwrap();
        assert_eq!((decoy, x), (RegionId(0), RegionId(1)));
        b.signal("decoy", SignalKind::Add, 5).unwrap();
        b.shared_signal("other", SignalKind::Add, 3).unwrap();
    }
    let x = if decoy { RegionId(1) } else { b.region(Region::input("x", DType::F32, shape())).unwrap() };
    let inbox = b.region(Region::heap("inbox", DType::F32, shape()).shared()).unwrap();
    let y = b.region(Region::output("y", DType::F32, Shape::PerRank(vec![[0, COLS], [1, COLS]]))).unwrap();
    let arrival = b.shared_signal("arrival", SignalKind::Add, 1).unwrap();
    let credit = b.shared_signal("credit", SignalKind::Add, 1).unwrap();
    let (put, double) = (b.op("nvlink.put_signal").unwrap(), b.op(Scale::NAME).unwrap());
    let label = b.label(format!("task of {name}"));
    let sent = b.task(Rank(0), lane(0), put, label, &copy(x, inbox, 1)).unwrap();
    b.wait(sent, WaitFor::all(credit, 0).lag(1)).unwrap();
    b.post(sent, PostTo::done(Rank(1), arrival, 0)).unwrap();
    let take = b.task(Rank(1), lane(0), double, label, &scale(inbox, y, factor)).unwrap();
    b.wait(take, WaitFor::all(arrival, 0)).unwrap();
    b.post(take, PostTo::loaded(Rank(0), credit, 0)).unwrap();
    b.finish().unwrap()
}

#[test]
fn programs_that_share_words_count_their_epochs_together() {
    let registry = common::registry(2);
    let (two, three) = (
        proved(shared(&registry, "two", 2.0, false), &registry),
        proved(shared(&registry, "three", 3.0, true), &registry),
    );
    let turns = [2u32, 3, 2, 2, 3, 3, 2];
    let inputs: Vec<Bindings> = (0..7).map(|e| rows(2, e)).collect();
    let program = |t: u32| if t == 2 { &two } else { &three };
    for seed in 0..30 {
        let mut sim = Simulator::builder(&registry).schedule_seed(seed).build();
        for round in 0..2 {
            let runs: Vec<(&Verified, &Bindings)> =
                turns.iter().zip(&inputs).map(|(t, b)| (program(*t), b)).collect();
            let out = sim.run_sequence(&runs).unwrap();
            for (e, out) in out.iter().enumerate() {
                let want = multiplied(0, e as u64, turns[e] as f32);
                assert_eq!(*out.get(Rank(1), "y").unwrap(), want, "seed {seed}, round {round}, turn {e}");
            }
            assert_eq!(sim.report().unknown_pairs, 0);
            assert!(sim.report().ordered_pairs >= 6, "{}", sim.report().ordered_pairs);
        }
    }
}

#[test]
fn shared_words_without_credit_race_across_programs() {
    let registry = common::registry(2);
    let (two, mut three) = (shared(&registry, "two", 2.0, false), shared(&registry, "three", 3.0, true));
    for task in &mut three.tasks {
        task.waits.iter_mut().filter(|w| w.used() && w.lag() > 0).for_each(|w| *w = Wait::default());
    }
    let input = rows(2, 0);
    let mut sim = Simulator::builder(&registry).build();
    let Err(RunError::Fault(found)) = sim.run_sequence_unproved(&[(&two, &input), (&three, &input)]) else {
        panic!("no race")
    };
    let Reason::Race { region, first, second } = &found.reason else { panic!("{found}") };
    assert_eq!(region, "inbox");
    assert!(first.contains("task of two (rank 1") && second.contains("task of three (rank 0"), "{found}");
}

/// Rank 0 adds three rows to rank 1's, one after the other, over a network that repeats itself.
#[test]
fn updates_in_a_chosen_order_give_chosen_bits_though_messages_repeat() {
    let registry = nodes(2, Ordering::Unordered);
    let mut b = ProgramBuilder::new("sum", &registry);
    let x = b.region(Region::input("x", DType::F32, Shape::Uniform([3, COLS]))).unwrap();
    let sum = b.region(Region::heap("sum", DType::F32, shape())).unwrap();
    let y = b.region(Region::output("y", DType::F32, Shape::PerRank(vec![[0, COLS], [1, COLS]]))).unwrap();
    let ready = b.signal("ready", SignalKind::Set, 1).unwrap();
    let begun = b.signal("begun", SignalKind::Add, 1).unwrap();
    let added = b.signal("added", SignalKind::Add, 2).unwrap();
    let arrived = b.signal("arrived", SignalKind::Set, 1).unwrap();
    let [add, tell, take] = ["rdma.reduce_put", "rdma.signal", "scale"].map(|n| b.op(n).unwrap());
    let label = b.label("task");
    let begin = b.task(Rank(1), lane(0), take, label, &scale(x, sum, 1.0)).unwrap();
    b.post(begin, PostTo::done(Rank(1), begun, 0)).unwrap();
    let go = b.task(Rank(1), lane(0), tell, label, &SyncArgs { peer: Rank(0) }).unwrap();
    b.wait(go, WaitFor::all(begun, 0)).unwrap();
    b.post(go, PostTo::done(Rank(0), ready, 0)).unwrap();
    for m in 0..3u64 {
        let args = CopyArgs { src_row: m, ..copy(x, sum, 1) };
        let task = b.task(Rank(0), lane(m as u16), add, label, &args).unwrap();
        let wait = if m == 0 { WaitFor::all(ready, 0) } else { WaitFor::all(added, m - 1) };
        b.wait(task, wait).unwrap();
        b.post(task, if m < 2 { PostTo::done(Rank(0), added, m) } else { PostTo::done(Rank(1), arrived, 0) })
            .unwrap();
    }
    let end = b.task(Rank(1), lane(0), take, label, &scale(sum, y, 1.0)).unwrap();
    b.wait(end, WaitFor::all(arrived, 0)).unwrap();
    let program = proved(b.finish().unwrap(), &registry);
    // 2^24 + 1 + 1 is not 2^24 + (1 + 1) in f32: the order shows in the bits.
    let values = |r: u64, m: u64| if (r, m) == (1, 0) { 16_777_216.0 } else { 1.0 };
    let mut inputs = Bindings::new();
    for r in 0..2u64 {
        let all: Vec<f32> = (0..3 * COLS).map(|i| values(r, i / COLS)).collect();
        inputs.set(Rank(r as u16), "x", Tensor::from_f32(DType::F32, 3, COLS, &all));
    }
    let one_by_one = (0..3).fold(16_777_216.0f64, |sum, _| f64::from((sum + 1.0) as f32));
    assert_eq!(one_by_one, 16_777_216.0);
    for seed in 0..40 {
        let faults = Faults::from_toml(NASTY).unwrap();
        let mut sim = Simulator::builder(&registry).schedule_seed(seed).faults(faults).build();
        let out = sim.run_epochs(&program, &vec![inputs.clone(); 3]).unwrap();
        for out in out {
            assert!(
                out.get(Rank(1), "y").unwrap().to_f32().iter().all(|y| f64::from(*y) == one_by_one),
                "seed {seed}"
            );
        }
    }
    // With small numbers a repeated or lost add shows.
    let mut small = Bindings::new();
    for r in 0..2u64 {
        let all: Vec<f32> = (0..3 * COLS).map(|i| (10 * r + i / COLS) as f32).collect();
        small.set(Rank(r as u16), "x", Tensor::from_f32(DType::F32, 3, COLS, &all));
    }
    for seed in 0..40 {
        let faults = Faults::from_toml(NASTY).unwrap();
        let mut sim = Simulator::builder(&registry).schedule_seed(seed).faults(faults).build();
        let out = sim.run(&program, &small).unwrap();
        assert!(out.get(Rank(1), "y").unwrap().to_f32().iter().all(|y| *y == 13.0), "seed {seed}");
    }
}

/// A slow put and a fast one of the same stream post to one word; who waits for the first must not be woken by the second.
#[test]
fn posts_of_a_stream_to_one_word_arrive_in_its_order() {
    let registry = nodes(2, Ordering::Unordered);
    let mut b = ProgramBuilder::new("order", &registry);
    let x = b.region(Region::input("x", DType::F32, shape())).unwrap();
    let s = b.region(Region::heap("s", DType::F32, shape())).unwrap();
    let far = b.region(Region::heap("far", DType::F32, shape())).unwrap();
    let near = b.region(Region::heap("near", DType::F32, shape())).unwrap();
    let y = b.region(Region::output("y", DType::F32, Shape::PerRank(vec![[1, COLS], [0, COLS]]))).unwrap();
    let ready = b.signal("ready", SignalKind::Add, 2).unwrap();
    let sent = b.signal("sent", SignalKind::Add, 1).unwrap();
    let [put, take] = ["rdma.put", "scale"].map(|n| b.op(n).unwrap());
    let label = b.label("task");
    let fill = b.task(Rank(0), lane(0), take, label, &scale(x, s, 1.0)).unwrap();
    b.post(fill, PostTo::done(Rank(0), ready, 0)).unwrap();
    let slow = b.task(Rank(0), lane(0), put, label, &copy(s, far, 1)).unwrap();
    b.wait(slow, WaitFor::all(ready, 0)).unwrap();
    b.post(slow, PostTo::done(Rank(0), sent, 0)).unwrap();
    let fast = b.task(Rank(0), lane(0), put, label, &copy(x, near, 0)).unwrap();
    b.post(fast, PostTo::done(Rank(0), sent, 0)).unwrap();
    let refill = b.task(Rank(0), lane(1), take, label, &scale(x, s, 5.0)).unwrap();
    b.wait(refill, WaitFor::upto(sent, 0, slow)).unwrap();
    b.post(refill, PostTo::done(Rank(0), ready, 1)).unwrap();
    let end = b.task(Rank(0), lane(2), take, label, &scale(s, y, 1.0)).unwrap();
    b.wait(end, WaitFor::all(ready, 1)).unwrap();
    let program = proved(b.finish().unwrap(), &registry);
    let mut overlapped = 0;
    for seed in 0..20 {
        let mut sim = Simulator::builder(&registry).schedule_seed(seed).build();
        for out in sim.run_epochs(&program, &[rows(2, 1), rows(2, 1)]).unwrap() {
            assert_eq!(*out.get(Rank(0), "y").unwrap(), multiplied(0, 1, 5.0), "seed {seed}");
        }
        overlapped += u32::from(sim.report().overlap > 1);
    }
    assert!(overlapped > 5, "only two tasks at a time can overtake each other");
}
