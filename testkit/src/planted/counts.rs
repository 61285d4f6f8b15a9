//! Posts that are lost, too many, or mistaken for those of another epoch.

use super::{Planted, plant};
use crate::kit::Kit;
use crate::{mutate, pool};
use mk_core::{Error, WaitFor, verify::FindingKind};

type Result<T = Planted> = std::result::Result<T, Error>;

/// Two or more ranks post to one word; a rank that is an epoch ahead stands in for one that is behind.
fn alias(ranks: u16, depth: u32) -> Result {
    let mut k = Kit::new(format!("two ranks, one word({ranks}, {depth})"), 1, ranks.into())?;
    let x = k.input("x", 1, 8)?;
    let inbox = k.heap("inbox", ranks.into(), 8, depth)?;
    let y = k.output("y", ranks.into(), 8)?;
    let arrival = k.adds("arrival", 1)?;
    let credit = k.adds("credit", 1)?;
    k.fill((0, 1), "own", (inbox, 0, 0), [1, 8], 0.5)?;
    let use_all = k.map((0, 0), "use", (inbox, 1, 0), (y, 1, 0), [u32::from(ranks) - 1, 8])?;
    k.fill((0, 0), "first row", (y, 0, 0), [1, 8], 1.0)?;
    k.wait(use_all, WaitFor::all(arrival, 0))?;
    let read = k.adds("read", 1)?;
    k.loaded(use_all, 0, read, 0)?;
    for r in 1..ranks {
        let put =
            k.copy("near.put", (r, 0), &format!("put {r}"), 0, (x, 0, 0), (inbox, r.into(), 0), [1, 8], 1)?;
        k.wait(put, WaitFor::all(credit, 0).lag(depth as u8))?;
        k.done(put, 0, arrival, 0)?;
        k.fill((r, 0), "others", (y, 0, 0), [ranks.into(), 8], 2.0)?;
        let free = k.sync("near.wait", (0, 0), &format!("free {r}"), 0)?;
        k.wait(free, WaitFor::all(read, 0))?;
        k.done(free, r, credit, 0)?;
    }
    plant(k, FindingKind::EpochAlias, &["put"])
}

/// Only signals: ranks post to one word of rank 0 and nothing holds them back.
fn alias_of_signals(ranks: u16, posts: u16) -> Result {
    let mut k = Kit::new(format!("signals of several ranks in one word({ranks}, {posts})"), 1, ranks.into())?;
    let all = k.adds("all", 1)?;
    let join = k.sync("near.wait", (0, 0), "join", 0)?;
    k.wait(join, WaitFor::all(all, 0))?;
    for r in 1..ranks {
        for i in 0..posts {
            let post = k.sync("near.signal", (r, 0), &format!("post {i} of {r}"), 0)?;
            k.done(post, 0, all, 0)?;
        }
    }
    plant(k, FindingKind::EpochAlias, &["post"])
}

/// A finished program of the pool whose records no longer fit: the named kind of mutant, as it is.
fn misfits(kind: mutate::Kind, tag: &str) -> Result<Vec<Planted>> {
    let mut planted = Vec::new();
    for case in
        [pool::producer_consumer(1, 3)?, pool::credits(2, 2, 1)?, pool::far_pairs(2, 1)?, pool::ring(2, 2)?]
    {
        for m in mutate::all(&case.program, &case.registry, kind).into_iter().filter(|m| !m.retotalled) {
            let name = format!("{tag}: {} of {}", m.what, case.name);
            let case = crate::kit::Case { name, program: m.program, registry: case.registry.clone() };
            planted.push(Planted { case, kind: FindingKind::Threshold, tasks: vec![] });
        }
    }
    Ok(planted)
}

/// A post too few: one of several posts to a word is left out, and the records still count it.
fn lost(posts: u32, which: u32) -> Result {
    let mut k = Kit::new(format!("lost post({posts}, {which})"), 1, 1)?;
    let (x, mid) = (k.input("x", posts.into(), 2)?, k.local("mid", posts.into(), 2)?);
    let y = k.output("y", posts.into(), 2)?;
    let ready = k.adds("ready", 1)?;
    for i in 0..posts {
        let from = k.map((0, 0), &format!("produce {i}"), (x, i, 0), (mid, i, 0), [1, 2])?;
        k.done(from, 0, ready, 0)?;
    }
    let to = k.map((0, 1), "consume", (mid, 0, 0), (y, 0, 0), [posts, 2])?;
    k.wait(to, WaitFor::all(ready, 0))?;
    let mut planted = plant(k, FindingKind::Threshold, &["produce"])?;
    planted.case.program.tasks[which as usize].posts = Default::default();
    Ok(planted)
}

/// A post too many: a task without part in it posts to the word, and the records do not count it.
fn surplus(posts: u32) -> Result {
    let mut k = Kit::new(format!("surplus post({posts})"), 1, 1)?;
    let (x, mid) = (k.input("x", posts.into(), 2)?, k.local("mid", posts.into(), 2)?);
    let (y, z) = (k.output("y", posts.into(), 2)?, k.output("z", 1, 2)?);
    let ready = k.adds("ready", 1)?;
    for i in 0..posts {
        let from = k.map((0, 0), &format!("produce {i}"), (x, i, 0), (mid, i, 0), [1, 2])?;
        k.done(from, 0, ready, 0)?;
    }
    k.map((0, 0), "bystander", (x, 0, 0), (z, 0, 0), [1, 2])?;
    let to = k.map((0, 1), "consume", (mid, 0, 0), (y, 0, 0), [posts, 2])?;
    k.wait(to, WaitFor::all(ready, 0))?;
    let mut planted = plant(k, FindingKind::Threshold, &["produce"])?;
    planted.case.program.tasks[posts as usize].posts = planted.case.program.tasks[0].posts;
    Ok(planted)
}

/// All of them.
///
/// # Errors
/// None.
pub fn all() -> Result<Vec<Planted>> {
    let mut all = Vec::new();
    for ranks in 3..=7 {
        for posts in 1..=3 {
            all.push(alias_of_signals(ranks, posts)?);
        }
        all.push(alias(ranks, 2)?);
        all.push(alias(ranks, 3)?);
    }
    for posts in 2..=5 {
        for which in 0..posts {
            all.push(lost(posts, which)?);
        }
        all.push(surplus(posts)?);
    }
    all.extend(misfits(mutate::Kind::RaiseThreshold, "threshold too high")?);
    all.extend(misfits(mutate::Kind::LowerThreshold, "threshold too low")?);
    Ok(all)
}
