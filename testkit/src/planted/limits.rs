//! Bytes outside a region or out of reach, posts that nobody carries, too many lanes, records without meaning.

use super::{Planted, plant};
use crate::kit::{Case, Kit};
use crate::pool;
use mk_core::{
    DType, Error, Lane, OpId, Post, PostAt, Program, Queue, Rank, Region, Shape, SignalKind, Wait, WaitAt,
    verify::FindingKind,
};

type Result<T = Planted> = std::result::Result<T, Error>;

/// A map of `size` from `src` to `dst`, in regions of 4 x 4.
fn outside(src: [u32; 2], dst: [u32; 2], size: [u32; 2]) -> Result {
    let mut k = Kit::new(format!("outside({src:?}, {dst:?}, {size:?})"), 1, 1)?;
    let (x, mid) = (k.input("x", 4, 4)?, k.local("mid", 4, 4)?);
    k.map((0, 0), "reach", (x, src[0], src[1]), (mid, dst[0], dst[1]), size)?;
    plant(k, FindingKind::OutOfRange, &["reach"])
}

/// A copy that leaves the region of a peer with fewer rows than the own one.
fn outside_a_peer(get: bool, rows: u32) -> Result {
    let mut k = Kit::new(format!("outside a peer's rows({get}, {rows})"), 1, 2)?;
    let shape = Shape::PerRank(vec![[8, 8], [u64::from(rows) - 1, 8]]);
    let uneven = k.b.region(Region::heap("uneven", DType::F32, shape))?;
    let own = k.heap("own", 8, 8, 1)?;
    if get {
        k.copy("near.get", (0, 0), "reach", 1, (uneven, 0, 0), (own, 0, 0), [rows, 8], 1)?;
    } else {
        k.copy("near.put", (0, 0), "reach", 1, (own, 0, 0), (uneven, 0, 0), [rows, 8], 1)?;
    }
    plant(k, FindingKind::OutOfRange, &["reach"])
}

/// A copy by `op` between ranks `from` and `to` of two nodes with `per_node` ranks; `bound`: the peer's region is bound.
fn unreachable(op: &str, per_node: u16, from: u16, to: u16, bound: bool) -> Result {
    let name = format!("unreachable({op}, {per_node}, {from} to {to}, {bound})");
    let mut k = Kit::new(name, 2, 2 * u64::from(per_node))?;
    let own = k.heap("own", 1, 8, 1)?;
    let peer = if bound { k.local("bound", 1, 8)? } else { k.heap("heap", 1, 8, 1)? };
    let (src, dst) = if op.ends_with("get") { (peer, own) } else { (own, peer) };
    k.copy(op, (from, 0), "reach", to, (src, 0, 0), (dst, 0, 0), [1, 8], 1)?;
    plant(k, FindingKind::Unreachable, &["reach"])
}

/// A post by `op` from rank 0 of the first node to rank `to`.
fn undeliverable(op: &str, kind: SignalKind, per_node: u16, to: u16) -> Result {
    let name = format!("undeliverable({op}, {kind:?}, {per_node}, {to})");
    let mut k = Kit::new(name, 2, 2 * u64::from(per_node))?;
    let (x, y) = (k.heap("x", 1, 8, 1)?, k.heap("y", 1, 8, 1)?);
    let word = k.b.signal("word", kind, 1)?;
    let task = match op {
        "toy.fill" => k.fill((0, 0), "reach", (y, 0, 0), [1, 8], 1.0)?,
        "far.put" | "far.put_signal" => {
            k.copy(op, (0, 0), "reach", per_node, (x, 0, 0), (y, 0, 0), [0, 8], 1)?
        }
        _ => k.sync(op, (0, 0), "reach", 0)?,
    };
    k.done(task, to, word, 0)?;
    plant(k, FindingKind::Undeliverable, &["reach"])
}

/// `lanes` lanes on rank `rank` of two.
fn lanes(lanes: u16, rank: u16, by_task: bool) -> Result {
    let mut k = Kit::new(format!("lanes({lanes}, {rank}, {by_task})"), 1, 2)?;
    if by_task {
        let y = k.local("y", 1, 2)?;
        k.fill((rank, lanes - 1), "far lane", (y, 0, 0), [1, 2], 1.0)?;
    } else {
        k.b.lanes(Rank(rank), lanes);
    }
    plant(k, FindingKind::Lanes, &[])
}

/// A record that no builder writes.
fn malformed(name: &str, base: &Case, edit: impl Fn(&mut Program)) -> Planted {
    let mut program = base.program.clone();
    edit(&mut program);
    let case = Case { name: format!("malformed: {name}"), program, registry: base.registry.clone() };
    Planted { case, kind: FindingKind::Malformed, tasks: vec![] }
}

fn first_wait(p: &mut Program) -> &mut Wait {
    p.tasks.iter_mut().flat_map(|t| &mut t.waits).find(|w| w.used()).expect("the base program waits")
}

fn first_post(p: &mut Program) -> &mut Post {
    p.tasks.iter_mut().flat_map(|t| &mut t.posts).find(|w| w.used()).expect("the base program posts")
}

fn all_malformed() -> Result<Vec<Planted>> {
    let base = pool::producer_consumer(2, 3)?;
    let make = |name: &str, edit: fn(&mut Program)| malformed(name, &base, edit);
    Ok(vec![
        make("handler beyond the list", |p| p.tasks[0].op = OpId(9)),
        make("wait for a word beyond the last", |p| first_wait(p).word = 99),
        make("wait for the last word of all", |p| first_wait(p).word = u32::MAX),
        make("wait for no words", |p| first_wait(p).count = 0),
        make("wait for words beyond the last", |p| first_wait(p).count = 9),
        make("wait for one word many times", |p| (first_wait(p).count, first_wait(p).stride) = (2, 0)),
        make("wait every 0 blocks", |p| first_wait(p).every = 0),
        make("wait at no known point", |p| first_wait(p).bits = 7),
        make("wait by a clock that does not exist", |p| first_wait(p).clock = 1),
        make("wait block by block for more words than blocks", |p| {
            let w = first_wait(p);
            (w.count, w.bits) = (2, Wait::pack(WaitAt::Block, 0));
        }),
        make("post to a word beyond the last", |p| first_post(p).word = 99),
        make("post to the last word of all", |p| first_post(p).word = u32::MAX),
        make("post to a rank beyond the last", |p| first_post(p).rank = 2),
        make("post at no known point", |p| first_post(p).bits = 3),
        make("post every 0 blocks", |p| first_post(p).every = 0),
        make("post as another kind", |p| first_post(p).bits = Post::pack(PostAt::Done, SignalKind::Set, 0)),
        make("post by a clock that does not exist", |p| {
            first_post(p).bits = Post::pack(PostAt::Done, SignalKind::Add, 1);
        }),
        make("post by block of a compute task", |p| {
            first_post(p).bits = Post::pack(PostAt::Block, SignalKind::Add, 0);
        }),
        make("a stream that misses a task", |p| p.streams[0].len -= 1),
        make("a stream that has a task too many", |p| p.streams[0].len += 1),
        make("a stream beyond the tasks", |p| p.streams[3].len = 99),
        make("two streams of one lane", |p| p.streams[1].queue = Queue::Lane(Lane(0))),
        make("a lane beyond the last", |p| p.streams[1].queue = Queue::Lane(Lane(5))),
        make("a stream of a rank beyond the last", |p| p.streams[3].rank = Rank(7)),
        make("compute work in a comm stream", |p| p.streams[0].stream = mk_core::Stream::Comm),
        make("lanes of one rank only", |p| p.lanes.truncate(1)),
        make("another world", |p| p.ranks = 3),
        make("a region of no copies", |p| p.regions[1].depth = 0),
        make("a region of too many copies", |p| p.regions[1].depth = 9),
        make("shapes for another number of ranks", |p| p.regions[0].shape = Shape::PerRank(vec![[3, 2]])),
        make("a region beyond all memory", |p| p.regions[0].shape = Shape::Uniform([u64::MAX, 2])),
    ])
}

/// All of them.
///
/// # Errors
/// None: what is planted is beyond what the builder checks.
pub fn all() -> Result<Vec<Planted>> {
    let mut all = all_malformed()?;
    for n in 1..=4 {
        all.push(outside([n, 0], [0, 0], [5 - n, 4])?);
        all.push(outside([0, n], [0, 0], [4, 5 - n])?);
        all.push(outside([0, 0], [n, 0], [5 - n, 4])?);
        all.push(outside([0, 0], [0, n], [4, 5 - n])?);
        all.push(outside_a_peer(n % 2 == 0, n + 1)?);
    }
    all.push(outside([u32::MAX, 0], [0, 0], [1, 1])?);
    all.push(outside([0, 0], [0, u32::MAX], [1, u32::MAX])?);
    for per_node in 2..=4u16 {
        let other = per_node;
        for op in ["near.put", "near.get", "near.reduce_put"] {
            all.push(unreachable(op, per_node, 0, other, false)?);
            all.push(unreachable(op, per_node, 0, 1, true)?);
        }
        for op in ["far.put", "far.get", "far.put_signal"] {
            all.push(unreachable(op, per_node, 0, 1, false)?);
            all.push(unreachable(op, per_node, other, 0, true)?);
        }
        all.push(undeliverable("near.signal", SignalKind::Add, per_node, other)?);
        all.push(undeliverable("near.wait", SignalKind::Set, per_node, other)?);
        all.push(undeliverable("toy.fill", SignalKind::Add, per_node, other)?);
        all.push(undeliverable("far.put", SignalKind::Add, per_node, other)?);
        all.push(undeliverable("far.put", SignalKind::Set, per_node, other)?);
        all.push(undeliverable("far.put_signal", SignalKind::Add, per_node, other)?);
        all.push(undeliverable("far.put_signal", SignalKind::Set, per_node, 1)?);
        all.push(undeliverable("far.signal", SignalKind::Set, per_node, 1)?);
    }
    for more in 0..5 {
        for rank in [0, 1] {
            all.push(lanes(133 + 40 * more, rank, true)?);
            all.push(lanes(133 + 100 * more, rank, false)?);
        }
    }
    Ok(all)
}
