//! Rings over NVLink and over a network, as programs with credits.
#![allow(dead_code, clippy::unwrap_used, reason = "each test uses some of it, and may panic")]

use mk_compute::{Scale, ScaleArgs};
use mk_core::*;

/// Columns: two units of a put.
pub(crate) const COLS: u64 = 16;

pub(crate) fn lane(l: u16) -> Queue {
    Queue::Lane(Lane(l))
}

/// A small value that differs by rank and epoch.
pub(crate) fn row(rank: u16, epoch: u64) -> Tensor {
    let values: Vec<f32> =
        (0..COLS).map(|c| ((c * 5 + u64::from(rank) * 3 + epoch * 7) % 32) as f32 - 16.0).collect();
    Tensor::from_f32(DType::F32, 1, COLS, &values)
}

/// Every rank's row, in an epoch.
pub(crate) fn rows(ranks: u16, epoch: u64) -> Bindings {
    let mut b = Bindings::new();
    (0..ranks).for_each(|r| b.set(Rank(r), "x", row(r, epoch)));
    b
}

fn scale(src: RegionId, dst: RegionId, rows: u32) -> ScaleArgs {
    ScaleArgs {
        src,
        dst,
        factor: 2.0,
        rows,
        cols: COLS as u32,
        src_row: 0,
        src_col: 0,
        dst_row: 0,
        dst_col: 0,
    }
}

fn copy(src: RegionId, src_row: u64, dst: RegionId, dst_row: u64, peer: u16) -> CopyArgs {
    let (rows, cols) = (1, COLS as u32);
    CopyArgs { src, dst, peer: Rank(peer), units: 2, src_row, src_col: 0, dst_row, dst_col: 0, rows, cols }
}

/// All-gather around a ring over NVLink: each rank sends its row on, then what it has received, in two units each;
/// in the end it doubles what it has. A row is overwritten only when all readers have given their credit back.
pub(crate) fn gather(registry: &Registry) -> Program {
    let n = registry.world().size() as u16;
    let mut b = ProgramBuilder::new("ring", registry);
    let x = b.region(Region::input("x", DType::F32, Shape::Uniform([1, COLS]))).unwrap();
    let all = b.region(Region::heap("all", DType::F32, Shape::Uniform([n.into(), COLS]))).unwrap();
    let y = b.region(Region::output("y", DType::F32, Shape::Uniform([n.into(), COLS]))).unwrap();
    let arrival = b.signal("arrival", SignalKind::Add, 2 * u64::from(n)).unwrap();
    let credit = b.signal("credit", SignalKind::Add, 1).unwrap();
    let (put, double) = (b.op("nvlink.put_signal").unwrap(), b.op(Scale::NAME).unwrap());
    for r in 0..n {
        let (next, before) = ((r + 1) % n, (r + n - 1) % n);
        let label = b.label("own row");
        let own = b.task(Rank(r), lane(0), put, label, &copy(x, 0, all, r.into(), r)).unwrap();
        b.post(own, PostTo::each_block(Rank(r), arrival, 2 * u64::from(r), 1)).unwrap();
        for step in 0..n - 1 {
            let row = (r + n - step) % n;
            let label = b.label(format!("forward row {row}"));
            let send = b
                .task(Rank(r), lane(step % 2), put, label, &copy(all, row.into(), all, row.into(), next))
                .unwrap();
            b.wait(send, WaitFor::all(arrival, 2 * u64::from(row)).count(2).each_block(1)).unwrap();
            b.wait(send, WaitFor::all(credit, 0).lag(1)).unwrap();
            b.post(send, PostTo::each_block(Rank(next), arrival, 2 * u64::from(row), 1)).unwrap();
            if row != r {
                b.post(send, PostTo::loaded(Rank(before), credit, 0)).unwrap();
            }
        }
        let label = b.label("double");
        let take = b.task(Rank(r), lane(0), double, label, &scale(all, y, n.into())).unwrap();
        b.wait(take, WaitFor::all(arrival, 0).count(2 * u64::from(n))).unwrap();
        if n > 1 {
            b.post(take, PostTo::loaded(Rank(before), credit, 0)).unwrap();
        }
    }
    b.finish().unwrap()
}

/// What [`gather`] makes of [`rows`].
pub(crate) fn gathered(ranks: u16, epoch: u64) -> Tensor {
    let mut y = Tensor::zeros(DType::F32, ranks.into(), COLS);
    for r in 0..ranks {
        let doubled: Vec<f32> = row(r, epoch).to_f32().iter().map(|x| 2.0 * x).collect();
        y.paste(r.into(), 0, &Tensor::from_f32(DType::F32, 1, COLS, &doubled));
    }
    y
}

/// One GPU a node, on a network with this ordering.
pub(crate) fn nodes(ranks: u64, ordering: mk_rdma::Ordering) -> Registry {
    Registry::builder()
        .transport(mk_rdma::Rdma::new(ordering))
        .handlers(mk_compute::handlers())
        .build(&World::of(Topology::uniform(ranks, ranks, 1).unwrap()))
        .unwrap()
}

/// Each rank sends `messages` rows to the next over a network, one after the other, into one inbox each; each is
/// doubled when it is there. `put` is the handler that sends, `signal` the one that gives credit back.
pub(crate) fn shift(registry: &Registry, messages: u16, [put, signal, double]: [&str; 3]) -> Program {
    let n = registry.world().size() as u16;
    let shape = || Shape::Uniform([messages.into(), COLS]);
    let mut b = ProgramBuilder::new("shift", registry);
    let x = b.region(Region::input("x", DType::F32, shape())).unwrap();
    let inbox = b.region(Region::heap("inbox", DType::F32, shape())).unwrap();
    let y = b.region(Region::output("y", DType::F32, shape())).unwrap();
    let arrival = b.signal("arrival", SignalKind::Set, 1).unwrap();
    let read = b.signal("read", SignalKind::Add, 1).unwrap();
    let credit = b.signal("credit", SignalKind::Set, 1).unwrap();
    let [put, signal, double] = [put, signal, double].map(|name| b.op(name).unwrap());
    for r in 0..n {
        let (next, before) = ((r + 1) % n, (r + n - 1) % n);
        let mut sends = Vec::new();
        for m in 0..messages {
            let label = b.label(format!("send {m}"));
            let send =
                b.task(Rank(r), lane(0), put, label, &copy(x, m.into(), inbox, m.into(), next)).unwrap();
            b.wait(send, WaitFor::all(credit, 0).lag(1)).unwrap();
            b.post(send, PostTo::done(Rank(next), arrival, 0)).unwrap();
            sends.push(send);
        }
        let label = b.label("credit");
        let free = b.task(Rank(r), lane(1), signal, label, &SyncArgs { peer: Rank(before) }).unwrap();
        b.wait(free, WaitFor::all(read, 0)).unwrap();
        b.post(free, PostTo::done(Rank(before), credit, 0)).unwrap();
        for m in 0..messages {
            let label = b.label(format!("double {m}"));
            let mut args = scale(inbox, y, 1);
            (args.src_row, args.dst_row) = (m.into(), m.into());
            let take = b.task(Rank(r), lane(0), double, label, &args).unwrap();
            // The arrivals of a rank are those of the one before it: a prefix of its stream.
            b.wait(take, WaitFor::all(arrival, 0)).unwrap();
            b.post(take, PostTo::loaded(Rank(r), read, 0)).unwrap();
        }
    }
    b.finish().unwrap()
}

/// Rows for [`shift`], others in every epoch.
pub(crate) fn messages(ranks: u16, messages: u16, epoch: u64) -> Bindings {
    let mut b = Bindings::new();
    for r in 0..ranks {
        let mut x = Tensor::zeros(DType::F32, messages.into(), COLS);
        (0..messages).for_each(|m| x.paste(m.into(), 0, &row(r * 8 + m, epoch)));
        b.set(Rank(r), "x", x);
    }
    b
}

/// What [`shift`] makes of [`messages`], multiplied by `factor`.
pub(crate) fn shifted(ranks: u16, count: u16, epoch: u64, factor: f32) -> Bindings {
    let sent = messages(ranks, count, epoch);
    let mut b = Bindings::new();
    for r in 0..ranks {
        let x = sent.get(Rank(r), "x").unwrap();
        let values: Vec<f32> = x.to_f32().iter().map(|x| factor * x).collect();
        b.set(Rank((r + 1) % ranks), "y", Tensor::from_f32(DType::F32, count.into(), COLS, &values));
    }
    b
}
