//! Two accesses without an order.

use super::{Planted, plant};
use crate::kit::{Kit, TICKET};
use mk_core::{
    DType, Error, Io, Rank, Region, RegionKind, Shape, WaitFor,
    verify::FindingKind::{self, Race},
};

const UNIT: u32 = 8;

type Result<T = Planted> = std::result::Result<T, Error>;

/// One consumer of many does not wait for its producer.
fn missing_wait(ranks: u16, chunks: u32, which: u32) -> Result {
    let mut k = Kit::new(format!("missing wait({ranks}, {chunks}, {which})"), 1, ranks.into())?;
    let (x, mid) = (k.input("x", chunks.into(), 2)?, k.local("mid", chunks.into(), 2)?);
    let y = k.output("y", chunks.into(), 2)?;
    for c in 0..chunks {
        let from = k.map((ranks - 1, 0), &format!("produce {c}"), (x, c, 0), (mid, c, 0), [1, 2])?;
        let to = k.map((ranks - 1, 1), &format!("consume {c}"), (mid, c, 0), (y, c, 0), [1, 2])?;
        if c != which {
            k.b.edge(&[from], to)?;
        }
        for r in 0..ranks - 1 {
            k.map((r, 0), "other", (x, c, 0), (y, c, 0), [1, 2])?;
        }
    }
    plant(k, Race, &[&format!("produce {which}"), &format!("consume {which}")])
}

/// Messages around a ring; `lag` is that of the credits (`None`: there are none), `early` posts when loaded.
fn ring(name: &str, ranks: u16, depth: u32, lag: Option<u8>, early: bool) -> Result {
    let mut k = Kit::new(format!("{name}({ranks}, {depth})"), 1, ranks.into())?;
    let x = k.input("x", 1, UNIT.into())?;
    let inbox = k.heap("inbox", 1, UNIT.into(), depth)?;
    let y = k.output("y", 1, UNIT.into())?;
    let (arrival, credit) = (k.adds("arrival", 1)?, k.adds("credit", 1)?);
    for r in 0..ranks {
        let (next, before) = ((r + 1) % ranks, (r + ranks - 1) % ranks);
        let put = k.copy("near.put", (r, 0), "put", next, (x, 0, 0), (inbox, 0, 0), [1, UNIT], 1)?;
        if let Some(lag) = lag {
            k.wait(put, WaitFor::all(credit, 0).lag(lag))?;
        }
        if early {
            k.loaded(put, next, arrival, 0)?;
        } else {
            k.done(put, next, arrival, 0)?;
        }
        let map = k.map((r, 0), "use", (inbox, 0, 0), (y, 0, 0), [1, UNIT])?;
        k.wait(map, WaitFor::all(arrival, 0))?;
        k.loaded(map, before, credit, 0)?;
    }
    plant(k, Race, &["put", "use"])
}

/// A pair of ranks, one way: nothing comes back, so the receiver can fall behind by any number of epochs.
fn one_way(name: &str, depth: u32, lag: Option<u8>) -> Result {
    let mut k = Kit::new(format!("{name}({depth}, {lag:?})"), 1, 2)?;
    let x = k.input("x", 1, UNIT.into())?;
    let inbox = k.heap("inbox", 1, UNIT.into(), depth)?;
    let y = k.output("y", 1, UNIT.into())?;
    let (arrival, credit) = (k.adds("arrival", 1)?, k.adds("credit", 1)?);
    let put = k.copy("near.put", (0, 0), "put", 1, (x, 0, 0), (inbox, 0, 0), [1, UNIT], 1)?;
    if let Some(lag) = lag {
        k.wait(put, WaitFor::all(credit, 0).lag(lag))?;
    }
    k.done(put, 1, arrival, 0)?;
    k.map((0, 0), "own", (x, 0, 0), (y, 0, 0), [1, UNIT])?;
    let map = k.map((1, 0), "use", (inbox, 0, 0), (y, 0, 0), [1, UNIT])?;
    k.wait(map, WaitFor::all(arrival, 0))?;
    k.loaded(map, 0, credit, 0)?;
    plant(k, Race, &["put", "use"])
}

/// Blocks that arrive one by one, with a wait that comes `every` blocks where one a block is needed.
fn late_in_block_order(blocks: u32, walked: bool) -> Result {
    let mut k = Kit::new(format!("wait too late in block order({blocks}, {walked})"), 1, 1)?;
    let (x, mid) = (k.input("x", blocks.into(), 2)?, k.local("mid", blocks.into(), 2)?);
    let y = k.output("y", blocks.into(), 2)?;
    let ready = k.adds("ready", blocks.into())?;
    for b in 0..blocks {
        // Rows arrive in the opposite order of the words.
        let row = blocks - 1 - b;
        let from = k.map((0, 0), &format!("produce {row}"), (x, row, 0), (mid, row, 0), [1, 2])?;
        k.done(from, 0, ready, b.into())?;
    }
    let to = k.walk((0, 1), "walk", (mid, 0, 0), (y, 0, 0), [blocks, 2], 1, walked)?;
    k.wait(to, WaitFor::all(ready, 0).count(blocks.into()).each_block(1))?;
    plant(k, Race, &["produce", "walk"])
}

/// The consumer's wait guards only its store.
fn late_before_store(ranks: u16) -> Result {
    let mut k = Kit::new(format!("wait only before the store({ranks})"), 1, ranks.into())?;
    let (x, mid, y) = (k.input("x", 1, 2)?, k.local("mid", 1, 2)?, k.output("y", 1, 2)?);
    let ready = k.adds("ready", 1)?;
    for r in 0..ranks {
        let from = k.map((r, 0), "produce", (x, 0, 0), (mid, 0, 0), [1, 2])?;
        let to = k.map((r, 1), "consume", (mid, 0, 0), (y, 0, 0), [1, 2])?;
        k.done(from, r, ready, 0)?;
        k.wait(to, WaitFor::all(ready, 0).before_store())?;
    }
    plant(k, Race, &["produce", "consume"])
}

/// A compute task posts when it has loaded, though its result is what is waited for.
fn loaded_instead_of_done(chunks: u32) -> Result {
    let mut k = Kit::new(format!("loaded instead of done({chunks})"), 1, 1)?;
    let (x, mid) = (k.input("x", chunks.into(), 2)?, k.local("mid", chunks.into(), 2)?);
    let y = k.output("y", chunks.into(), 2)?;
    let ready = k.adds("ready", 1)?;
    for c in 0..chunks {
        let from = k.map((0, 0), &format!("produce {c}"), (x, c, 0), (mid, c, 0), [1, 2])?;
        k.loaded(from, 0, ready, 0)?;
    }
    let to = k.map((0, 1), "consume", (mid, 0, 0), (y, 0, 0), [chunks, 2])?;
    k.wait(to, WaitFor::all(ready, 0))?;
    plant(k, Race, &["produce", "consume"])
}

/// The flag is sent by a task of its own behind the data, as if a stream ordered memory.
fn flag_before_data(far: bool, ranks: u16) -> Result {
    let nodes = if far { 2 } else { 1 };
    let mut k = Kit::new(format!("flag before data({far}, {ranks})"), nodes, ranks.into())?;
    let x = k.heap("x", 1, UNIT.into(), 1)?;
    let inbox = k.heap("inbox", 1, UNIT.into(), 1)?;
    let y = k.output("y", 1, UNIT.into())?;
    let (put, signal) = if far { ("far.put", "far.signal") } else { ("near.put", "near.signal") };
    let peer = ranks - 1;
    let arrival = if far { k.sets("arrival", 1)? } else { k.adds("arrival", 1)? };
    let fill = k.fill((0, 0), "fill", (x, 0, 0), [1, UNIT], 1.0)?;
    let data = k.copy(put, (0, 0), "data", peer, (x, 0, 0), (inbox, 0, 0), [1, UNIT], 1)?;
    k.b.edge(&[fill], data)?;
    let flag = k.sync(signal, (0, 0), "flag", peer)?;
    k.done(flag, peer, arrival, 0)?;
    for r in 0..peer {
        k.fill((r, 1), "own", (y, 0, 0), [1, UNIT], 2.0)?;
    }
    let map = k.map((peer, 0), "use", (inbox, 0, 0), (y, 0, 0), [1, UNIT])?;
    k.wait(map, WaitFor::all(arrival, 0))?;
    plant(k, Race, &["data", "use"])
}

/// Two writers of one place, both awaited by the reader, but not by each other.
fn overlapping_writers(shift: u32, lanes: u16) -> Result {
    let mut k = Kit::new(format!("overlapping writers({shift}, {lanes})"), 1, 1)?;
    let (mid, y) = (k.local("mid", 6, 2)?, k.output("y", 6, 2)?);
    let clear = k.fill((0, 0), "clear", (mid, 0, 0), [6, 2], 0.0)?;
    let a = k.fill((0, 0), "first", (mid, 0, 0), [4, 2], 1.0)?;
    let b = k.fill((0, lanes), "second", (mid, shift, 0), [6 - shift, 2], 2.0)?;
    k.b.edge(&[clear], a)?;
    k.b.edge(&[clear], b)?;
    let take = k.map((0, 2), "take", (mid, 0, 0), (y, 0, 0), [6, 2])?;
    k.b.edge(&[a, b], take)?;
    plant(k, Race, &["first", "second"])
}

/// A get beside the writer of what it reads, on another rank.
fn reader_beside_writer(ranks: u16) -> Result {
    let mut k = Kit::new(format!("reader beside writer({ranks})"), 1, ranks.into())?;
    let x = k.input("x", 1, UNIT.into())?;
    let (show, mine) = (k.heap("show", 1, UNIT.into(), 1)?, k.heap("mine", 1, UNIT.into(), 1)?);
    let y = k.output("y", 1, UNIT.into())?;
    for r in 0..ranks {
        k.map((r, 0), "show", (x, 0, 0), (show, 0, 0), [1, UNIT])?;
        let get =
            k.copy("near.get", (r, 0), "get", (r + 1) % ranks, (show, 0, 0), (mine, 0, 0), [1, UNIT], 1)?;
        let take = k.map((r, 1), "take", (mine, 0, 0), (y, 0, 0), [1, UNIT])?;
        k.b.edge(&[get], take)?;
    }
    plant(k, Race, &["show", "get"])
}

/// Two tasks of one stream, or one ticket queue, as if it ordered memory.
fn stream_order(lane: u16, between: u32) -> Result {
    let what = if lane == TICKET { "ticket queue" } else { "stream" };
    let mut k = Kit::new(format!("{what} taken for an order({between})"), 1, 1)?;
    k.b.lanes(Rank(0), 2);
    let (x, mid, y) = (k.input("x", 1, 2)?, k.local("mid", 1, 2)?, k.output("y", 1, 2)?);
    let z = k.output("z", 1 + u64::from(between), 2)?;
    k.map((0, lane), "produce", (x, 0, 0), (mid, 0, 0), [1, 2])?;
    for b in 0..=between {
        k.map((0, lane), &format!("other {b}"), (x, 0, 0), (z, b, 0), [1, 2])?;
    }
    k.map((0, lane), "consume", (mid, 0, 0), (y, 0, 0), [1, 2])?;
    plant(k, Race, &["produce", "consume"])
}

/// Ranks add to one place, each after the clearing, but in no order among themselves.
fn unordered_sums(ranks: u16) -> Result {
    let mut k = Kit::new(format!("unordered sums({ranks})"), 1, ranks.into())?;
    let x = k.input("x", 1, UNIT.into())?;
    let sum = k.heap("sum", 1, UNIT.into(), 1)?;
    let y = k.output("y", 1, UNIT.into())?;
    let clear = k.fill((0, 0), "clear", (sum, 0, 0), [1, UNIT], 0.0)?;
    let done = k.adds("done", ranks.into())?;
    let mut adds = Vec::new();
    let go = k.adds("go", 1)?;
    k.done(clear, 0, go, 0)?;
    for r in 1..ranks {
        let tell = k.sync("near.wait", (0, 0), &format!("tell {r}"), 0)?;
        k.wait(tell, WaitFor::all(go, 0))?;
        k.done(tell, r, go, 0)?;
    }
    for r in 0..ranks {
        let label = format!("add {r}");
        let add = k.copy("near.reduce_put", (r, 1), &label, 0, (x, 0, 0), (sum, 0, 0), [1, UNIT], 1)?;
        k.wait(add, WaitFor::all(go, 0))?;
        k.done(add, 0, done, r.into())?;
        adds.push(add);
        if r > 0 {
            k.map((r, 0), "own", (x, 0, 0), (y, 0, 0), [1, UNIT])?;
        }
    }
    let take = k.map((0, 2), "take", (sum, 0, 0), (y, 0, 0), [1, UNIT])?;
    k.wait(take, WaitFor::all(done, 0).count(ranks.into()))?;
    plant(k, Race, &["add 0", "add 1"])
}

/// A slot is filled again though nobody says that it was drained.
fn slot_without_credit(chunks: u32, slots: u32) -> Result {
    let mut k = Kit::new(format!("slot without credit({chunks}, {slots})"), 1, 1)?;
    let (x, buffer) = (k.input("x", chunks.into(), 2)?, k.local("buffer", slots.into(), 2)?);
    let y = k.output("y", chunks.into(), 2)?;
    for c in 0..chunks {
        let from = k.map((0, 0), &format!("fill {c}"), (x, c, 0), (buffer, c % slots, 0), [1, 2])?;
        let to = k.map((0, 1), &format!("drain {c}"), (buffer, c % slots, 0), (y, c, 0), [1, 2])?;
        k.b.edge(&[from], to)?;
    }
    plant(k, Race, &["fill", "fill"])
}

/// A peer touches what the caller gave or gets, though the run of that rank may not have started (`early`), or may have
/// ended.
fn beside_the_caller(ranks: u16, io: Io, early: bool) -> Result {
    let name = format!("beside the caller({ranks}, {io:?}, {early})");
    let mut k = Kit::new(name, 1, ranks.into())?;
    let shape = Shape::Uniform([1, UNIT.into()]);
    let shown = k.b.region(Region::new("shown", RegionKind::Heap, io, DType::F32, shape))?;
    let own =
        if io == Io::Input { k.output("own", 1, UNIT.into())? } else { k.input("own", 1, UNIT.into())? };
    let (started, over) = (k.adds("started", 1)?, k.adds("over", 1)?);
    for r in 0..ranks {
        let (next, before) = ((r + 1) % ranks, (r + ranks - 1) % ranks);
        let (op, src, dst) = match io {
            Io::Input => ("near.get", shown, own),
            Io::InOut => ("near.reduce_put", own, shown),
            _ => ("near.put", own, shown),
        };
        let touch = k.copy(op, (r, 0), "touch", next, (src, 0, 0), (dst, 0, 0), [1, UNIT], 1)?;
        if early {
            k.done(touch, next, over, 0)?;
            let end = k.sync("near.wait", (r, 1), "end", r)?;
            k.wait(end, WaitFor::all(over, 0))?;
        } else {
            let start = k.sync("near.signal", (r, 1), "start", before)?;
            k.done(start, before, started, 0)?;
            k.wait(touch, WaitFor::all(started, 0))?;
        }
    }
    plant(k, FindingKind::OutsideRun, &["touch"])
}

/// All of them.
///
/// # Errors
/// None: the builder does not look at order.
pub fn all() -> Result<Vec<Planted>> {
    let mut all = Vec::new();
    for chunks in 1..=3 {
        for ranks in [1, 2] {
            all.push(missing_wait(ranks, chunks, chunks - 1)?);
        }
        all.push(loaded_instead_of_done(chunks)?);
        all.push(overlapping_writers(chunks, (chunks % 2) as u16)?);
        all.push(slot_without_credit(chunks + 1, 1)?);
        all.push(slot_without_credit(2 * chunks + 1, 2)?);
        all.push(stream_order(0, chunks)?);
        all.push(stream_order(TICKET, chunks)?);
        all.push(late_in_block_order(chunks + 1, true)?);
        all.push(late_in_block_order(chunks + 1, false)?);
    }
    for ranks in [2, 3, 4] {
        all.push(ring("missing credit", ranks, 1, None, false)?);
        all.push(ring("wrong lag", ranks, 1, Some(2), false)?);
        all.push(ring("arrival before data", ranks, 1, Some(1), true)?);
        all.push(reader_beside_writer(ranks)?);
        all.push(unordered_sums(ranks)?);
        all.push(late_before_store(ranks - 1)?);
        all.push(flag_before_data(false, ranks)?);
    }
    for io in [Io::Input, Io::Output, Io::InOut] {
        for ranks in 2..=5 {
            all.push(beside_the_caller(ranks, io, true)?);
            all.push(beside_the_caller(ranks, io, false)?);
        }
    }
    for depth in 1..=3 {
        all.push(one_way("missing credit, one way", depth, None)?);
        all.push(one_way("credit deeper than the copies", depth, Some(depth as u8 + 1))?);
    }
    all.push(flag_before_data(true, 2)?);
    all.push(flag_before_data(true, 4)?);
    Ok(all)
}
