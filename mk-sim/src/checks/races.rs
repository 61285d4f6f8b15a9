//! Races: two accesses of the same bytes, one of them a write, without an order between them.
//!
//! The order is that of this run: a post comes after what it covered when it was made, and a wait after the posts that
//! brought its word to where it had to be. Which rectangles overlap does not depend on the run, so that is found once
//! for all epochs; and an access of epoch `e` that is ordered before one of epoch `e` or `e + 1` is ordered before all
//! later ones of the same task, by their rank's run boundary.

use super::join::Join;
use super::past::{Answer, End, Past};
use super::run::{Goal, Need, Run};
use super::{Item, Log};
use crate::plan::{BY_BLOCK, Plan};
use mk_core::{Fault, Mode, Phase, PostAt, Rank, Reason, Rect, Region, TaskId, Wait, WaitAt, Walk};

pub(crate) use super::run::Epoch;

/// What was found.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) faults: Vec<Fault>,
    /// Pairs that are ordered, and pairs of which that could not be told.
    pub(crate) ordered: u64,
    pub(crate) unknown: u64,
    /// Steps of the searches for orders that no single post tells.
    pub(crate) steps: u64,
}

/// More than this many races help nobody.
const KEPT: usize = 16;

/// Looks at a run.
pub(crate) fn check(plans: &[&Plan], epochs: &[Epoch], log: &Log) -> Outcome {
    let mut races = Races { run: Run::new(plans, epochs, log), past: None, out: Outcome::default() };
    for p in 0..plans.len() {
        for r in 0..plans[p].items.len() {
            races.within(p, r);
        }
        for q in 0..plans.len() {
            if p != q {
                races.across(p, q);
            }
        }
    }
    races.out.steps = races.past.map_or(0, |past| past.steps);
    races.out
}

/// An access in an epoch.
#[derive(Clone, Copy)]
struct At<'a> {
    item: &'a Item,
    epoch: usize,
}

struct Races<'a> {
    run: Run<'a>,
    /// Built when it is first needed: most orders are told directly.
    past: Option<Past>,
    out: Outcome,
}

impl<'a> Races<'a> {
    fn full(&self) -> bool {
        self.out.faults.len() >= KEPT
    }

    /// Accesses of one program to one of its regions.
    fn within(&mut self, p: usize, r: usize) {
        let plan: &'a Plan = self.run.plans[p];
        let region = &plan.program().regions[r];
        let epochs = self.run.epochs_of(p);
        if epochs.is_empty() {
            return;
        }
        for (rank, items) in plan.items[r].iter().enumerate() {
            let writes = Join::new(writes(items));
            if writes.is_empty() || self.full() {
                continue;
            }
            let disjoint = writes.is_disjoint();
            for (i, x) in items.iter().enumerate().filter(|(_, x)| !(disjoint && x.mode.writes())) {
                writes.each(&x.rect, |w| {
                    // Two writes are judged once.
                    let judged = !x.mode.writes() || (w as usize) < i;
                    if judged && items[w as usize].task != x.task && !self.full() {
                        self.judge(region, Rank(rank as u16), &epochs, &items[w as usize], x);
                    }
                });
            }
        }
    }

    /// Accesses of two programs to the regions that they share, each epoch of `p` and the next one of `q`.
    fn across(&mut self, p: usize, q: usize) {
        let run = &self.run;
        let (a, b): (&'a Plan, &'a Plan) = (run.plans[p], run.plans[q]);
        let next = |&e: &usize| Some((e, (e + 1..run.epochs.len()).find(|&n| run.epochs[n].plan == q)?));
        let pairs: Vec<(usize, usize)> = run.epochs_of(p).iter().filter_map(next).collect();
        for (i, region) in a.program().regions.iter().enumerate().filter(|(_, r)| r.shared) {
            let Some(j) = b.regions.iter().position(|m| *m == a.regions[i]) else { continue };
            for rank in 0..a.items[i].len() {
                self.meet(region, Rank(rank as u16), &pairs, &a.items[i][rank], &b.items[j][rank]);
            }
        }
    }

    fn meet(&mut self, region: &Region, rank: Rank, pairs: &[(usize, usize)], a: &'a [Item], b: &'a [Item]) {
        let (writes_a, writes_b) = (Join::new(writes(a)), Join::new(writes(b)));
        for x in a {
            writes_b.each(&x.rect, |w| self.judge_across(region, rank, pairs, x, &b[w as usize]));
        }
        for y in b.iter().filter(|y| !y.mode.writes()) {
            writes_a.each(&y.rect, |w| self.judge_across(region, rank, pairs, &a[w as usize], y));
        }
    }

    fn judge_across(
        &mut self,
        region: &Region,
        rank: Rank,
        pairs: &[(usize, usize)],
        x: &'a Item,
        y: &'a Item,
    ) {
        let Some(both) = x.rect.intersect(&y.rect) else { return };
        for &(e, f) in pairs {
            let answer = self.before(At { item: x, epoch: e }, At { item: y, epoch: f }, &both);
            self.record(region, rank, answer, At { item: x, epoch: e }, At { item: y, epoch: f });
        }
    }

    /// Two overlapping accesses of one program, in all of its epochs.
    fn judge(&mut self, region: &Region, rank: Rank, epochs: &[usize], w: &'a Item, x: &'a Item) {
        let Some(both) = w.rect.intersect(&x.rect) else { return };
        let depth = region.depth.max(1) as usize;
        for (n, &e) in epochs.iter().enumerate() {
            let (a, b) = (At { item: w, epoch: e }, At { item: x, epoch: e });
            let (answer, swapped) = self.either(a, b, &both);
            self.record(region, rank, answer, a, b);
            // What came second must end before what came first begins again, in the epoch that uses the same copy.
            let (first, second) = if swapped { (x, w) } else { (w, x) };
            if let Some(&f) = epochs.get(n + depth).filter(|_| answer == Answer::Yes) {
                let (a, b) = (At { item: second, epoch: e }, At { item: first, epoch: f });
                let answer = self.before(a, b, &both);
                self.record(region, rank, answer, a, b);
            }
            if self.full() {
                return;
            }
        }
    }

    /// Whether they are ordered, and whether `b` comes first. What is told directly is asked first.
    fn either(&mut self, a: At<'a>, b: At<'a>, both: &Rect) -> (Answer, bool) {
        if self.direct(a, b, both) {
            return (Answer::Yes, false);
        }
        if self.direct(b, a, both) {
            return (Answer::Yes, true);
        }
        let mut answers = (Answer::Unknown, Answer::Unknown);
        // What lies near in one direction spares the far look in the other.
        for far in [false, true] {
            answers.0 = self.indirect(a, b, both, far);
            if answers.0 == Answer::Yes {
                return (Answer::Yes, false);
            }
            answers.1 = self.indirect(b, a, both, far);
            if answers.1 == Answer::Yes {
                return (Answer::Yes, true);
            }
        }
        let no = answers == (Answer::No, Answer::No);
        (if no { Answer::No } else { Answer::Unknown }, false)
    }

    fn record(&mut self, region: &Region, rank: Rank, answer: Answer, a: At<'_>, b: At<'_>) {
        match answer {
            Answer::Yes => self.out.ordered += 1,
            Answer::Unknown => self.out.unknown += 1,
            Answer::No if self.full() => {}
            Answer::No => {
                let name = |x: At<'_>| self.run.plan(x.epoch).program().task_name(TaskId(x.item.task));
                let (first, second) = (name(a), name(b));
                self.out.faults.push(Fault {
                    rank,
                    task: second.clone(),
                    signal: String::new(),
                    expected: 0,
                    seen: 0,
                    epoch: self.run.epochs[b.epoch].clocks[0],
                    reason: Reason::Race { region: region.name.clone(), first, second },
                });
            }
        }
    }

    /// Whether a post of `a` that covers its part of `both` is among those that a wait of `b` waited for.
    fn direct(&self, a: At<'_>, b: At<'_>, both: &Rect) -> bool {
        let run = &self.run;
        if run.bounded(a.epoch, a.item.task, b.epoch, b.item.task) {
            return true;
        }
        let task = run.task(b.epoch, b.item.task);
        self.parts(a, both).all(|(part, need)| {
            let block = b.item.first_block(&part);
            let mut goals = task.waits().filter_map(|w| self.goal(b, w, guarding(w, b.item, block)));
            goals.any(|goal| run.covers(&need, &goal))
        })
    }

    /// `both`, cut where posts by block cover it piece by piece; and what covers each piece.
    fn parts(&self, a: At<'_>, both: &Rect) -> impl Iterator<Item = (Rect, Need)> + use<> {
        let info = &self.run.plan(a.epoch).tasks[a.item.task as usize];
        let (item, epoch, both, blocks) = (*a.item, a.epoch, *both, info.blocks);
        let step = match info.flags & BY_BLOCK {
            0 => blocks,
            _ => self
                .run
                .task(epoch, item.task)
                .posts()
                .filter(|p| p.at() == PostAt::Block)
                .map(|p| p.every)
                .max()
                .map_or(blocks, |every| u32::from(every.max(1))),
        };
        let (first, last) = (item.first_block(&both) / step, item.last_block(&both, blocks) / step);
        let need = move |part: &Rect| Need {
            epoch,
            task: item.task,
            reads: item.mode == Mode::Read,
            blocks: item.last_block(part, blocks) + 1,
        };
        let whole = item.walk == Walk::Whole || first == last;
        (first..=last).take(if whole { 1 } else { usize::MAX }).filter_map(move |g| {
            let part =
                if whole { Some(both) } else { both.intersect(&item.blocks(g * step, (g + 1) * step)) };
            part.map(|part| (part, need(&part)))
        })
    }

    /// Words of a wait of `b`'s task, so many of them.
    #[inline]
    fn goal(&self, b: At<'_>, w: &Wait, count: u32) -> Option<Goal> {
        self.run.goal(b.epoch, b.item.task, w, count)
    }

    /// Whether `a` comes before `b`, directly or through other tasks.
    fn before(&mut self, a: At<'a>, b: At<'a>, both: &Rect) -> Answer {
        if self.direct(a, b, both) {
            return Answer::Yes;
        }
        self.indirect(a, b, both, true)
    }

    /// Whether `a` comes before `b` through other tasks, near ones or all.
    fn indirect(&mut self, a: At<'a>, b: At<'a>, both: &Rect, far: bool) -> Answer {
        let parts: Vec<(Rect, Need)> = self.parts(a, both).collect();
        let mut all = Answer::Yes;
        for (part, need) in parts {
            match self.through(&need, b, &part, far) {
                Answer::No => return Answer::No,
                Answer::Unknown => all = Answer::Unknown,
                Answer::Yes => {}
            }
        }
        all
    }

    fn through(&mut self, need: &Need, b: At<'_>, part: &Rect, far: bool) -> Answer {
        let task = self.run.task(b.epoch, b.item.task);
        let block = b.item.first_block(part);
        let met = task.waits().filter_map(|w| self.goal(b, w, guarding(w, b.item, block))).map(End::Met);
        let mut ends: Vec<End> = met.collect();
        // What its rank did in earlier epochs comes first, too.
        let rank = self.run.rank(b.epoch, b.item.task);
        ends.extend((b.epoch > need.epoch).then_some(End::Began(rank, b.epoch)));
        let (run, past) = (&self.run, self.past.get_or_insert_with(|| Past::new(&self.run)));
        let mut open = Vec::new();
        for end in ends {
            match past.near(run, need, end) {
                Answer::Yes => return Answer::Yes,
                Answer::Unknown => open.push(end),
                Answer::No => {}
            }
        }
        let mut all = Answer::No;
        for end in open {
            match if far { past.far(run, need, end) } else { Answer::Unknown } {
                Answer::Yes => return Answer::Yes,
                Answer::Unknown => all = Answer::Unknown,
                Answer::No => {}
            }
        }
        all
    }
}

fn writes(items: &[Item]) -> impl Iterator<Item = (u32, Rect)> {
    items.iter().enumerate().filter(|(_, i)| i.mode.writes()).map(|(i, item)| (i as u32, item.rect))
}

/// How many of a wait's words come before block `block` of an access.
#[inline]
fn guarding(w: &Wait, item: &Item, block: u32) -> u32 {
    match (w.at(), item.at) {
        (WaitAt::Start, _) => w.count.into(),
        // A store as a whole comes after everything that was loaded.
        (WaitAt::Block, Phase::Store) if item.walk == Walk::Whole => w.count.into(),
        (WaitAt::Block, _) => w.met_before_block(block),
        (WaitAt::Store, Phase::Store) => w.count.into(),
        (WaitAt::Store, _) => 0,
    }
}
