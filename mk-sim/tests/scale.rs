//! The race detector's cost is linear in the tasks, whatever shape the order has. Steps are counted, not seconds.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "common/ring.rs"]
mod ring;

#[path = "common/mod.rs"]
mod common;

use mk_compute::{Scale, ScaleArgs};
use mk_core::*;
use mk_rdma::Ordering;
use mk_sim::{Mode, Report, Simulator};
use ring::{COLS, lane};

const UNITS: u16 = 2;

fn scale(src: RegionId, dst: RegionId, row: u64) -> ScaleArgs {
    let (factor, rows, cols) = (2.0, 1, COLS as u32);
    ScaleArgs { src, dst, factor, rows, cols, src_row: row, src_col: 0, dst_row: row, dst_col: 0 }
}

fn copy(src: RegionId, src_row: u64, dst: RegionId, dst_row: u64, peer: u16) -> CopyArgs {
    let (units, rows, cols) = (UNITS, 1, COLS as u32);
    CopyArgs { src, dst, peer: Rank(peer), units, src_row, src_col: 0, dst_row, dst_col: 0, rows, cols }
}

fn simulate(registry: &Registry, program: &Program, epochs: usize) -> (Result<(), RunError>, Report) {
    let mut sim = Simulator::builder(registry).mode(Mode::Timing).build();
    let result = sim.run_unproved(program, &vec![Bindings::new(); epochs]).map(|_| ());
    (result, sim.report().clone())
}

/// Every rank pushes its row to all peers; joins wait for two of them each, and post the word for which every reader
/// waits: all reads come after all pushes, and no post tells it directly. When all have read, signals give credit back:
/// the pushes of the next epoch come after the reads, and no post tells that directly either.
fn barrier(registry: &Registry) -> Program {
    let n = registry.world().size() as u16;
    let mut b = ProgramBuilder::new("barrier", registry);
    let rows = || Shape::Uniform([n.into(), COLS]);
    let x = b.region(Region::input("x", DType::F32, Shape::Uniform([1, COLS]))).unwrap();
    let all = b.region(Region::heap("all", DType::F32, rows())).unwrap();
    let y = b.region(Region::output("y", DType::F32, rows())).unwrap();
    let arrival = b.signal("arrival", SignalKind::Add, n.into()).unwrap();
    let gathered = b.signal("gathered", SignalKind::Add, 1).unwrap();
    let consumed = b.signal("consumed", SignalKind::Add, 1).unwrap();
    let credit = b.signal("credit", SignalKind::Add, n.into()).unwrap();
    let ops = ["nvlink.put_signal", "nvlink.wait", "nvlink.signal", Scale::NAME];
    let [put, wait, signal, double] = ops.map(|h| b.op(h).unwrap());
    for me in 0..n {
        for peer in 0..n {
            let label = b.label(format!("push to {peer}"));
            let push = b.task(Rank(me), lane(0), put, label, &copy(x, 0, all, me.into(), peer)).unwrap();
            b.wait(push, WaitFor::all(credit, peer.into()).lag(1)).unwrap();
            b.post(push, PostTo::done(Rank(peer), arrival, me.into())).unwrap();
        }
        for first in (0..n).step_by(Limits::WAITS) {
            let label = b.label("join");
            let join = b.task(Rank(me), lane(1), wait, label, &SyncArgs { peer: Rank(me) }).unwrap();
            for source in first..n.min(first + Limits::WAITS as u16) {
                b.wait(join, WaitFor::all(arrival, source.into())).unwrap();
            }
            b.post(join, PostTo::done(Rank(me), gathered, 0)).unwrap();
        }
        for row in 0..n {
            let label = b.label(format!("read {row}"));
            let read = b.task(Rank(me), lane(row % 4), double, label, &scale(all, y, row.into())).unwrap();
            b.wait(read, WaitFor::all(gathered, 0)).unwrap();
            b.post(read, PostTo::loaded(Rank(me), consumed, 0)).unwrap();
        }
        for source in 0..n {
            let label = b.label(format!("release {source}"));
            let args = SyncArgs { peer: Rank(source) };
            let release = b.task(Rank(me), lane(2), signal, label, &args).unwrap();
            b.wait(release, WaitFor::all(consumed, 0)).unwrap();
            b.post(release, PostTo::done(Rank(source), credit, me.into())).unwrap();
        }
    }
    b.finish().unwrap()
}

#[test]
fn an_order_through_a_barrier_is_searched_once_for_all_behind_it() {
    let cost = |ranks: u16, epochs: usize| {
        let registry = common::registry(ranks.into());
        let program = barrier(&registry);
        let (result, report) = simulate(&registry, &program, epochs);
        result.unwrap();
        let pairs = u64::from(ranks) * u64::from(ranks) * (2 * epochs as u64 - 1);
        assert_eq!((report.ordered_pairs, report.unknown_pairs), (pairs, 0), "{ranks} ranks");
        report.search_steps as f64 / (program.tasks.len() * epochs) as f64
    };
    for epochs in [1, 3] {
        let (few, many) = (cost(8, epochs), cost(64, epochs));
        assert!(few > 0.1, "it is a search: {few} steps a task");
        assert!(many < 8.0 && many < 3.0 * few, "{few} steps a task of 8 ranks, {many} of 64");
    }
}

#[test]
fn a_reader_that_does_not_wait_for_the_barrier_races() {
    let registry = common::registry(8);
    let mut program = barrier(&registry);
    let named = |i: &usize| program.task_name(TaskId(*i as u32)).contains("read 5 (rank 3");
    let read = (0..program.tasks.len()).find(named).unwrap();
    program.tasks[read].waits = Default::default();
    let (result, _) = simulate(&registry, &program, 1);
    let Err(RunError::Fault(fault)) = result else { panic!("no fault") };
    let Reason::Race { first, second, .. } = &fault.reason else { panic!("{fault}") };
    let both = format!("{first}, {second}");
    assert!(both.contains("push to 3 (rank 5") && both.contains("read 5 (rank 3"), "{both}");
}

/// Two ranks that pass a word to and fro. Before the first pass, rank 0 writes `mid`; after the last it is read there.
fn chain(registry: &Registry, passes: u64) -> Program {
    let mut b = ProgramBuilder::new("chain", registry);
    let row = || Shape::Uniform([1, COLS]);
    let x = b.region(Region::input("x", DType::F32, row())).unwrap();
    let mid = b.region(Region::heap("mid", DType::F32, row())).unwrap();
    let y = b.region(Region::output("y", DType::F32, row())).unwrap();
    let turn = b.signal("turn", SignalKind::Add, passes / 2 + 1).unwrap();
    let [double, signal] = [Scale::NAME, "nvlink.signal"].map(|h| b.op(h).unwrap());
    let [write, pass, read] = ["write", "pass", "read"].map(|l| b.label(l));
    // Word `i / 2` of rank `i % 2` is raised before pass `i`.
    let first = b.task(Rank(0), lane(0), double, write, &scale(x, mid, 0)).unwrap();
    b.post(first, PostTo::done(Rank(0), turn, 0)).unwrap();
    for i in 0..passes {
        let (me, peer) = (Rank((i % 2) as u16), Rank(((i + 1) % 2) as u16));
        let task = b.task(me, lane(0), signal, pass, &SyncArgs { peer }).unwrap();
        b.wait(task, WaitFor::all(turn, i / 2)).unwrap();
        b.post(task, PostTo::done(peer, turn, i.div_ceil(2))).unwrap();
    }
    let last = b.task(Rank(0), lane(1), double, read, &scale(mid, y, 0)).unwrap();
    b.wait(last, WaitFor::all(turn, passes / 2)).unwrap();
    let other = b.task(Rank(1), lane(1), double, read, &scale(x, y, 0)).unwrap();
    b.wait(other, WaitFor::all(turn, 0)).unwrap();
    b.finish().unwrap()
}

#[test]
fn a_long_chain_is_an_order_and_takes_no_stack() {
    let registry = common::registry(2);
    let passes = 100_000;
    let (result, report) = simulate(&registry, &chain(&registry, passes), 1);
    result.unwrap();
    assert_eq!((report.ordered_pairs, report.unknown_pairs), (1, 0));
    // The way back is a word and a post for each pass; what a short search has seen is looked at twice.
    assert!((2 * passes..2 * passes + 1_000).contains(&report.search_steps), "{}", report.search_steps);
}

/// The source of a row block, the rank of the other node that relays it, and that rank's peers.
const SOURCE: u16 = 0;
const RELAY: u16 = 3;
const PEERS: [u16; 2] = [4, 5];

fn two_nodes(ordering: Ordering) -> Registry {
    Registry::builder()
        .transport(mk_nvlink::NvLink::new())
        .transport(mk_rdma::Rdma::new(ordering))
        .handlers(mk_compute::handlers())
        .build(&World::of(Topology::uniform(2, 6, 3).unwrap()))
        .unwrap()
}

/// Row blocks cross the network once, unit by unit: the relay forwards them to its peers and reads them itself. What
/// reads a block at the relay posts `free`; when all have, a signal gives the source its credit back.
fn relayed(registry: &Registry, blocks: u64) -> Program {
    let mut b = ProgramBuilder::new("relayed", registry);
    let rows = || Shape::Uniform([blocks, COLS]);
    let x = b.region(Region::input("x", DType::F32, rows())).unwrap();
    let all = b.region(Region::heap("all", DType::F32, rows())).unwrap();
    let in_other_node = |r: u16| if r < RELAY { [0, COLS] } else { [blocks, COLS] };
    let y = Region::output("y", DType::F32, Shape::PerRank((0..6).map(in_other_node).collect()));
    let y = b.region(y).unwrap();
    let words = blocks * u64::from(UNITS);
    let from_net = b.signal("from net", SignalKind::Set, words).unwrap();
    let to_net = b.signal("credit of the relay", SignalKind::Set, blocks).unwrap();
    let free = b.signal("free", SignalKind::Add, blocks).unwrap();
    let arrival = b.signal("arrival", SignalKind::Add, words).unwrap();
    let credit = b.signal("credit of peers", SignalKind::Add, 6 * blocks).unwrap();
    let ops = ["rdma.put_signal", "rdma.signal", "nvlink.put_signal", Scale::NAME];
    let [put, signal, forward, double] = ops.map(|h| b.op(h).unwrap());
    for block in 0..blocks {
        let word = block * u64::from(UNITS);
        let label = b.label(format!("put {block}"));
        let task = b.task(Rank(SOURCE), lane(0), put, label, &copy(x, block, all, block, RELAY)).unwrap();
        b.wait(task, WaitFor::all(to_net, block).lag(1)).unwrap();
        b.post(task, PostTo::each_block(Rank(RELAY), from_net, word, 1)).unwrap();

        for peer in PEERS {
            let of_peer = u64::from(peer) * blocks + block;
            let label = b.label(format!("forward {block} to {peer}"));
            let args = copy(all, block, all, block, peer);
            let task = b.task(Rank(RELAY), lane(peer % 2), forward, label, &args).unwrap();
            b.wait(task, WaitFor::all(from_net, word).count(UNITS.into()).each_block(1)).unwrap();
            b.wait(task, WaitFor::all(credit, of_peer).lag(1)).unwrap();
            b.post(task, PostTo::each_block(Rank(peer), arrival, word, 1)).unwrap();
            b.post(task, PostTo::loaded(Rank(RELAY), free, block)).unwrap();

            let label = b.label(format!("tile {block}"));
            let tile = b.task(Rank(peer), lane(0), double, label, &scale(all, y, block)).unwrap();
            b.wait(tile, WaitFor::all(arrival, word).count(UNITS.into())).unwrap();
            b.post(tile, PostTo::loaded(Rank(RELAY), credit, of_peer)).unwrap();
        }

        let label = b.label(format!("tile {block}"));
        let tile = b.task(Rank(RELAY), lane(0), double, label, &scale(all, y, block)).unwrap();
        b.wait(tile, WaitFor::all(from_net, word).count(UNITS.into())).unwrap();
        b.post(tile, PostTo::loaded(Rank(RELAY), free, block)).unwrap();

        let label = b.label(format!("release {block}"));
        let args = SyncArgs { peer: Rank(SOURCE) };
        let release = b.task(Rank(RELAY), lane(2), signal, label, &args).unwrap();
        b.wait(release, WaitFor::all(free, block)).unwrap();
        b.post(release, PostTo::done(Rank(SOURCE), to_net, block)).unwrap();
    }
    b.finish().unwrap()
}

#[test]
fn a_credit_that_a_relay_gives_for_all_its_readers_is_an_order() {
    for ordering in [Ordering::Ordered, Ordering::Unordered] {
        let registry = two_nodes(ordering);
        let epochs = 4;
        let steps = [8, 256].map(|blocks| {
            let program = relayed(&registry, blocks);
            let (result, report) = simulate(&registry, &program, epochs);
            result.unwrap();
            // The relay's two forwards and its tile read what was put; two tiles read what was forwarded.
            let pairs = blocks * 5 * (2 * epochs as u64 - 1);
            assert_eq!((report.ordered_pairs, report.unknown_pairs), (pairs, 0), "{blocks} blocks");
            report.search_steps as f64 / (program.tasks.len() * epochs) as f64
        });
        assert!(steps[0] > 0.1 && steps[1] < 4.0 && steps[1] < 1.5 * steps[0], "steps a task: {steps:?}");
        relayed(&registry, 8).verify(&registry, &Hardware::h200()).unwrap();
    }
}

#[test]
fn a_credit_that_a_relay_gives_too_early_is_a_race_of_the_next_epoch() {
    let registry = two_nodes(Ordering::Unordered);
    let mut program = relayed(&registry, 8);
    let named = |i: &usize| program.task_name(TaskId(*i as u32)).contains("release 5 (");
    let release = (0..program.tasks.len()).find(named).unwrap();
    program.tasks[release].waits = Default::default();
    assert!(simulate(&registry, &program, 1).0.is_ok(), "a single epoch needs no credit");
    let Err(RunError::Fault(fault)) = simulate(&registry, &program, 2).0 else { panic!("no fault") };
    let Reason::Race { first, second, region } = &fault.reason else { panic!("{fault}") };
    assert_eq!((fault.rank, fault.epoch, region.as_str()), (Rank(RELAY), 2, "all"));
    assert!(first.contains(" 5") && second.starts_with("put 5 ("), "{fault}");
}
