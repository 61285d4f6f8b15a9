//! The builder: what is asked for, and the thresholds that come out.
#![allow(clippy::unwrap_used)]

use mk_core::*;
use mk_nvlink::NvLink;
use mk_rdma::Rdma;

fn registry(nodes: u64, ranks: u64) -> Registry {
    let world = World::of(Topology::uniform(nodes, ranks, 1).unwrap());
    let builder = Registry::builder().transport(NvLink::new()).transport(Rdma::ordered());
    builder.handlers(mk_compute::handlers()).build(&world).unwrap()
}

fn builder(ranks: u64) -> ProgramBuilder {
    ProgramBuilder::new("test", &registry(1, ranks))
}

/// A task that touches nothing, on lane `lane` of `rank`.
fn sync(b: &mut ProgramBuilder, op: &str, rank: u16, lane: u16) -> TaskRef {
    let (op, label) = (b.op(op).unwrap(), b.label(""));
    b.task(Rank(rank), Queue::Lane(Lane(lane)), op, label, &SyncArgs { peer: Rank(rank) }).unwrap()
}

fn signal(b: &mut ProgramBuilder, rank: u16, lane: u16) -> TaskRef {
    sync(b, "nvlink.signal", rank, lane)
}

/// The task of `rank` on `lane`, of which there is one.
fn task(p: &Program, rank: u16, lane: u16) -> &Task {
    let s = p.streams.iter().find(|s| s.rank == Rank(rank) && s.queue == Queue::Lane(Lane(lane))).unwrap();
    p.task(TaskId(s.first))
}

fn text(error: Error) -> String {
    let e = error.explain();
    assert!(!e.message.is_empty() && !e.hint.is_empty(), "{e:?}");
    format!("{} {} {}", e.message, e.given, e.hint)
}

#[test]
fn totals_count_all_posts_of_all_ranks() {
    let mut b = builder(3);
    let s = b.signal("s", SignalKind::Add, 2).unwrap();
    for rank in 0..3 {
        for lane in 0..=rank {
            let t = signal(&mut b, rank, lane);
            b.post(t, PostTo::done(Rank(0), s, 1)).unwrap();
        }
    }
    let waiter = signal(&mut b, 0, 9);
    b.wait(waiter, WaitFor::all(s, 1)).unwrap();
    let p = b.finish().unwrap();
    let w = task(&p, 0, 9).waits[0];
    assert_eq!((w.word, w.total, w.upto, w.target(1), w.target(4)), (1, 6, 6, 6, 24));
    assert_eq!(task(&p, 2, 2).posts[0].total, 6);
}

#[test]
fn ordinals_follow_the_stream_and_prefixes_count_up_to_the_named_task() {
    let mut b = builder(1);
    let s = b.signal("s", SignalKind::Set, 1).unwrap();
    let posts: Vec<_> = (0..4).map(|_| signal(&mut b, 0, 0)).collect();
    for &t in &posts {
        b.post(t, PostTo::done(Rank(0), s, 0)).unwrap();
    }
    let waiter = signal(&mut b, 0, 1);
    b.wait(waiter, WaitFor::upto(s, 0, posts[2])).unwrap();
    let p = b.finish().unwrap();
    let ordinals: Vec<u32> = p.tasks[..4].iter().map(|t| t.posts[0].ordinal).collect();
    assert_eq!(ordinals, [1, 2, 3, 4]);
    assert_eq!(p.tasks[1].posts[0].value(3), 10);
    let w = task(&p, 0, 1).waits[0];
    assert_eq!((w.upto, w.total, w.target(1), w.target(2)), (3, 4, 3, 7));
}

#[test]
fn edges_take_one_word_for_each_rank_that_posts() {
    let mut b = builder(4);
    let from: Vec<_> = (1..4).flat_map(|r| [(r, 0), (r, 1)]).map(|(r, l)| signal(&mut b, r, l)).collect();
    let to = signal(&mut b, 0, 0);
    b.edge(&from, to).unwrap();
    let p = b.finish().unwrap();
    let w = task(&p, 0, 0).waits[0];
    assert_eq!((w.count, w.total, w.upto), (3, 2, 2));
    let words: Vec<_> =
        (1..4).flat_map(|r| [(r, 0), (r, 1)]).map(|(r, l)| task(&p, r, l).posts[0].word).collect();
    assert_eq!(words, [0, 0, 1, 1, 2, 2]);
    // Ranks that post a different number of times cannot share a strided wait, but two waits are enough here.
    let mut b = builder(3);
    let from = [(1, 0), (2, 0), (2, 1)].map(|(r, l)| signal(&mut b, r, l));
    let to = signal(&mut b, 0, 0);
    b.edge(&from, to).unwrap();
    let p = b.finish().unwrap();
    assert_eq!(task(&p, 0, 0).waits().map(|w| (w.count, w.total)).collect::<Vec<_>>(), [(1, 1), (1, 2)]);
}

#[test]
fn a_network_edge_takes_set_words() {
    let mut b = ProgramBuilder::new("test", &registry(2, 2));
    let from = sync(&mut b, "rdma.signal", 1, 0);
    let to = signal(&mut b, 0, 0);
    b.edge(&[from], to).unwrap();
    let p = b.finish().unwrap();
    assert_eq!(task(&p, 1, 0).posts[0].kind(), SignalKind::Set);
}

#[test]
fn a_credit_lies_one_epoch_back() {
    let mut b = builder(2);
    let (reader, writer) = (signal(&mut b, 1, 0), signal(&mut b, 0, 0));
    b.credit(&[reader], writer).unwrap();
    let p = b.finish().unwrap();
    let w = task(&p, 0, 0).waits[0];
    assert_eq!((w.lag(), w.target(1), w.target(2)), (1, 0, 1));
    assert_eq!(task(&p, 1, 0).posts[0].at(), PostAt::Loaded);
}

#[test]
fn what_is_ambiguous_is_refused() {
    // Words of a strided wait that receive different numbers of posts.
    let mut b = builder(1);
    let s = b.signal("s", SignalKind::Add, 2).unwrap();
    for (lane, index) in [(0, 0), (1, 1), (2, 1)] {
        let t = signal(&mut b, 0, lane);
        b.post(t, PostTo::done(Rank(0), s, index)).unwrap();
    }
    let t = signal(&mut b, 0, 3);
    b.wait(t, WaitFor::all(s, 0).count(2)).unwrap();
    assert!(text(b.finish().unwrap_err()).contains("ambiguous"));

    // A wait for a word that nobody posts to.
    let mut b = builder(1);
    let s = b.signal("nobody", SignalKind::Add, 1).unwrap();
    let t = signal(&mut b, 0, 0);
    b.wait(t, WaitFor::all(s, 0)).unwrap();
    assert!(text(b.finish().unwrap_err()).contains("'nobody' word 0 of rank 0"));

    // A Set word with two writing streams.
    let mut b = builder(1);
    let s = b.signal("s", SignalKind::Set, 1).unwrap();
    for lane in [0, 1] {
        let t = signal(&mut b, 0, lane);
        b.post(t, PostTo::done(Rank(0), s, 0)).unwrap();
    }
    assert!(text(b.finish().unwrap_err()).contains("more than one writing stream"));
}

#[test]
fn limits_and_names_are_checked_where_they_are_given() {
    let mut b = builder(2);
    let s = b.signal("s", SignalKind::Add, 4).unwrap();
    assert!(text(b.signal("s", SignalKind::Add, 1).unwrap_err()).contains("two signals"));
    assert!(text(b.signal("big", SignalKind::Add, Limits::WORDS).unwrap_err()).contains("268435456"));
    let heap = |name: &str, rows| Region::heap(name, DType::F32, Shape::Uniform([rows, 4]));
    b.region(heap("r", 4)).unwrap();
    assert!(text(b.region(heap("r", 4)).unwrap_err()).contains("two regions"));
    assert!(text(b.region(heap("huge", 1 << 46)).unwrap_err()).contains("huge"));
    assert!(text(b.region(heap("deep", 4).rotating(9)).unwrap_err()).contains("9 copies"));
    let three = Region::heap("three", DType::F32, Shape::PerRank(vec![[1, 1]; 3]));
    assert!(text(b.region(three).unwrap_err()).contains("3 ranks"));
    assert!(text(b.op("no.such").unwrap_err()).contains("no.such"));

    let t = signal(&mut b, 0, 0);
    assert!(text(b.wait(t, WaitFor::all(s, 2).count(3)).unwrap_err()).contains("but there are 4"));
    assert!(b.wait(t, WaitFor::all(s, u64::MAX).count(2)).is_err());
    assert!(b.wait(t, WaitFor::all(s, 0).lag(16)).is_err());
    assert!(b.wait(t, WaitFor::all(s, 0).each_block(1 << 20)).is_err());
    assert!(text(b.wait(t, WaitFor::all(s, 0).before_store()).unwrap_err()).contains("comm task"));
    assert!(text(b.post(t, PostTo::done(Rank(2), s, 0)).unwrap_err()).contains("rank 2"));
    assert!(text(b.post(t, PostTo::done(Rank(1), s, 4)).unwrap_err()).contains("but there are 4"));
    for _ in 0..Limits::WAITS {
        b.wait(t, WaitFor::all(s, 0)).unwrap();
    }
    assert!(text(b.wait(t, WaitFor::all(s, 0)).unwrap_err()).contains("more than 2 waits"));
    let (op, label) = (b.op("nvlink.signal").unwrap(), b.label(""));
    let args = SyncArgs { peer: Rank(0) };
    assert!(b.task(Rank(7), Queue::Lane(Lane(0)), op, label, &args).is_err());
    assert!(b.task(Rank(0), Queue::Lane(Lane(5000)), op, label, &args).is_err());
    assert!(b.task(Rank(0), Queue::Lane(Lane(0)), op, label, &SyncArgs { peer: Rank(7) }).is_err());
}

#[test]
fn streams_are_sorted_and_hold_all_tasks() {
    let mut b = builder(2);
    for (rank, lane) in [(1, 3), (0, 1), (1, 0), (0, 1)] {
        signal(&mut b, rank, lane);
    }
    let p = b.finish().unwrap();
    let streams: Vec<_> = p.streams.iter().map(|s| (s.rank.0, s.queue, s.first, s.len)).collect();
    let lane = |l| Queue::Lane(Lane(l));
    assert_eq!(streams, [(0, lane(1), 0, 2), (1, lane(0), 2, 1), (1, lane(3), 3, 1)]);
    assert_eq!(p.lanes, [2, 4]);
    assert_eq!(p.task_name(TaskId(1)), "(rank 0, lane 1, comm 1: nvlink.signal)");
}

#[test]
fn a_registry_says_who_is_there_twice_or_not_at_all() {
    let world = World::local(2).unwrap();
    let error =
        Registry::builder().transport(NvLink::new()).transport(NvLink::new()).build(&world).unwrap_err();
    assert!(text(error).contains("nvlink"));
    let error =
        Registry::builder().handler(mk_compute::Scale).handler(mk_compute::Scale).build(&world).unwrap_err();
    assert!(text(error).contains("scale"));
    let error = Registry::builder().offers("ghost", [Caps::PUT]).build(&world).unwrap_err();
    assert!(text(error).contains("ghost"));
    let registry = Registry::builder().handlers(mk_compute::handlers()).build(&world).unwrap();
    let names: Vec<_> = registry.handlers().iter().map(|h| h.name()).collect();
    assert!(names.is_sorted(), "opcodes follow the sorted names: {names:?}");
    assert!(text(registry.route(Rank(0), Rank(1), Caps::PUT).err().unwrap()).contains("no transport"));
}

#[test]
fn what_another_builder_gave_back_is_refused() {
    let mut other = builder(1);
    let s = other.signal("s", SignalKind::Add, 1).unwrap();
    let t = signal(&mut other, 0, 0);
    let (op, label) = (other.op("nvlink.signal").unwrap(), other.label("x"));
    let mut b = builder(1);
    assert!(text(b.wait(t, WaitFor::all(s, 0)).unwrap_err()).contains("not of this program"));
    assert!(text(b.post(t, PostTo::done(Rank(0), s, 0)).unwrap_err()).contains("not of this program"));
    assert!(text(b.edge(&[t], t).unwrap_err()).contains("not of this program"));
    let lane = Queue::Lane(Lane(0));
    assert!(
        text(b.task(Rank(0), lane, op, label, &SyncArgs { peer: Rank(0) }).unwrap_err())
            .contains("not of this")
    );
    b.lanes(Rank(9), 4);
    assert!(text(b.finish().unwrap_err()).contains("rank 9 is outside"));
}
