//! Small programs that are right: one idea each, for a few sizes.

use crate::kit::{Case, Kit, TICKET};
use mk_core::{DType, Error, Io, PostTo, Rank, Region, RegionId, RegionKind, Shape, WaitFor};

/// Columns of a unit of a copy.
const UNIT: u32 = 8;

/// On every rank, lane 0 maps chunks into scratch memory and lane 1 maps them on, each by its own word.
///
/// # Errors
/// A world that does not exist.
pub fn producer_consumer(ranks: u16, chunks: u32) -> Result<Case, Error> {
    let mut k = Kit::new(format!("producer_consumer({ranks}, {chunks})"), 1, ranks.into())?;
    let x = k.input("x", chunks.into(), 2)?;
    let mid = k.local("mid", chunks.into(), 2)?;
    let y = k.output("y", chunks.into(), 2)?;
    let ready = k.adds("ready", chunks.into())?;
    for r in 0..ranks {
        for c in 0..chunks {
            let from = k.map((r, 0), &format!("produce {c}"), (x, c, 0), (mid, c, 0), [1, 2])?;
            let to = k.map((r, 1), &format!("consume {c}"), (mid, c, 0), (y, c, 0), [1, 2])?;
            k.done(from, r, ready, c.into())?;
            k.wait(to, WaitFor::all(ready, c.into()))?;
        }
    }
    k.finish()
}

/// As [`producer_consumer`], with one word and prefix waits.
///
/// # Errors
/// A world that does not exist.
pub fn prefix(ranks: u16, chunks: u32) -> Result<Case, Error> {
    let mut k = Kit::new(format!("prefix({ranks}, {chunks})"), 1, ranks.into())?;
    let x = k.input("x", chunks.into(), 2)?;
    let mid = k.local("mid", chunks.into(), 2)?;
    let y = k.output("y", chunks.into(), 2)?;
    let ready = k.adds("ready", 1)?;
    for r in 0..ranks {
        for c in 0..chunks {
            let from = k.map((r, 0), &format!("produce {c}"), (x, c, 0), (mid, c, 0), [1, 2])?;
            let to = k.map((r, 1), &format!("consume {c}"), (mid, c, 0), (y, c, 0), [1, 2])?;
            k.done(from, r, ready, 0)?;
            k.wait(to, WaitFor::upto(ready, 0, from))?;
        }
    }
    k.finish()
}

/// All-gather: every rank puts its rows to every rank and maps what arrives, with a credit of `depth` epochs over
/// `depth` copies. The wait for arrivals is strided: one word a source, one block a source.
///
/// # Errors
/// A world that does not exist.
pub fn all_gather(ranks: u16, depth: u32) -> Result<Case, Error> {
    let mut k = Kit::new(format!("all_gather({ranks}, {depth})"), 1, ranks.into())?;
    let x = k.input("x", 1, UNIT.into())?;
    let all = k.heap("all", ranks.into(), UNIT.into(), depth)?;
    let y = k.output("y", ranks.into(), UNIT.into())?;
    let arrival = k.adds("arrival", ranks.into())?;
    let credit = k.adds("credit", ranks.into())?;
    for r in 0..ranks {
        for peer in 0..ranks {
            let label = format!("put {r} to {peer}");
            let put =
                k.copy("near.put", (r, 0), &label, peer, (x, 0, 0), (all, r.into(), 0), [1, UNIT], 1)?;
            k.wait(put, WaitFor::all(credit, peer.into()).lag(depth as u8))?;
            k.done(put, peer, arrival, r.into())?;
        }
        let use_all = k.walk((r, 0), "use", (all, 0, 0), (y, 0, 0), [ranks.into(), UNIT], 1, r % 2 == 1)?;
        k.wait(use_all, WaitFor::all(arrival, 0).count(ranks.into()).each_block(1))?;
        let free = k.sync("near.wait", (r, 1), "free", r)?;
        let read = k.adds(&format!("read{r}"), 1)?;
        k.loaded(use_all, r, read, 0)?;
        k.wait(free, WaitFor::all(read, 0))?;
        if ranks == 1 {
            k.done(free, 0, credit, r.into())?;
        } else {
            // Two posts a task: one task tells two sources that their rows were read.
            k.done(free, 0, credit, r.into())?;
            k.done(free, 1, credit, r.into())?;
            for pair in (2..ranks).step_by(2) {
                let free = k.sync("near.wait", (r, 1), &format!("free {pair}"), r)?;
                k.wait(free, WaitFor::all(read, 0))?;
                for to in pair..ranks.min(pair + 2) {
                    k.done(free, to, credit, r.into())?;
                }
            }
        }
    }
    k.finish()
}

/// A ring over peers of one node: each rank puts its rows to the next in `units` units, posted one by one; the receiver
/// reads each as it arrives.
///
/// # Errors
/// A world that does not exist.
pub fn ring(ranks: u16, units: u16) -> Result<Case, Error> {
    let mut k = Kit::new(format!("ring({ranks}, {units})"), 1, ranks.into())?;
    let cols = UNIT * u32::from(units);
    let x = k.input("x", 1, cols.into())?;
    let inbox = k.heap("inbox", 1, cols.into(), 1)?;
    let keep = k.heap("keep", 1, cols.into(), 1)?;
    let y = k.output("y", 1, cols.into())?;
    let arrival = k.adds("arrival", units.into())?;
    let credit = k.adds("credit", 1)?;
    let kept = k.adds("kept", units.into())?;
    for r in 0..ranks {
        let next = (r + 1) % ranks;
        let before = (r + ranks - 1) % ranks;
        let put = k.copy("near.put", (r, 0), "send", next, (x, 0, 0), (inbox, 0, 0), [1, cols], units)?;
        k.wait(put, WaitFor::all(credit, 0).lag(1))?;
        k.b.post(put, PostTo::each_block(Rank(next), arrival, 0, 1))?;
        let copy = k.copy("near.put", (r, 1), "keep", r, (inbox, 0, 0), (keep, 0, 0), [1, cols], units)?;
        k.wait(copy, WaitFor::all(arrival, 0).count(units.into()).each_block(1))?;
        k.loaded(copy, before, credit, 0)?;
        k.b.post(copy, PostTo::each_block(Rank(r), kept, 0, 1))?;
        for u in 0..units {
            let col = UNIT * u32::from(u);
            let map = k.map((r, 0), &format!("use {u}"), (keep, 0, col), (y, 0, col), [1, UNIT])?;
            k.wait(map, WaitFor::all(kept, u.into()))?;
        }
    }
    k.finish()
}

/// Two nodes: put with a signal that the network carries, and a credit that a signal task sends back.
///
/// # Errors
/// A world that does not exist.
pub fn far_pairs(per_node: u16, messages: u32) -> Result<Case, Error> {
    let ranks = 2 * per_node;
    let mut k = Kit::new(format!("far_pairs({per_node}, {messages})"), 2, ranks.into())?;
    let x = k.input("x", messages.into(), UNIT.into())?;
    let stage = k.heap("stage", messages.into(), UNIT.into(), 1)?;
    let inbox = k.heap("inbox", messages.into(), UNIT.into(), 1)?;
    let y = k.output("y", messages.into(), UNIT.into())?;
    let staged = k.adds("staged", messages.into())?;
    let arrival = k.sets("arrival", 1)?;
    let read = k.adds("read", 1)?;
    let credit = k.sets("credit", 1)?;
    for r in 0..ranks {
        let peer = (r + per_node) % ranks;
        let free = k.sync("far.signal", (r, 1), "credit", peer)?;
        k.wait(free, WaitFor::all(read, 0))?;
        k.done(free, peer, credit, 0)?;
        for m in 0..messages {
            let map = k.map((r, 0), &format!("stage {m}"), (x, m, 0), (stage, m, 0), [1, UNIT])?;
            k.done(map, r, staged, m.into())?;
            let label = format!("send {m}");
            let put =
                k.copy("far.put_signal", (r, 0), &label, peer, (stage, m, 0), (inbox, m, 0), [1, UNIT], 1)?;
            k.wait(put, WaitFor::all(staged, m.into()))?;
            k.wait(put, WaitFor::all(credit, 0).lag(1))?;
            k.done(put, peer, arrival, 0)?;
            let map = k.map((r, 1), &format!("use {m}"), (inbox, m, 0), (y, m, 0), [1, UNIT])?;
            k.wait(map, WaitFor::all(arrival, 0))?;
            k.loaded(map, r, read, 0)?;
        }
    }
    k.finish()
}

/// A sum in rank order: rank 0 clears, each rank adds its rows to rank 0's, rank 0 takes the sum.
///
/// # Errors
/// A world that does not exist.
pub fn reduce_chain(ranks: u16) -> Result<Case, Error> {
    let mut k = Kit::new(format!("reduce_chain({ranks})"), 1, ranks.into())?;
    let x = k.input("x", 1, UNIT.into())?;
    let sum = k.heap("sum", 1, UNIT.into(), 1)?;
    let y = k.output("y", 1, UNIT.into())?;
    let turn = k.adds("turn", 2)?;
    let clear = k.fill((0, 0), "clear", (sum, 0, 0), [1, UNIT], 0.0)?;
    k.done(clear, 0, turn, 0)?;
    for r in 0..ranks {
        let add =
            k.copy("near.reduce_put", (r, 0), &format!("add {r}"), 0, (x, 0, 0), (sum, 0, 0), [1, UNIT], 1)?;
        k.wait(add, WaitFor::all(turn, 0))?;
        let last = r + 1 == ranks;
        k.done(add, if last { 0 } else { r + 1 }, turn, u64::from(last))?;
        if r > 0 {
            k.map((r, 0), "own", (x, 0, 0), (y, 0, 0), [1, UNIT])?;
        }
    }
    let take = k.map((0, 0), "take", (sum, 0, 0), (y, 0, 0), [1, UNIT])?;
    k.wait(take, WaitFor::all(turn, 1))?;
    k.finish()
}

/// A buffer of two slots that is reused inside an epoch: a slot is stored again only when it has been read.
///
/// # Errors
/// A world that does not exist.
pub fn slots(chunks: u32, slots: u32, ranks: u16) -> Result<Case, Error> {
    let mut k = Kit::new(format!("slots({chunks}, {slots}, {ranks})"), 1, ranks.into())?;
    let x = k.input("x", chunks.into(), 2)?;
    let buffer = k.local("buffer", slots.into(), 2)?;
    let y = k.output("y", chunks.into(), 2)?;
    let full = k.adds("full", chunks.into())?;
    let free = k.adds("free", chunks.into())?;
    for r in 0..ranks {
        for c in 0..chunks {
            let from = k.map((r, 0), &format!("fill {c}"), (x, c, 0), (buffer, c % slots, 0), [1, 2])?;
            k.done(from, r, full, c.into())?;
            if c >= slots {
                k.wait(from, WaitFor::all(free, (c - slots).into()).before_store())?;
            }
            let to = k.map((r, 1), &format!("drain {c}"), (buffer, c % slots, 0), (y, c, 0), [1, 2])?;
            k.wait(to, WaitFor::all(full, c.into()))?;
            k.loaded(to, r, free, c.into())?;
        }
    }
    k.finish()
}

/// Each rank gets the rows of the next one, which may store again only when they have been read.
///
/// # Errors
/// A world that does not exist.
pub fn get_ring(ranks: u16) -> Result<Case, Error> {
    let mut k = Kit::new(format!("get_ring({ranks})"), 1, ranks.into())?;
    let x = k.input("x", 1, UNIT.into())?;
    let show = k.heap("show", 1, UNIT.into(), 1)?;
    let mine = k.heap("mine", 1, UNIT.into(), 1)?;
    let y = k.output("y", 1, UNIT.into())?;
    for r in 0..ranks {
        let map = k.map((r, 0), "show", (x, 0, 0), (show, 0, 0), [1, UNIT])?;
        let before = (r + ranks - 1) % ranks;
        let get = k.copy("near.get", (before, 0), "get", r, (show, 0, 0), (mine, 0, 0), [1, UNIT], 1)?;
        k.b.edge(&[map], get)?;
        k.b.credit(&[get], map)?;
        let take = k.map((before, 1), "take", (mine, 0, 0), (y, 0, 0), [1, UNIT])?;
        k.b.edge(&[get], take)?;
    }
    k.finish()
}

/// Halo exchange: each rank sends its rows to both neighbours and adds up what it gets, by edges and credits alone.
///
/// # Errors
/// A world that does not exist.
pub fn halo(ranks: u16) -> Result<Case, Error> {
    let mut k = Kit::new(format!("halo({ranks})"), 1, ranks.into())?;
    let x = k.input("x", 1, UNIT.into())?;
    let edges = k.heap("halo", 2, UNIT.into(), 2)?;
    let y = k.output("y", 1, UNIT.into())?;
    for r in 0..ranks {
        let (left, right) = ((r + ranks - 1) % ranks, (r + 1) % ranks);
        let a = k.copy("near.put", (left, 0), "right", r, (x, 0, 0), (edges, 0, 0), [1, UNIT], 1)?;
        let b = k.copy("near.put", (right, 1), "left", r, (x, 0, 0), (edges, 1, 0), [1, UNIT], 1)?;
        let sum = k.add((r, 0), "sum", (edges, 0, 0), (edges, 1, 0), (y, 0, 0), [1, UNIT])?;
        k.b.edge(&[a, b], sum)?;
        let (free_a, free_b) = (k.adds(&format!("a{r}"), 1)?, k.adds(&format!("b{r}"), 1)?);
        k.loaded(sum, left, free_a, 0)?;
        k.loaded(sum, right, free_b, 0)?;
        k.wait(a, WaitFor::all(free_a, 0).lag(2))?;
        k.wait(b, WaitFor::all(free_b, 0).lag(2))?;
    }
    k.finish()
}

/// A ticket queue of pairs: the first of each comes earlier in the queue and posts to the second.
///
/// # Errors
/// A world that does not exist.
pub fn tickets(ranks: u16, pairs: u32) -> Result<Case, Error> {
    let mut k = Kit::new(format!("tickets({ranks}, {pairs})"), 1, ranks.into())?;
    let x = k.input("x", pairs.into(), 2)?;
    let mid = k.local("mid", pairs.into(), 2)?;
    let y = k.output("y", pairs.into(), 2)?;
    let ready = k.adds("ready", pairs.into())?;
    for r in 0..ranks {
        k.b.lanes(Rank(r), 2);
        for p in 0..pairs {
            let first = k.map((r, TICKET), &format!("first {p}"), (x, p, 0), (mid, p, 0), [1, 2])?;
            k.done(first, r, ready, p.into())?;
        }
        for p in 0..pairs {
            let second = k.map((r, TICKET), &format!("second {p}"), (mid, p, 0), (y, p, 0), [1, 2])?;
            k.wait(second, WaitFor::all(ready, p.into()))?;
        }
    }
    k.finish()
}

/// Parts are summed in place in a fixed order, each accumulation after the one before it.
///
/// # Errors
/// A world that does not exist.
pub fn accumulate(ranks: u16, parts: u32) -> Result<Case, Error> {
    let mut k = Kit::new(format!("accumulate({ranks}, {parts})"), 1, ranks.into())?;
    let x = k.input("x", parts.into(), 2)?;
    let sum = k.local("sum", 1, 2)?;
    let y = k.output("y", 1, 2)?;
    for r in 0..ranks {
        let mut last = k.fill((r, 0), "clear", (sum, 0, 0), [1, 2], 0.0)?;
        for p in 0..parts {
            let add =
                k.accumulate((r, (p % 2) as u16), &format!("add {p}"), (x, p, 0), (sum, 0, 0), [1, 2])?;
            k.b.edge(&[last], add)?;
            last = add;
        }
        let take = k.map((r, 0), "take", (sum, 0, 0), (y, 0, 0), [1, 2])?;
        k.b.edge(&[last], take)?;
    }
    k.finish()
}

/// A walk over blocks that arrive one by one, from `blocks` producers.
///
/// # Errors
/// A world that does not exist.
pub fn blocks(blocks: u32, every: u16, walked: bool) -> Result<Case, Error> {
    let mut k = Kit::new(format!("blocks({blocks}, {every}, {walked})"), 1, 1)?;
    let x = k.input("x", blocks.into(), 2)?;
    let mid = k.local("mid", blocks.into(), 2)?;
    let y = k.output("y", blocks.into(), 2)?;
    let words = blocks.div_ceil(every.into());
    let ready = k.adds("ready", words.into())?;
    for w in 0..words {
        let (row, rows) = (w * u32::from(every), u32::from(every).min(blocks - w * u32::from(every)));
        let from =
            k.map((0, (w % 2) as u16), &format!("produce {w}"), (x, row, 0), (mid, row, 0), [rows, 2])?;
        k.done(from, 0, ready, w.into())?;
    }
    let to = k.walk((0, 2), "walk", (mid, 0, 0), (y, 0, 0), [blocks, 2], 1, walked)?;
    k.wait(to, WaitFor::all(ready, 0).count(words.into()).each_block(every.into()))?;
    k.finish()
}

/// Messages to the next rank, each with an arrival word and a credit of `depth` epochs of its own.
///
/// # Errors
/// A world that does not exist.
pub fn credits(ranks: u16, messages: u32, depth: u32) -> Result<Case, Error> {
    let mut k = Kit::new(format!("credits({ranks}, {messages}, {depth})"), 1, ranks.into())?;
    let x = k.input("x", messages.into(), UNIT.into())?;
    let inbox = k.heap("inbox", messages.into(), UNIT.into(), depth)?;
    let y = k.output("y", messages.into(), UNIT.into())?;
    let arrival = k.adds("arrival", messages.into())?;
    let credit = k.adds("credit", messages.into())?;
    for r in 0..ranks {
        let (next, before) = ((r + 1) % ranks, (r + ranks - 1) % ranks);
        for m in 0..messages {
            let put = k.copy(
                "near.put",
                (r, 0),
                &format!("put {m}"),
                next,
                (x, m, 0),
                (inbox, m, 0),
                [1, UNIT],
                1,
            )?;
            k.wait(put, WaitFor::all(credit, m.into()).lag(depth as u8))?;
            k.done(put, next, arrival, m.into())?;
            let map = k.map((r, 0), &format!("use {m}"), (inbox, m, 0), (y, m, 0), [1, UNIT])?;
            k.wait(map, WaitFor::all(arrival, m.into()))?;
            k.loaded(map, before, credit, m.into())?;
        }
    }
    k.finish()
}

/// A region of the caller's in symmetric memory.
fn shown(k: &mut Kit, name: &str, io: Io) -> Result<RegionId, Error> {
    k.b.region(Region::new(name, RegionKind::Heap, io, DType::F32, Shape::Uniform([1, UNIT.into()])))
}

/// Each rank gets what the caller gave the next one: only when that rank's run has started, and the run does not end
/// before the rows have been read.
///
/// # Errors
/// A world that does not exist.
pub fn get_from_caller(ranks: u16) -> Result<Case, Error> {
    let mut k = Kit::new(format!("get_from_caller({ranks})"), 1, ranks.into())?;
    let x = shown(&mut k, "x", Io::Input)?;
    let y = k.output("y", 1, UNIT.into())?;
    let (started, read) = (k.adds("started", 1)?, k.adds("read", 1)?);
    for r in 0..ranks {
        let (next, before) = ((r + 1) % ranks, (r + ranks - 1) % ranks);
        let start = k.sync("near.signal", (r, 1), "start", before)?;
        k.done(start, before, started, 0)?;
        let get = k.copy("near.get", (r, 0), "get", next, (x, 0, 0), (y, 0, 0), [1, UNIT], 1)?;
        k.wait(get, WaitFor::all(started, 0))?;
        k.done(get, next, read, 0)?;
        let end = k.sync("near.wait", (r, 1), "end", r)?;
        k.wait(end, WaitFor::all(read, 0))?;
    }
    k.finish()
}

/// Each rank puts into what the next one's caller gets (`io` is `Output`, or `InOut`: then it adds).
///
/// # Errors
/// A world that does not exist.
pub fn put_to_caller(ranks: u16, io: Io) -> Result<Case, Error> {
    let mut k = Kit::new(format!("put_to_caller({ranks}, {io:?})"), 1, ranks.into())?;
    let x = k.input("x", 1, UNIT.into())?;
    let y = shown(&mut k, "y", io)?;
    let (started, arrival) = (k.adds("started", 1)?, k.adds("arrival", 1)?);
    let op = if io == Io::InOut { "near.reduce_put" } else { "near.put" };
    for r in 0..ranks {
        let (next, before) = ((r + 1) % ranks, (r + ranks - 1) % ranks);
        let start = k.sync("near.signal", (r, 1), "start", before)?;
        k.done(start, before, started, 0)?;
        let put = k.copy(op, (r, 0), "put", next, (x, 0, 0), (y, 0, 0), [1, UNIT], 1)?;
        k.wait(put, WaitFor::all(started, 0))?;
        k.done(put, next, arrival, 0)?;
        let end = k.sync("near.wait", (r, 1), "end", r)?;
        k.wait(end, WaitFor::all(arrival, 0))?;
    }
    k.finish()
}

/// All of them, for several sizes each.
///
/// # Errors
/// None: the sizes are legal.
pub fn all() -> Result<Vec<Case>, Error> {
    let mut cases = Vec::new();
    for chunks in [1, 2, 3, 4] {
        cases.push(producer_consumer(1 + chunks as u16 % 2, chunks)?);
        cases.push(prefix(1 + chunks as u16 % 2, chunks)?);
        cases.push(tickets(1 + chunks as u16 % 2, chunks)?);
        cases.push(accumulate(1 + chunks as u16 % 2, chunks)?);
    }
    for ranks in [1, 2, 3] {
        for depth in [1, 2] {
            cases.push(all_gather(ranks, depth)?);
        }
        cases.push(get_from_caller(ranks + 1)?);
        cases.push(put_to_caller(ranks + 1, Io::Output)?);
        cases.push(put_to_caller(ranks + 1, Io::InOut)?);
        cases.push(get_ring(ranks + 1)?);
        cases.push(halo(ranks + 1)?);
        cases.push(reduce_chain(ranks + 1)?);
    }
    for (ranks, units) in [(2, 1), (2, 2), (3, 2), (2, 3)] {
        cases.push(ring(ranks, units)?);
    }
    for (per_node, messages) in [(1, 1), (1, 2), (1, 3), (2, 1)] {
        cases.push(far_pairs(per_node, messages)?);
    }
    for (chunks, n) in [(2, 1), (3, 1), (4, 2), (5, 3)] {
        cases.push(slots(chunks, n, 1)?);
        cases.push(slots(chunks, n, 2)?);
    }
    for ranks in [2, 3] {
        cases.push(credits(ranks + 2, 2, 1)?);
        for (messages, depth) in [(2, 1), (3, 1), (4, 1), (2, 2), (3, 2), (4, 2), (2, 3), (3, 3)] {
            cases.push(credits(ranks, messages, depth)?);
        }
    }
    for (n, every) in [(2, 1), (3, 1), (4, 2), (5, 2)] {
        cases.push(blocks(n, every, false)?);
        cases.push(blocks(n, every, true)?);
    }
    Ok(cases)
}
