//! Rings: credits over epochs, overlap, ticket queues, ports.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "common/ring.rs"]
mod ring;

#[path = "common/mod.rs"]
mod common;

use mk_compute::{Scale, ScaleArgs};
use mk_core::*;
use mk_sim::{Faults, Mode, Simulator};
use ring::{COLS, gather, gathered, lane, rows};

fn proved(program: Program, registry: &Registry) -> Verified {
    program.verify(registry, &Hardware::h200()).unwrap()
}

#[test]
fn a_ring_with_credits_is_right_in_every_epoch_of_every_world() {
    for ranks in common::WORLDS {
        let registry = common::registry(ranks);
        let program = proved(gather(&registry), &registry);
        let inputs: Vec<Bindings> = (0..5).map(|e| rows(ranks as u16, e)).collect();
        for seed in 0..30 {
            let faults = Faults::from_toml(["", "jitter = 3.0\ntorn = true"][seed as usize % 2]).unwrap();
            let mut sim = Simulator::builder(&registry).schedule_seed(seed).faults(faults).build();
            let out = sim.run_epochs(&program, &inputs).unwrap();
            for (e, out) in out.iter().enumerate() {
                for r in 0..ranks as u16 {
                    let y = out.get(Rank(r), "y").unwrap();
                    assert_eq!(
                        *y,
                        gathered(ranks as u16, e as u64),
                        "{ranks} ranks, seed {seed}, epoch {e}, rank {r}"
                    );
                }
            }
        }
    }
}

/// `count` doublings of a row each on one lane or in a ticket queue, independent of each other.
fn independent(registry: &Registry, queue: Queue, lanes: u16, count: u64) -> Program {
    let mut b = ProgramBuilder::new("independent", registry);
    let shape = || Shape::Uniform([count, 4096]);
    let x = b.region(Region::input("x", DType::F32, shape())).unwrap();
    let y = b.region(Region::output("y", DType::F32, shape())).unwrap();
    let double = b.op(Scale::NAME).unwrap();
    b.lanes(Rank(0), lanes);
    for i in 0..count {
        let label = b.label(format!("row {i}"));
        let (src_row, dst_row, cols) = (i, i, 4096);
        let args = ScaleArgs {
            src: x,
            dst: y,
            factor: 2.0,
            rows: 1,
            cols,
            src_row,
            src_col: 0,
            dst_row,
            dst_col: 0,
        };
        b.task(Rank(0), queue, double, label, &args).unwrap();
    }
    b.finish().unwrap()
}

#[test]
fn tasks_of_a_stream_overlap_as_the_seed_says() {
    let registry = common::registry(1);
    let program = proved(independent(&registry, lane(0), 1, 64), &registry);
    let mut times = [0u64; 5];
    let mut runs = [0u64; 5];
    for seed in 1..40 {
        let mut sim = Simulator::builder(&registry).mode(Mode::Timing).schedule_seed(seed).build();
        sim.run(&program, &Bindings::new()).unwrap();
        let overlap = sim.report().overlap as usize;
        times[overlap] += sim.report().time_ns;
        runs[overlap] += 1;
    }
    let mean = |o: usize| times[o] / runs[o];
    assert!(mean(1) > mean(2) * 5 / 4, "one task at a time takes longer: {} and {} ns", mean(1), mean(2));
    assert!(mean(4) <= mean(2) + mean(2) / 10, "{} and {} ns", mean(4), mean(2));
}

#[test]
fn a_run_may_take_longer_than_a_wait() {
    let registry = common::registry(1);
    let program = proved(independent(&registry, lane(0), 1, 64), &registry);
    let mut sim = Simulator::builder(&registry).mode(Mode::Timing).run_bound_us(1).build();
    sim.run(&program, &Bindings::new()).unwrap();
    assert!(sim.report().time_ns > 10_000);
}

#[test]
fn all_lanes_claim_tasks_from_a_ticket_queue() {
    let registry = common::registry(1);
    let time = |queue, lanes| {
        let program = proved(independent(&registry, queue, lanes, 64), &registry);
        let mut sim = Simulator::builder(&registry).mode(Mode::Timing).trace(true).build();
        sim.run(&program, &Bindings::new()).unwrap();
        let mut json = Vec::new();
        sim.trace().unwrap().to_json(&mut json).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        let events = json["traceEvents"].as_array().unwrap().clone();
        let mut tids: Vec<u64> =
            events.iter().filter(|e| e["ph"] == "X").map(|e| e["tid"].as_u64().unwrap()).collect();
        tids.sort();
        tids.dedup();
        (sim.report().time_ns, tids)
    };
    let (one, four, own) = (time(Queue::Ticket, 1), time(Queue::Ticket, 4), time(lane(0), 1));
    assert_eq!((one.1, four.1), (vec![0], vec![0, 2, 4, 6]));
    assert!(four.0 * 3 < one.0, "four lanes: {} ns, one: {} ns", four.0, one.0);
    assert!(one.0 > own.0, "a claim costs time: {} ns, without {} ns", one.0, own.0);
}

#[test]
fn a_ticket_queue_gives_the_same_bits_under_every_schedule() {
    let registry = common::registry(1);
    let program = proved(independent(&registry, Queue::Ticket, 3, 16), &registry);
    let mut x = Bindings::new();
    let values: Vec<f32> = (0..16 * 4096).map(|i| (i % 97) as f32).collect();
    x.set(Rank(0), "x", Tensor::from_f32(DType::F32, 16, 4096, &values));
    let doubled: Vec<f32> = values.iter().map(|x| 2.0 * x).collect();
    for seed in 0..20 {
        let out = Simulator::builder(&registry).schedule_seed(seed).build().run(&program, &x).unwrap();
        assert_eq!(*out.get(Rank(0), "y").unwrap(), Tensor::from_f32(DType::F32, 16, 4096, &doubled));
    }
}

#[test]
fn compute_and_comm_of_a_lane_run_at_the_same_time() {
    let case = common::Case::new(4, [4096, 4096, 1024], 2);
    let mut sim = Simulator::builder(&case.registry).mode(Mode::Timing).build();
    sim.run(&case.proved(), &Bindings::new()).unwrap();
    let report = sim.report();
    for rank in &report.ranks {
        let lanes = 2;
        assert!(rank.compute_ns <= lanes * report.time_ns && rank.comm_ns <= lanes * report.time_ns);
        assert!(rank.compute_ns + rank.comm_ns > lanes * report.time_ns, "they do not overlap: {rank:?}");
    }
}

/// Ranks `1..` put `bytes` to rank 0 at once.
fn incast(ranks: u64, rows: u64) -> u64 {
    let registry = common::registry(ranks);
    let mut b = ProgramBuilder::new("incast", &registry);
    let all = ranks * rows;
    let x = b.region(Region::input("x", DType::F32, Shape::Uniform([rows, COLS]))).unwrap();
    let inbox = b.region(Region::heap("inbox", DType::F32, Shape::Uniform([all, COLS]))).unwrap();
    let put = b.op("nvlink.put").unwrap();
    let label = b.label("put");
    for r in 1..ranks as u16 {
        for part in 0..128 {
            let rows = rows / 128;
            let args = CopyArgs {
                src: x,
                dst: inbox,
                peer: Rank(0),
                units: 1,
                src_row: part * rows,
                src_col: 0,
                dst_row: u64::from(r) * rows * 128 + part * rows,
                dst_col: 0,
                rows: rows as u32,
                cols: COLS as u32,
            };
            b.task(Rank(r), lane(part as u16), put, label, &args).unwrap();
        }
    }
    let mut sim = Simulator::builder(&registry).mode(Mode::Timing).build();
    sim.run(&proved(b.finish().unwrap(), &registry), &Bindings::new()).unwrap();
    let bytes: u64 = sim.report().links.iter().map(|l| l.bytes).sum();
    assert_eq!(bytes, (ranks - 1) * rows * COLS * 4);
    sim.report().time_ns
}

#[test]
fn transfers_share_the_ports_that_they_pass() {
    // 64 MiB from each of 1 and 3 ranks, into an ingress of 350 GB/s, as fast as this handler's copies are on it.
    let rows = 1 << 20;
    let (one, three) = (incast(2, rows), incast(4, rows));
    let alone = (rows * COLS * 4) as f64 / 350.0 * Hardware::h200().factor("nvlink.put");
    assert!((0.95..1.1).contains(&(one as f64 / alone)), "{one} ns instead of {alone}");
    assert!((2.9..3.1).contains(&(three as f64 / one as f64)), "{three} ns instead of 3 x {one}");
}
