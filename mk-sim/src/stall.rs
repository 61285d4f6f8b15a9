//! When nothing goes on any more: who waits, and which fault that is.

use crate::checks::deadlock::{self, Picture, Stuck, TaskAt};
use crate::engine::Engine;
use crate::plan::waits;
use crate::unit::{NEVER, Role, SLOTS};
use mk_core::{Fault, Rank, Reason, WaitAt};

/// A role that waits.
type Waiting = (u64, usize, usize, Role);

/// All roles that wait: since when, unit, slot, role.
fn waiting_roles<'e>(engine: &'e Engine<'_>) -> impl Iterator<Item = Waiting> + 'e {
    engine.slots.iter().enumerate().flat_map(|(at, slot)| {
        let role = |role: Role| (slot.since[role as usize], at / SLOTS, at % SLOTS, role);
        [role(Role::Load), role(Role::Store)].into_iter().filter(move |w| w.0 != NEVER && !slot.done)
    })
}

fn alive(engine: &Engine<'_>, u: usize) -> bool {
    !engine.ranks[engine.units[u].rank as usize].dead
}

/// The role that has waited longest.
pub(crate) fn longest(engine: &Engine<'_>) -> Option<Waiting> {
    waiting_roles(engine).filter(|w| alive(engine, w.1)).min_by_key(|w| (w.0, w.1))
}

/// The word that a role waits for: its name's place in the program, its place in the session, and what it should be.
fn unmet(engine: &Engine<'_>, u: usize, s: usize, role: Role) -> Option<(u32, usize, u64)> {
    let (plan, task, _) = engine.task(u, s);
    let (slot, rank) = (&engine.slots[u * SLOTS + s], Rank(engine.units[u].rank));
    waits(task).filter(|(_, w)| (w.at() == WaitAt::Store) == (role == Role::Store)).find_map(|(i, w)| {
        let target = slot.target[i];
        let due = if role == Role::Load { w.met_before_block(slot.loaded) } else { w.count.into() };
        (0..due).find_map(|j| {
            let word = w.word + j * u32::from(w.stride);
            let at = plan.words.at(rank, w.word, w.clock) + (word - w.word) as usize;
            (engine.words.values[at] < target).then_some((word, at, target))
        })
    })
}

/// The fault of a role that waits.
pub(crate) fn waiting(engine: &Engine<'_>, u: usize, s: usize, role: Role, reason: Reason) -> Fault {
    let (plan, ..) = engine.task(u, s);
    let rank = Rank(engine.units[u].rank);
    let word = unmet(engine, u, s, role);
    Fault {
        rank,
        task: engine.task_name(u, s),
        signal: word.map_or(String::new(), |(word, ..)| plan.program().word_name(rank, word)),
        expected: word.map_or(0, |w| w.2),
        seen: word.map_or(0, |w| engine.words.values[w.1]),
        epoch: engine.job_of(u).clocks[0],
        reason,
    }
}

/// The survivors miss a rank.
pub(crate) fn lost(engine: &Engine<'_>, lost: Rank) -> Fault {
    let picture = picture(engine);
    // Rather a task that the lost rank owes a post than just any.
    let survivor = |w: &Stuck| picture.rank(&w.task) != lost;
    let owes = |w: &Stuck| picture.poster(w).is_some_and(|p| picture.rank(&p) == lost);
    let owed = picture.stuck.iter().position(|w| survivor(w) && owes(w));
    let any = longest(engine).map(|(_, u, s, role)| (u, s, role));
    let seen = owed.map(|i| picture.roles[i]).or(any);
    match seen {
        Some((u, s, role)) => waiting(engine, u, s, role, Reason::PeerLost(lost)),
        None => Fault {
            rank: (0..engine.ranks.len()).map(|r| Rank(r as u16)).find(|r| *r != lost).unwrap_or(lost),
            task: String::new(),
            signal: String::new(),
            expected: 0,
            seen: 0,
            epoch: engine.jobs[engine.ranks[lost.index()].job].clocks[0],
            reason: Reason::PeerLost(lost),
        },
    }
}

/// Why a run stands still.
pub(crate) fn explain(engine: &mut Engine<'_>) -> Fault {
    let Some((since, u, s, role)) = longest(engine) else {
        // Nobody waits and not all is done: only a dead rank does that, and its own event says so.
        let rank = engine.ranks.iter().position(|r| r.job < engine.jobs.len()).unwrap_or(0);
        return lost(engine, Rank(rank as u16));
    };
    if engine.setup.lost
        && let Some(fault) = lost_post(engine)
    {
        return fault;
    }
    if !engine.setup.deadlock {
        // Without the detector, the wait runs into its bound like any other.
        engine.now = engine.now.max(since.saturating_add(engine.setup.bound));
        return waiting(engine, u, s, role, Reason::Timeout(engine.setup.bound / 1_000_000));
    }
    let picture = picture(engine);
    let (chain, last) = deadlock::chain(&picture);
    let (u, s, role) = picture.roles[last];
    waiting(engine, u, s, role, Reason::Deadlock(chain))
}

/// A role that waits for a post which was made and has not arrived, now that nothing is under way.
fn lost_post(engine: &Engine<'_>) -> Option<Fault> {
    let picture = picture(engine);
    picture.stuck.iter().zip(&picture.roles).find_map(|(stuck, &(u, s, role))| {
        let poster = picture.lost_poster(stuck)?;
        let fault = waiting(engine, u, s, role, Reason::LostPost);
        Some(Fault { task: picture.name(&poster), ..fault })
    })
}

fn picture<'e>(engine: &'e Engine<'_>) -> Picture<'e> {
    let jobs = engine.jobs.iter().map(|j| (j.plan, j.first_post)).collect();
    let mut picture = Picture::new(&engine.plans, jobs, &engine.cursors);
    for (_, u, s, role) in waiting_roles(engine) {
        let (plan, ..) = engine.task(u, s);
        let rank = Rank(engine.units[u].rank);
        let Some((word, at, target)) = unmet(engine, u, s, role) else { continue };
        let job = engine.ranks[rank.index()].job;
        picture.stuck.push(Stuck {
            task: TaskAt { job, task: engine.slots[u * SLOTS + s].task },
            stream: engine.units[u].stream as usize,
            word: at,
            name: plan.program().word_name(rank, word),
            target,
            seen: engine.words.values[at],
        });
        picture.roles.push((u, s, role));
    }
    let ranks: Vec<usize> = engine.ranks.iter().map(|r| r.job).collect();
    picture.find_posters(&engine.log, &ranks);
    picture
}
