//! The verifier on small programs whose verdict a person can tell by reading them.
#![allow(clippy::unwrap_used)]

use mk_compute::{Scale, ScaleArgs};
use mk_core::verify::{FindingKind as Kind, verify_pair};
use mk_core::*;
use mk_nvlink::NvLink;
use mk_rdma::Rdma;

/// Every region here is one square of this many rows and columns.
const SIDE: u64 = 64;

fn registry(nodes: u64, ranks: u64) -> Registry {
    let world = World::of(Topology::uniform(nodes, ranks, 1).unwrap());
    Registry::builder()
        .transport(NvLink::new())
        .transport(Rdma::unordered())
        .handlers(mk_compute::handlers())
        .build(&world)
        .unwrap()
}

/// A builder with short words for what the tests repeat.
struct Kit {
    b: ProgramBuilder,
    registry: Registry,
}

impl Kit {
    fn new(ranks: u64) -> Kit {
        Kit::on(registry(1, ranks))
    }

    fn on(registry: Registry) -> Kit {
        Kit { b: ProgramBuilder::new("test", &registry), registry }
    }

    fn region(&mut self, region: Region) -> RegionId {
        self.b.region(region).unwrap()
    }

    /// Symmetric scratch.
    fn heap(&mut self, name: &str) -> RegionId {
        self.region(Region::heap(name, DType::F32, Shape::Uniform([SIDE, SIDE])))
    }

    fn input(&mut self, name: &str) -> RegionId {
        self.region(Region::input(name, DType::F32, Shape::Uniform([SIDE, SIDE])))
    }

    /// An output that exists on `rank` only.
    fn output(&mut self, name: &str, rank: u16) -> RegionId {
        let ranks = self.registry.world().size();
        let shape = (0..ranks).map(|r| if r == rank as u32 { [SIDE, SIDE] } else { [0, 0] }).collect();
        self.region(Region::output(name, DType::F32, Shape::PerRank(shape)))
    }

    fn put(&mut self, name: &str, rank: u16, src: RegionId, dst: RegionId, peer: u16) -> TaskRef {
        self.copy("nvlink.put_signal", Queue::Lane(Lane(0)), name, rank, src, dst, peer, 1)
    }

    #[allow(clippy::too_many_arguments)]
    fn copy(
        &mut self,
        op: &str,
        queue: Queue,
        name: &str,
        rank: u16,
        src: RegionId,
        dst: RegionId,
        peer: u16,
        units: u16,
    ) -> TaskRef {
        let (op, label) = (self.b.op(op).unwrap(), self.b.label(name));
        let args = CopyArgs {
            src,
            dst,
            peer: Rank(peer),
            units,
            src_row: 0,
            src_col: 0,
            dst_row: 0,
            dst_col: 0,
            rows: SIDE as u32,
            cols: SIDE as u32,
        };
        self.b.task(Rank(rank), queue, op, label, &args).unwrap()
    }

    fn scale(&mut self, name: &str, rank: u16, queue: Queue, src: RegionId, dst: RegionId) -> TaskRef {
        let (op, label) = (self.b.op(Scale::NAME).unwrap(), self.b.label(name));
        let args = ScaleArgs {
            src,
            dst,
            factor: 2.0,
            rows: SIDE as u32,
            cols: SIDE as u32,
            src_row: 0,
            src_col: 0,
            dst_row: 0,
            dst_col: 0,
        };
        self.b.task(Rank(rank), queue, op, label, &args).unwrap()
    }

    fn sync(&mut self, op: &str, name: &str, rank: u16, lane: u16, peer: u16) -> TaskRef {
        let (op, label) = (self.b.op(op).unwrap(), self.b.label(name));
        self.b.task(Rank(rank), Queue::Lane(Lane(lane)), op, label, &SyncArgs { peer: Rank(peer) }).unwrap()
    }

    fn finish(self) -> (Program, Registry) {
        (self.b.finish().unwrap(), self.registry)
    }

    fn proved(self) -> Proof {
        let (program, registry) = self.finish();
        program.verify(&registry, &Hardware::h200()).unwrap_or_else(|e| panic!("{e}")).proof()
    }

    /// The finding, which must be of this kind and name these tasks.
    fn refuted(self, kind: Kind, tasks: &[&str]) -> Finding {
        let (program, registry) = self.finish();
        refuted(program, &registry, kind, tasks)
    }
}

fn refuted(program: Program, registry: &Registry, kind: Kind, tasks: &[&str]) -> Finding {
    let Err(Error::NotProved { finding, .. }) = program.verify(registry, &Hardware::h200()) else {
        panic!("a broken program was proved");
    };
    assert_eq!((finding.verdict, finding.kind), (Verdict::Refuted, kind), "{finding}");
    for t in tasks {
        assert!(finding.tasks.iter().any(|n| n.starts_with(t)), "{t} is not among {:?}", finding.tasks);
    }
    assert!(!finding.hint().is_empty());
    *finding
}

const LANE: [Queue; 2] = [Queue::Lane(Lane(0)), Queue::Lane(Lane(1))];

/// Rank 0 pushes `x` into `y` of rank 1, which scales it into `out`.
fn push_and_scale(k: &mut Kit) -> [TaskRef; 2] {
    let (x, y, out) = (k.input("x"), k.heap("y"), k.output("out", 1));
    let push = k.put("push", 0, x, y, 1);
    let scale = k.scale("scale", 1, LANE[0], y, out);
    [push, scale]
}

#[test]
fn an_edge_and_a_credit_make_a_push_safe() {
    let mut k = Kit::new(2);
    let [push, scale] = push_and_scale(&mut k);
    k.b.edge(&[push], scale).unwrap();
    k.b.credit(&[scale], push).unwrap();
    let proof = k.proved();
    assert_eq!((proof.tasks, proof.waits, proof.posts, proof.pairs), (2, 2, 2, 1));
}

#[test]
fn without_the_edge_the_reader_races_with_the_push() {
    let mut k = Kit::new(2);
    let [push, scale] = push_and_scale(&mut k);
    k.b.credit(&[scale], push).unwrap();
    k.refuted(Kind::Race, &["push", "scale"]);
}

#[test]
fn without_the_credit_the_next_epochs_push_races_with_the_reader() {
    let mut k = Kit::new(2);
    let [push, scale] = push_and_scale(&mut k);
    k.b.edge(&[push], scale).unwrap();
    let finding = k.refuted(Kind::Race, &["push", "scale"]);
    assert!(finding.detail.contains("credit"), "{finding}");
}

#[test]
fn a_rotating_region_needs_credits_only_as_deep_as_its_copies() {
    for (depth, lag, safe) in
        [(1, 1, true), (2, 2, true), (2, 1, true), (3, 3, true), (1, 2, false), (2, 3, false)]
    {
        let mut k = Kit::new(2);
        let (x, out) = (k.input("x"), k.output("out", 1));
        let y = k.region(Region::heap("y", DType::F32, Shape::Uniform([SIDE, SIDE])).rotating(depth));
        let push = k.put("push", 0, x, y, 1);
        let scale = k.scale("scale", 1, LANE[0], y, out);
        k.b.edge(&[push], scale).unwrap();
        let credit = k.b.signal("credit", SignalKind::Add, 1).unwrap();
        k.b.post(scale, PostTo::loaded(Rank(0), credit, 0)).unwrap();
        k.b.wait(push, WaitFor::all(credit, 0).lag(lag)).unwrap();
        if safe {
            k.proved();
        } else {
            k.refuted(Kind::Race, &["push", "scale"]);
        }
    }
}

#[test]
fn a_post_when_loaded_does_not_cover_what_the_task_writes() {
    let mut k = Kit::new(1);
    let (x, y, out) = (k.input("x"), k.heap("y"), k.output("out", 0));
    let first = k.scale("first", 0, LANE[0], x, y);
    let second = k.scale("second", 0, LANE[1], y, out);
    let s = k.b.signal("s", SignalKind::Add, 1).unwrap();
    k.b.post(first, PostTo::loaded(Rank(0), s, 0)).unwrap();
    k.b.wait(second, WaitFor::all(s, 0)).unwrap();
    k.refuted(Kind::Race, &["first", "second"]);
}

#[test]
fn a_wait_before_the_store_does_not_guard_the_load() {
    for early in [true, false] {
        let mut k = Kit::new(1);
        let (x, y, out) = (k.input("x"), k.heap("y"), k.output("out", 0));
        let first = k.scale("first", 0, LANE[0], x, y);
        let second = k.scale("second", 0, LANE[1], y, out);
        let s = k.b.signal("s", SignalKind::Add, 1).unwrap();
        k.b.post(first, PostTo::done(Rank(0), s, 0)).unwrap();
        let wait = WaitFor::all(s, 0);
        k.b.wait(second, if early { wait } else { wait.before_store() }).unwrap();
        if early {
            k.proved();
        } else {
            k.refuted(Kind::Race, &["first", "second"]);
        }
    }
}

/// A put of four units, and a reader of the same region that waits unit by unit.
fn unit_by_unit(count: u64, every: u64) -> Kit {
    let mut k = Kit::new(2);
    let (x, y, z) = (k.input("x"), k.heap("y"), k.heap("z"));
    let push = k.copy("nvlink.put_signal", LANE[0], "push", 0, x, y, 1, 4);
    let on = k.copy("nvlink.put_signal", LANE[0], "on", 1, y, z, 0, 4);
    let (arrival, credit) = (
        k.b.signal("arrival", SignalKind::Add, 4).unwrap(),
        k.b.signal("credit", SignalKind::Add, 1).unwrap(),
    );
    k.b.post(push, PostTo::each_block(Rank(1), arrival, 0, 1)).unwrap();
    k.b.wait(on, WaitFor::all(arrival, 0).count(count).each_block(every)).unwrap();
    k.b.post(on, PostTo::loaded(Rank(0), credit, 0)).unwrap();
    k.b.wait(push, WaitFor::all(credit, 0).lag(1)).unwrap();
    k
}

#[test]
fn units_are_guarded_one_by_one() {
    unit_by_unit(4, 1).proved();
    unit_by_unit(3, 1).refuted(Kind::Race, &["push", "on"]);
    // The second word is waited for only before block 2.
    unit_by_unit(2, 2).refuted(Kind::Race, &["push", "on"]);
}

#[test]
fn order_goes_through_tasks_that_touch_nothing() {
    let mut k = Kit::new(3);
    let (x, y, out) = (k.input("x"), k.heap("y"), k.output("out", 1));
    let push = k.put("push", 0, x, y, 1);
    let [relay, back] = [k.sync("nvlink.signal", "relay", 2, 0, 1), k.sync("nvlink.wait", "back", 2, 1, 2)];
    let scale = k.scale("scale", 1, LANE[0], y, out);
    k.b.edge(&[push], relay).unwrap();
    k.b.edge(&[relay], scale).unwrap();
    k.b.credit(&[scale], back).unwrap();
    // The credit goes by rank 2: back of epoch e + 1 has seen the scale of epoch e, and lets the push go on.
    k.b.edge(&[back], push).unwrap();
    k.proved();
}

#[test]
fn a_reply_is_a_credit_because_a_rank_ends_one_epoch_before_it_starts_the_next() {
    let mut k = Kit::new(2);
    let (x, y, z, out) = (k.input("x"), k.heap("y"), k.heap("z"), k.output("out", 0));
    let there = k.put("there", 0, x, y, 1);
    let back = k.put("back", 1, y, z, 0);
    let scale = k.scale("scale", 0, LANE[0], z, out);
    k.b.edge(&[there], back).unwrap();
    k.b.edge(&[back], scale).unwrap();
    k.proved();
}

#[test]
fn a_deadlock_is_told_as_a_chain_of_tasks() {
    for n in [2u16, 3, 5] {
        let mut k = Kit::new(n as u64);
        let tasks: Vec<_> = (0..n).map(|r| k.sync("nvlink.wait", &format!("w{r}"), r, 0, r)).collect();
        for (i, &t) in tasks.iter().enumerate() {
            k.b.edge(&[t], tasks[(i + 1) % n as usize]).unwrap();
        }
        let names: Vec<_> = (0..n).map(|r| format!("w{r} ")).collect();
        k.refuted(Kind::Deadlock, &names.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

#[test]
fn a_stream_that_waits_for_its_own_later_task_is_stuck() {
    for swapped in [false, true] {
        let mut k = Kit::new(1);
        let names = if swapped { ["late", "early"] } else { ["early", "late"] };
        let [a, b] = names.map(|n| k.sync("nvlink.wait", n, 0, 0, 0));
        let (early, late) = if swapped { (b, a) } else { (a, b) };
        k.b.edge(&[early], late).unwrap();
        if swapped {
            k.refuted(Kind::Deadlock, &["late", "early"]);
        } else {
            k.proved();
        }
    }
}

#[test]
fn a_ticket_queue_is_one_chain_and_orders_no_memory() {
    let queue = |signal: bool, swapped: bool| {
        let mut k = Kit::new(1);
        k.b.lanes(Rank(0), 4);
        let (x, y, out) = (k.input("x"), k.heap("y"), k.output("out", 0));
        let (first, second) = if swapped {
            let second = k.scale("second", 0, Queue::Ticket, y, out);
            (k.scale("first", 0, Queue::Ticket, x, y), second)
        } else {
            (k.scale("first", 0, Queue::Ticket, x, y), k.scale("second", 0, Queue::Ticket, y, out))
        };
        if signal {
            k.b.edge(&[first], second).unwrap();
        }
        k
    };
    queue(true, false).proved();
    queue(false, false).refuted(Kind::Race, &["first", "second"]);
    queue(true, true).refuted(Kind::Deadlock, &["first", "second"]);
}

#[test]
fn a_word_of_two_ranks_needs_them_to_keep_step() {
    let program = |reply: bool| {
        let mut k = Kit::new(3);
        let s = k.b.signal("s", SignalKind::Add, 1).unwrap();
        let wait = k.sync("nvlink.wait", "wait", 0, 0, 0);
        k.b.wait(wait, WaitFor::all(s, 0)).unwrap();
        for r in [1, 2] {
            let post = k.sync("nvlink.signal", &format!("post{r}"), r, 0, 0);
            k.b.post(post, PostTo::done(Rank(0), s, 0)).unwrap();
            if reply {
                let done = k.sync("nvlink.wait", &format!("done{r}"), r, 1, r);
                k.b.edge(&[wait], done).unwrap();
            }
        }
        k
    };
    program(true).proved();
    program(false).refuted(Kind::EpochAlias, &["post1", "post2"]);
}

#[test]
fn a_prefix_of_one_stream_covers_what_came_before_and_nothing_after() {
    let program = |upto: usize| {
        let mut k = Kit::new(1);
        let (x, out) = (k.input("x"), k.output("out", 0));
        let heaps = [k.heap("h0"), k.heap("h1"), k.heap("h2")];
        let s = k.b.signal("s", SignalKind::Add, 1).unwrap();
        let writers = [0, 1, 2].map(|i| k.scale(&format!("write{i}"), 0, LANE[0], x, heaps[i]));
        for w in writers {
            k.b.post(w, PostTo::done(Rank(0), s, 0)).unwrap();
        }
        let read = k.scale("read", 0, LANE[1], heaps[1], out);
        k.b.wait(read, WaitFor::upto(s, 0, writers[upto])).unwrap();
        k
    };
    program(1).proved();
    program(2).proved();
    program(0).refuted(Kind::Race, &["write1", "read"]);
}

#[test]
fn a_prefix_of_a_ticket_queue_is_ambiguous() {
    let mut k = Kit::new(1);
    let (x, y, out) = (k.input("x"), k.heap("y"), k.output("out", 0));
    k.b.lanes(Rank(0), 2);
    let s = k.b.signal("s", SignalKind::Add, 1).unwrap();
    let write = k.scale("write", 0, Queue::Ticket, x, y);
    k.b.post(write, PostTo::done(Rank(0), s, 0)).unwrap();
    let read = k.scale("read", 0, LANE[1], y, out);
    k.b.wait(read, WaitFor::upto(s, 0, write)).unwrap();
    let error = k.b.finish().unwrap_err();
    assert!(error.to_string().contains("ambiguous"), "{error}");
}

#[test]
fn outputs_are_written_once_and_completely() {
    let mut k = Kit::new(1);
    let (x, out) = (k.input("x"), k.output("out", 0));
    k.scale("one", 0, LANE[0], x, out);
    let two = k.scale("two", 0, LANE[1], x, out);
    let wait = k.sync("nvlink.wait", "unused", 0, 2, 0);
    k.b.edge(&[two], wait).unwrap();
    k.refuted(Kind::WrittenTwice, &["one", "two"]);

    let mut k = Kit::new(1);
    let x = k.input("x");
    let out = k.region(Region::output("out", DType::F32, Shape::Uniform([SIDE + 1, SIDE])));
    k.scale("one", 0, LANE[0], x, out);
    let finding = k.refuted(Kind::Unwritten, &[]);
    assert!(
        finding.detail.contains("64 of the 4160") && finding.detail.contains("row 64, column 0"),
        "{finding}"
    );
}

#[test]
fn scratch_that_nobody_wrote_is_not_read() {
    let mut k = Kit::new(1);
    let (y, out) = (k.heap("y"), k.output("out", 0));
    k.scale("read", 0, LANE[0], y, out);
    k.refuted(Kind::Stale, &["read"]);
}

#[test]
fn ranges_reach_and_delivery_are_checked() {
    let mut k = Kit::new(2);
    let (x, y) = (k.input("x"), k.region(Region::heap("y", DType::F32, Shape::Uniform([SIDE - 1, SIDE]))));
    k.put("push", 0, x, y, 1);
    k.refuted(Kind::OutOfRange, &["push"]);

    let mut k = Kit::new(2);
    let (x, out) = (k.input("x"), k.region(Region::output("out", DType::F32, Shape::Uniform([SIDE, SIDE]))));
    k.put("push", 0, x, out, 1);
    k.refuted(Kind::Unreachable, &["push"]);

    // Two nodes: no NVLink between them.
    let mut k = Kit::on(registry(2, 2));
    let (x, y) = (k.input("x"), k.heap("y"));
    k.put("push", 0, x, y, 1);
    k.refuted(Kind::Unreachable, &["push"]);

    // A network raises Set words only, and the frame of a local task reaches no further than its node.
    for (op, kind) in [("rdma.put_signal", SignalKind::Add), ("rdma.put", SignalKind::Set)] {
        let mut k = Kit::on(registry(2, 2));
        let (x, y) = (k.input("x"), k.heap("y"));
        let push = k.copy(op, LANE[0], "push", 0, x, y, 1, 1);
        let s = k.b.signal("s", kind, 1).unwrap();
        k.b.post(push, PostTo::done(Rank(1), s, 0)).unwrap();
        k.refuted(Kind::Undeliverable, &["push"]);
    }
}

#[test]
fn a_network_push_with_set_signals_is_proved() {
    let mut k = Kit::on(registry(2, 2));
    let (x, y, out) = (k.input("x"), k.heap("y"), k.output("out", 1));
    let push = k.copy("rdma.put_signal", LANE[0], "push", 0, x, y, 1, 1);
    let scale = k.scale("scale", 1, LANE[0], y, out);
    let credit = k.sync("rdma.signal", "credit", 1, 0, 0);
    k.b.edge(&[push], scale).unwrap();
    k.b.edge(&[scale], credit).unwrap();
    k.b.credit(&[credit], push).unwrap();
    k.proved();
}

#[test]
fn regress_mirage_761_more_lanes_than_can_be_resident() {
    let mut k = Kit::new(1);
    k.b.lanes(Rank(0), 133);
    let finding = k.refuted(Kind::Lanes, &[]);
    assert!(finding.detail.contains("133") && finding.detail.contains("132"), "{finding}");
}

#[test]
fn regress_vllm_41189_lanes_are_checked_on_every_size_of_gpu() {
    for (sms, lanes, fits) in
        [(1, 1, true), (1, 2, false), (78, 78, true), (78, 79, false), (114, 115, false)]
    {
        let mut k = Kit::new(1);
        k.b.lanes(Rank(0), lanes);
        let (program, registry) = k.finish();
        let hardware = Hardware { sms, ..Hardware::h200() };
        assert_eq!(program.verify(&registry, &hardware).is_ok(), fits, "{lanes} lanes on {sms} SMs");
    }
    // SMs that are left to other kernels are not a program's to use.
    let mut k = Kit::new(1);
    k.b.lanes(Rank(0), 129);
    let (program, registry) = k.finish();
    let hardware = Hardware { reserved_sms: 4, ..Hardware::h200() };
    let error = program.verify(&registry, &hardware).unwrap_err().to_string();
    assert!(["129", "128", "4 for other kernels"].iter().all(|w| error.contains(w)), "{error}");
}

/// A program that pushes into a region which other programs of the session push into, too.
fn sharing(name: &str, credit: bool, tasks: u64) -> Verified {
    let registry = registry(1, 2);
    let mut k = Kit { b: ProgramBuilder::new(name, &registry), registry };
    let (x, out) = (k.input("x"), k.output("out", 1));
    let y = k.region(Region::heap("y", DType::F32, Shape::Uniform([SIDE, SIDE])).shared());
    let push = k.put("push", 0, x, y, 1);
    let scale = k.scale("scale", 1, LANE[0], y, out);
    k.b.edge(&[push], scale).unwrap();
    let c = if credit {
        k.b.shared_signal("credit", SignalKind::Add, 1).unwrap()
    } else {
        k.b.signal("credit", SignalKind::Add, 1).unwrap()
    };
    k.b.post(scale, PostTo::loaded(Rank(0), c, 0)).unwrap();
    for i in 1..tasks {
        let more = k.sync("nvlink.signal", "more", 1, i as u16, 0);
        k.b.edge(&[scale], more).unwrap();
        k.b.post(more, PostTo::done(Rank(0), c, 0)).unwrap();
    }
    k.b.wait(push, WaitFor::all(c, 0).lag(1)).unwrap();
    let (program, registry) = k.finish();
    program.verify(&registry, &Hardware::h200()).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn two_programs_that_share_a_region_need_a_credit_that_they_share() {
    let (p, q) = (sharing("p", true, 1), sharing("q", true, 1));
    // push/push, push/scale and scale/push, in both orders of the two programs.
    assert_eq!(verify_pair(&p, &q).unwrap().pairs, 6);

    let q = sharing("q", false, 1);
    let Err(Error::NotProved { finding, .. }) = verify_pair(&p, &q) else { panic!("a race was proved") };
    assert_eq!(finding.kind, Kind::Race);
    assert!(finding.detail.contains("'p'") && finding.detail.contains("'q'"), "{finding}");

    let q = sharing("q", true, 2);
    let Err(Error::NotProved { finding, .. }) = verify_pair(&p, &q) else {
        panic!("a wrong count was proved")
    };
    assert_eq!(finding.kind, Kind::Threshold);
}

#[test]
fn a_program_that_was_tampered_with_is_refuted() {
    let build = || {
        let mut k = Kit::new(2);
        let [push, scale] = push_and_scale(&mut k);
        k.b.edge(&[push], scale).unwrap();
        k.b.credit(&[scale], push).unwrap();
        k.finish()
    };
    type Tamper = fn(&mut Program);
    let tampers: [(Tamper, Kind); 7] = [
        (|p| p.tasks[0].waits[0].total = 2, Kind::Threshold),
        (|p| p.tasks[0].posts[0] = Post::default(), Kind::Deadlock),
        (|p| p.tasks[0].op = OpId(9), Kind::Malformed),
        (|p| p.tasks[0].posts[0].word = u32::MAX, Kind::Malformed),
        (|p| p.tasks[0].waits[0].word = u32::MAX, Kind::Malformed),
        (|p| p.streams[0].len = 2, Kind::Malformed),
        (|p| p.tasks[0].args = [0xff; 48], Kind::Arguments),
    ];
    for (tamper, kind) in tampers {
        let (mut program, registry) = build();
        tamper(&mut program);
        refuted(program, &registry, kind, &[]);
    }
}

#[test]
fn a_peer_reads_the_callers_tensor_only_while_its_rank_runs() {
    for (asked, told) in [(true, true), (false, true), (true, false)] {
        let mut k = Kit::new(2);
        let shared = Region::new("x", RegionKind::Heap, Io::Input, DType::F32, Shape::Uniform([SIDE, SIDE]));
        let (x, out) = (k.region(shared), k.output("out", 1));
        let ready = k.sync("nvlink.signal", "ready", 0, 0, 1);
        let pull = k.copy("nvlink.get", LANE[0], "pull", 1, x, out, 0, 1);
        let end = k.sync("nvlink.wait", "end", 0, 1, 0);
        if asked {
            k.b.edge(&[ready], pull).unwrap();
        }
        if told {
            let s = k.b.signal("read", SignalKind::Add, 1).unwrap();
            k.b.post(pull, PostTo::loaded(Rank(0), s, 0)).unwrap();
            k.b.wait(end, WaitFor::all(s, 0)).unwrap();
        }
        if asked && told {
            k.proved();
        } else {
            let finding = k.refuted(Kind::OutsideRun, &["pull"]);
            assert!(finding.detail.contains(if asked { "ended" } else { "started" }), "{finding}");
        }
    }
}

#[test]
fn a_peer_that_writes_an_output_is_waited_for() {
    for waited in [true, false] {
        let mut k = Kit::new(3);
        let shape = Shape::PerRank(vec![[SIDE, SIDE], [0, 0], [0, 0]]);
        let x = k.input("x");
        let out = k.region(Region::new("out", RegionKind::Heap, Io::Output, DType::F32, shape));
        let [ready, end] = [k.sync("nvlink.signal", "ready", 0, 0, 1), k.sync("nvlink.wait", "end", 0, 1, 0)];
        let push = k.put("push", 1, x, out, 0);
        // Both ways go through rank 2.
        let [there, back] =
            [k.sync("nvlink.signal", "there", 2, 0, 1), k.sync("nvlink.signal", "back", 2, 1, 0)];
        for (from, to) in [(ready, there), (there, push), (push, back)] {
            k.b.edge(&[from], to).unwrap();
        }
        if waited {
            k.b.edge(&[back], end).unwrap();
            k.proved();
        } else {
            k.refuted(Kind::OutsideRun, &["push"]);
        }
    }
}

/// `n` tasks write a row each, a join waits for all, `n` tasks read all rows. `forgets`: one of the writers tells nobody.
fn through_a_join(n: u32, forgets: Option<u32>) -> Kit {
    let mut k = Kit::new(1);
    let square = || Shape::Uniform([n as u64, 8]);
    let x = k.region(Region::input("x", DType::F32, square()));
    let y = k.region(Region::heap("y", DType::F32, square()));
    let z = k.region(Region::heap("z", DType::F32, Shape::Uniform([n as u64 * n as u64, 8])));
    let (written, all) =
        (k.b.signal("written", SignalKind::Add, 1).unwrap(), k.b.signal("all", SignalKind::Add, 1).unwrap());
    let join = k.sync("nvlink.wait", "join", 0, 0, 0);
    k.b.wait(join, WaitFor::all(written, 0)).unwrap();
    k.b.post(join, PostTo::done(Rank(0), all, 0)).unwrap();
    let scale = k.b.op(Scale::NAME).unwrap();
    let row = |src, dst, rows, row: u32, to: u32| ScaleArgs {
        src,
        dst,
        factor: 1.0,
        rows,
        cols: 8,
        src_row: row as u64,
        src_col: 0,
        dst_row: to as u64,
        dst_col: 0,
    };
    for i in 0..n {
        let (write, read) = (k.b.label(format!("write{i}")), k.b.label(format!("read{i}")));
        let w = k.b.task(Rank(0), deal(i as u64, 50), scale, write, &row(x, y, 1, i, i)).unwrap();
        if forgets != Some(i) {
            k.b.post(w, PostTo::done(Rank(0), written, 0)).unwrap();
        }
        let lane = Queue::Lane(Lane(50 + (i % 50) as u16));
        let r = k.b.task(Rank(0), lane, scale, read, &row(y, z, n, 0, i * n)).unwrap();
        k.b.wait(r, WaitFor::all(all, 0)).unwrap();
    }
    k
}

#[test]
fn many_tasks_that_meet_in_a_join_are_ordered() {
    // More of them than a short search looks at.
    const N: u32 = 300;
    assert_eq!(through_a_join(N, None).proved().pairs, (N * N) as u64);
    through_a_join(N, Some(7)).refuted(Kind::Race, &["write7", "read0"]);
}

#[test]
fn two_writes_of_the_same_rows_do_not_make_other_rows_fresh() {
    let mut k = Kit::new(1);
    let (x, y, out) = (k.input("x"), k.heap("y"), k.output("out", 0));
    let (op, label) = (k.b.op(Scale::NAME).unwrap(), k.b.label("half"));
    let half = ScaleArgs {
        src: x,
        dst: y,
        factor: 1.0,
        rows: SIDE as u32 / 2,
        cols: SIDE as u32,
        src_row: 0,
        src_col: 0,
        dst_row: 0,
        dst_col: 0,
    };
    let [a, b] = [0, 1].map(|_| k.b.task(Rank(0), LANE[0], op, label, &half).unwrap());
    let read = k.scale("read", 0, LANE[0], y, out);
    k.b.edge(&[a], b).unwrap();
    k.b.edge(&[b], read).unwrap();
    let finding = k.refuted(Kind::Stale, &["read"]);
    assert!(finding.detail.contains("only 2048 of 4096"), "{finding}");
}

#[test]
fn a_task_posts_to_a_word_once() {
    let build = |kind| {
        let mut k = Kit::new(2);
        let (x, y) = (k.input("x"), k.heap("y"));
        let s = k.b.signal("s", kind, 8).unwrap();
        let push = k.copy("nvlink.put_signal", LANE[0], "push", 0, x, y, 1, 4);
        k.b.post(push, PostTo::done(Rank(1), s, 4)).unwrap();
        let again = k.b.post(push, PostTo::each_block(Rank(1), s, 1, 1)).unwrap_err();
        assert!(again.to_string().contains("twice"), "{again}");
        k.b.post(push, PostTo::each_block(Rank(1), s, 0, 1)).unwrap();
        k.finish()
    };
    // A block post comes before the one that says that all is done, whatever their places are: ordinals would lie. And
    // a prefix could not tell the two apart.
    for kind in [SignalKind::Set, SignalKind::Add] {
        let (mut program, registry) = build(kind);
        program.tasks[0].posts[1].word += 1;
        refuted(program, &registry, Kind::Threshold, &["push"]);
    }
}

#[test]
fn a_prefix_of_the_earlier_run_is_not_all_of_it() {
    // The run boundary goes by a wait for one of rank 0's two posts, so the other may still be on its way when rank 1
    // posts for the next epoch.
    let program = |all: bool| {
        let mut k = Kit::new(2);
        let w = k.b.signal("w", SignalKind::Add, 1).unwrap();
        let [a1, a2] = ["a1", "a2"].map(|n| k.sync("nvlink.signal", n, 0, 0, 1));
        for t in [a1, a2] {
            k.b.post(t, PostTo::done(Rank(1), w, 0)).unwrap();
        }
        let c = k.sync("nvlink.wait", "c", 1, 0, 1);
        k.b.wait(c, if all { WaitFor::all(w, 0) } else { WaitFor::upto(w, 0, a1) }).unwrap();
        k.finish()
    };
    for all in [true, false] {
        let (program, registry) = program(all);
        program.verify(&registry, &Hardware::h200()).unwrap();
    }
    let shared = |name: &str, upto: Option<bool>| {
        let registry = registry(1, 3);
        let mut k = Kit { b: ProgramBuilder::new(name, &registry), registry };
        let w = k.b.shared_signal("w", SignalKind::Add, 1).unwrap();
        match upto {
            // Two posts by rank 0, seen by rank 2.
            Some(all) => {
                let [a1, a2] = ["a1", "a2"].map(|n| k.sync("nvlink.signal", n, 0, 0, 2));
                for t in [a1, a2] {
                    k.b.post(t, PostTo::done(Rank(2), w, 0)).unwrap();
                }
                let c = k.sync("nvlink.wait", "c", 2, 0, 2);
                k.b.wait(c, if all { WaitFor::all(w, 0) } else { WaitFor::upto(w, 0, a1) }).unwrap();
                let back = k.b.shared_signal("back", SignalKind::Add, 1).unwrap();
                k.b.post(c, PostTo::done(Rank(0), back, 0)).unwrap();
                k.b.wait(a1, WaitFor::all(back, 0).lag(1)).unwrap();
                k.b.wait(a2, WaitFor::all(back, 0).lag(1)).unwrap();
            }
            // Two posts by rank 1, after rank 2 has begun.
            None => {
                let go = k.sync("nvlink.signal", "go", 2, 0, 1);
                let e = k.sync("nvlink.wait", "e", 2, 1, 2);
                for lane in [0, 1] {
                    let b = k.sync("nvlink.signal", "b", 1, lane, 2);
                    k.b.edge(&[go], b).unwrap();
                    k.b.post(b, PostTo::done(Rank(2), w, 0)).unwrap();
                }
                k.b.wait(e, WaitFor::all(w, 0)).unwrap();
                let back = k.b.shared_signal("back", SignalKind::Add, 1).unwrap();
                k.b.post(e, PostTo::done(Rank(0), back, 0)).unwrap();
            }
        }
        let (program, registry) = k.finish();
        program.verify(&registry, &Hardware::h200()).unwrap_or_else(|e| panic!("{e}"))
    };
    verify_pair(&shared("p", Some(true)), &shared("q", None)).unwrap();
    let Err(Error::NotProved { finding, .. }) = verify_pair(&shared("p", Some(false)), &shared("q", None))
    else {
        panic!("a count that lies was proved");
    };
    assert_eq!(finding.kind, Kind::EpochAlias);
}

device_args! {
    /// Arguments of [`Odd`].
    pub struct OddArgs {
        /// Region that is read.
        pub src: RegionId,
        /// Region that is written.
        pub dst: RegionId,
        /// Which oddity.
        pub odd: u32,
    }
}

/// A handler whose spec lies about its phases or its blocks.
struct Odd;

impl Handler for Odd {
    type Args = OddArgs;
    const NAME: &'static str = "odd";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Compute;

    fn spec(&self, a: &OddArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        let rect = env.region(a.src)?.whole(env.rank);
        let (load, store, walk) = match a.odd {
            0 => (Phase::Load, Phase::Store, Walk::Cols(SIDE / 4)),
            1 => (Phase::Store, Phase::Store, Walk::Whole),
            2 => (Phase::Comm, Phase::Store, Walk::Whole),
            3 => (Phase::Load, Phase::Load, Walk::Whole),
            4 => (Phase::Load, Phase::Store, Walk::Cols(SIDE / 8)),
            _ => (Phase::Load, Phase::Store, Walk::Rows(0)),
        };
        let access =
            |region, mode, at| Access { region, rank: env.rank, rect, mode, at, walk, proxy: Proxy::Generic };
        let mut spec = Spec::new(4);
        spec.touch(env, access(a.src, Mode::Read, load))?;
        spec.touch(env, access(a.dst, Mode::Write, store))?;
        Ok(spec)
    }

    fn model(&self, _: &OddArgs, _: Step, views: &mut Views<'_>) {
        views.copy(0, 1);
    }
}

#[test]
fn a_spec_that_lies_about_phases_or_blocks_is_malformed() {
    for odd in 0..6 {
        let world = World::local(1).unwrap();
        let registry = Registry::builder().handler(Odd).build(&world).unwrap();
        let mut k = Kit::on(registry);
        let (src, dst) = (k.input("x"), k.output("out", 0));
        let (op, label) = (k.b.op("odd").unwrap(), k.b.label("odd"));
        k.b.task(Rank(0), LANE[0], op, label, &OddArgs { src, dst, odd }).unwrap();
        if odd == 0 {
            k.proved();
        } else {
            k.refuted(Kind::Malformed, &["odd"]);
        }
    }
}

#[test]
fn a_rank_has_ticket_queues_or_lanes_of_its_own() {
    let mut k = Kit::new(1);
    let (x, y, out) = (k.input("x"), k.heap("y"), k.output("out", 0));
    let ticket = k.scale("ticket", 0, Queue::Ticket, x, y);
    let lane = k.scale("lane", 0, LANE[0], y, out);
    k.b.edge(&[ticket], lane).unwrap();
    k.refuted(Kind::Malformed, &[]);
}

/// A program whose `from` sets a shared word of rank 2, over a network.
fn setting(name: &str, from: u16) -> Verified {
    let registry = registry(3, 3);
    let mut k = Kit { b: ProgramBuilder::new(name, &registry), registry };
    let s = k.b.shared_signal("s", SignalKind::Set, 1).unwrap();
    let [go, set] = [k.sync("rdma.signal", "go", 2, 0, from), k.sync("rdma.signal", "set", from, 0, 2)];
    let end = k.sync("rdma.wait", "end", 2, 0, 2);
    k.b.edge(&[go], set).unwrap();
    k.b.post(set, PostTo::done(Rank(2), s, 0)).unwrap();
    k.b.wait(end, WaitFor::all(s, 0)).unwrap();
    let (program, registry) = k.finish();
    program.verify(&registry, &Hardware::h200()).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn two_programs_must_describe_what_they_share_alike() {
    verify_pair(&setting("p", 0), &setting("q", 0)).unwrap();
    // A late repeat of the one rank's write could undo the other's.
    let Err(Error::NotProved { finding, .. }) = verify_pair(&setting("p", 0), &setting("q", 1)) else {
        panic!("a set word with two writers was proved");
    };
    assert!(finding.detail.contains("another rank"), "{finding}");

    // Worlds of different sizes.
    let error = verify_pair(&setting("p", 0), &sharing("q", true, 1)).unwrap_err();
    assert!(error.to_string().contains("different worlds"), "{error}");

    // A region that is scratch to one and the caller's to the other.
    let with = |io| {
        let mut k = Kit::new(1);
        k.region(Region::new("x", RegionKind::Heap, io, DType::F32, Shape::Uniform([SIDE, SIDE])).shared());
        let (program, registry) = k.finish();
        program.verify(&registry, &Hardware::h200()).unwrap()
    };
    assert!(verify_pair(&with(Io::Scratch), &with(Io::Scratch)).is_ok());
    assert!(verify_pair(&with(Io::Scratch), &with(Io::InOut)).is_err());
}
