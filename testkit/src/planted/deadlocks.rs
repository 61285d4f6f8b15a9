//! Waits that are never met.

use super::{Planted, plant};
use crate::kit::{Kit, TICKET};
use mk_core::{Error, Rank, WaitFor, verify::FindingKind::Deadlock};

type Result<T = Planted> = std::result::Result<T, Error>;

/// `n` tasks, each on the lane and rank that `place` gives, each waiting for the one before.
fn cycle(name: &str, ranks: u16, n: u16, place: impl Fn(u16) -> (u16, u16)) -> Result {
    let mut k = Kit::new(format!("{name}({n})"), 1, ranks.into())?;
    for r in 0..ranks {
        k.b.lanes(Rank(r), 1);
    }
    let go = k.adds("go", n.into())?;
    let mut tasks = Vec::new();
    for i in 0..n {
        let (rank, lane) = place(i);
        tasks.push(k.sync("near.wait", (rank, lane), &format!("link {i}"), rank)?);
    }
    for i in 0..n {
        let next = (i + 1) % n;
        k.wait(tasks[i as usize], WaitFor::all(go, i.into()))?;
        k.done(tasks[i as usize], place(next).0, go, next.into())?;
    }
    plant(k, Deadlock, &["link"])
}

/// A stream whose first task waits for its last.
fn later_in_the_stream(between: u32, lane: u16) -> Result {
    let what = if lane == TICKET { "ticket queue" } else { "stream" };
    let mut k = Kit::new(format!("waits for a later task of its {what}({between})"), 1, 1)?;
    k.b.lanes(Rank(0), 1);
    let (x, y) = (k.input("x", 1 + u64::from(between), 2)?, k.output("y", 1 + u64::from(between), 2)?);
    let late = k.adds("late", 1)?;
    let first = k.map((0, lane), "first", (x, 0, 0), (y, 0, 0), [1, 2])?;
    k.wait(first, WaitFor::all(late, 0))?;
    let mut last = first;
    for b in 0..between {
        last = k.map((0, lane), &format!("later {b}"), (x, b + 1, 0), (y, b + 1, 0), [1, 2])?;
    }
    k.done(last, 0, late, 0)?;
    plant(k, Deadlock, &["first"])
}

/// Two streams of a lane, each of whose first task waits for the other's second.
fn inversion(extra: u32) -> Result {
    let mut k = Kit::new(format!("compute and comm wait for each other({extra})"), 1, 1)?;
    let n = 2 + extra;
    let (x, y) = (k.input("x", n.into(), 2)?, k.output("y", n.into(), 2)?);
    let (a, b) = (k.adds("a", 1)?, k.adds("b", 1)?);
    let compute = k.map((0, 0), "compute first", (x, 0, 0), (y, 0, 0), [1, 2])?;
    k.wait(compute, WaitFor::all(a, 0))?;
    for i in 0..=extra {
        let task = k.map((0, 0), &format!("compute later {i}"), (x, i + 1, 0), (y, i + 1, 0), [1, 2])?;
        if i == extra {
            k.done(task, 0, b, 0)?;
        }
    }
    let comm = k.sync("near.wait", (0, 0), "comm first", 0)?;
    k.wait(comm, WaitFor::all(b, 0))?;
    let post = k.sync("near.signal", (0, 0), "comm later", 0)?;
    k.done(post, 0, a, 0)?;
    plant(k, Deadlock, &["compute first", "comm first"])
}

/// A prefix of `upto` posts, of which the last comes from a task that waits for the waiter.
fn prefix_too_long(before: u32) -> Result {
    let mut k = Kit::new(format!("prefix beyond what is posted before({before})"), 1, 1)?;
    let rows = u64::from(before) + 2;
    let (x, y) = (k.input("x", rows, 2)?, k.output("y", rows, 2)?);
    let (ready, back) = (k.adds("ready", 1)?, k.adds("back", 1)?);
    for i in 0..before {
        let task = k.map((0, 0), &format!("produce {i}"), (x, i, 0), (y, i, 0), [1, 2])?;
        k.done(task, 0, ready, 0)?;
    }
    let last = k.map((0, 0), "produce last", (x, before, 0), (y, before, 0), [1, 2])?;
    k.done(last, 0, ready, 0)?;
    k.wait(last, WaitFor::all(back, 0))?;
    let consume = k.map((0, 1), "consume", (x, before + 1, 0), (y, before + 1, 0), [1, 2])?;
    k.wait(consume, WaitFor::upto(ready, 0, last))?;
    k.done(consume, 0, back, 0)?;
    plant(k, Deadlock, &["produce last", "consume"])
}

/// A ring whose credits are for this epoch: the first message waits for its own receipt.
fn credit_of_this_epoch(ranks: u16) -> Result {
    let mut k = Kit::new(format!("credit without lag({ranks})"), 1, ranks.into())?;
    let (x, y) = (k.input("x", 1, 8)?, k.output("y", 1, 8)?);
    let inbox = k.heap("inbox", 1, 8, 1)?;
    let (arrival, credit) = (k.adds("arrival", 1)?, k.adds("credit", 1)?);
    for r in 0..ranks {
        let (next, before) = ((r + 1) % ranks, (r + ranks - 1) % ranks);
        let put = k.copy("near.put", (r, 0), "put", next, (x, 0, 0), (inbox, 0, 0), [1, 8], 1)?;
        k.wait(put, WaitFor::all(credit, 0))?;
        k.done(put, next, arrival, 0)?;
        let map = k.map((r, 0), "use", (inbox, 0, 0), (y, 0, 0), [1, 8])?;
        k.wait(map, WaitFor::all(arrival, 0))?;
        k.loaded(map, before, credit, 0)?;
    }
    plant(k, Deadlock, &["put", "use"])
}

/// All of them.
///
/// # Errors
/// None: the builder does not look at order.
pub fn all() -> Result<Vec<Planted>> {
    let mut all = Vec::new();
    for n in [1, 2, 3, 5, 8] {
        all.push(cycle("cycle over lanes", 1, n, |i| (0, i))?);
        all.push(cycle("cycle in a ticket queue", 1, n, |_| (0, TICKET))?);
    }
    for n in [2, 3, 5, 8] {
        all.push(cycle("cycle over ranks", n, n, |i| (i, 0))?);
        all.push(cycle("cycle over ranks and lanes", 2, n, |i| (i % 2, i / 2))?);
    }
    for n in 1..=3 {
        all.push(later_in_the_stream(n, 0)?);
        all.push(later_in_the_stream(n, TICKET)?);
        all.push(inversion(n - 1)?);
        all.push(prefix_too_long(n - 1)?);
        all.push(credit_of_this_epoch(n as u16)?);
    }
    Ok(all)
}
