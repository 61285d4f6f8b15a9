//! Races: two accesses of the same bytes, one of them a write, without an order between them.
//!
//! The order is that of this run: a post comes after what it covered when it was made, and a wait after the posts that
//! brought its word to where it had to be. Which rectangles overlap does not depend on the run, so that is found once
//! for all epochs; and an access of epoch `e` that is ordered before one of epoch `e` or `e + 1` is ordered before all
//! later ones of the same task, by their rank's run boundary.

use super::join::Join;
use super::{Item, Log};
use crate::plan::{BY_BLOCK, Plan};
use mk_core::{Fault, Mode, Phase, PostAt, Rank, Reason, Rect, Region, Task, TaskId, Wait, WaitAt, Walk};
use std::collections::HashMap;

/// An epoch of a program, in the order of the run.
#[derive(Clone, Copy)]
pub(crate) struct Epoch {
    pub(crate) plan: usize,
    pub(crate) clocks: [u64; 8],
    pub(crate) first_post: usize,
}

/// What was found.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) faults: Vec<Fault>,
    /// Pairs that are ordered, and pairs of which that could not be told.
    pub(crate) ordered: u64,
    pub(crate) unknown: u64,
}

/// More than this many races help nobody.
const KEPT: usize = 16;
/// Steps of one search, and of all of them: what is told directly costs none.
const SEARCH: u64 = 1 << 18;
const SEARCHES: u64 = 1 << 26;

/// Looks at a run.
pub(crate) fn check(plans: &[&Plan], epochs: &[Epoch], log: &Log) -> Outcome {
    let ranks = plans.iter().map(|p| ranks(p)).collect();
    let mut races = Races {
        plans,
        epochs,
        log,
        ranks,
        posters: None,
        memo: HashMap::new(),
        left: SEARCHES,
        out: Outcome::default(),
    };
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
    races.out
}

fn ranks(plan: &Plan) -> Vec<Rank> {
    plan.program().streams.iter().flat_map(|s| std::iter::repeat_n(s.rank, s.len as usize)).collect()
}

/// A post that arrived: by whom, and what it made the word.
#[derive(Clone, Copy)]
struct Poster {
    epoch: u32,
    task: u32,
    slot: u8,
    /// Its word among those of the post.
    j: u32,
    value: u64,
}

/// Words `0..count` of a strided wait, and where they have to be.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Goal {
    first: usize,
    stride: usize,
    count: u32,
    target: u64,
}

impl Goal {
    fn has(&self, word: usize) -> bool {
        word.checked_sub(self.first)
            .is_some_and(|d| d % self.stride == 0 && d / self.stride < self.count as usize)
    }

    fn words(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, stride) = (self.first, self.stride);
        (0..self.count as usize).map(move |i| first + i * stride)
    }
}

/// An access in an epoch.
#[derive(Clone, Copy)]
struct At<'a> {
    item: &'a Item,
    epoch: usize,
}

/// Whether one comes before another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    Yes,
    No,
    Unknown,
}

/// The part of an access that has to be covered: of this task, the reads or writes of so many blocks.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Need {
    epoch: usize,
    task: u32,
    reads: bool,
    blocks: u32,
}

struct Races<'a> {
    plans: &'a [&'a Plan],
    epochs: &'a [Epoch],
    log: &'a Log,
    /// Of each task, by plan.
    ranks: Vec<Vec<Rank>>,
    /// Who posted to each word; built when first needed.
    posters: Option<HashMap<usize, Vec<Poster>>>,
    memo: HashMap<(Need, Goal), Answer>,
    left: u64,
    out: Outcome,
}

impl<'a> Races<'a> {
    fn full(&self) -> bool {
        self.out.faults.len() >= KEPT
    }

    /// The epochs of a plan.
    fn epochs_of(&self, p: usize) -> Vec<usize> {
        (0..self.epochs.len()).filter(|&e| self.epochs[e].plan == p).collect()
    }

    /// Accesses of one program to one of its regions.
    fn within(&mut self, p: usize, r: usize) {
        let plan: &'a Plan = self.plans[p];
        let region = &plan.program().regions[r];
        let epochs = self.epochs_of(p);
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
        let (a, b): (&'a Plan, &'a Plan) = (self.plans[p], self.plans[q]);
        let next = |&e: &usize| Some((e, (e + 1..self.epochs.len()).find(|&n| self.epochs[n].plan == q)?));
        let pairs: Vec<(usize, usize)> = self.epochs_of(p).iter().filter_map(next).collect();
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
        let forth = self.before(a, b, both);
        if forth == Answer::Yes {
            return (forth, false);
        }
        let back = self.before(b, a, both);
        match (forth, back) {
            (_, Answer::Yes) => (back, true),
            (Answer::No, Answer::No) => (Answer::No, false),
            _ => (Answer::Unknown, false),
        }
    }

    fn record(&mut self, region: &Region, rank: Rank, answer: Answer, a: At<'_>, b: At<'_>) {
        match answer {
            Answer::Yes => self.out.ordered += 1,
            Answer::Unknown => self.out.unknown += 1,
            Answer::No if self.full() => {}
            Answer::No => {
                let name = |x: At<'_>| self.plan(x.epoch).program().task_name(TaskId(x.item.task));
                let (first, second) = (name(a), name(b));
                self.out.faults.push(Fault {
                    rank,
                    task: second.clone(),
                    signal: String::new(),
                    expected: 0,
                    seen: 0,
                    epoch: self.epochs[b.epoch].clocks[0],
                    reason: Reason::Race { region: region.name.clone(), first, second },
                });
            }
        }
    }

    fn plan(&self, epoch: usize) -> &'a Plan {
        self.plans[self.epochs[epoch].plan]
    }

    fn task(&self, epoch: usize, task: u32) -> &'a Task {
        &self.plan(epoch).program().tasks[task as usize]
    }

    fn rank(&self, epoch: usize, task: u32) -> Rank {
        self.ranks[self.epochs[epoch].plan][task as usize]
    }

    /// Whether a post of `a` that covers its part of `both` is among those that a wait of `b` waited for.
    fn direct(&self, a: At<'_>, b: At<'_>, both: &Rect) -> bool {
        if self.bounded(a.epoch, a.item.task, b.epoch, b.item.task) {
            return true;
        }
        let task = self.task(b.epoch, b.item.task);
        self.parts(a, both).all(|(part, need)| {
            let block = b.item.first_block(&part);
            let mut goals = task.waits().filter_map(|w| self.goal(b, w, guarding(w, b.item, block)));
            goals.any(|goal| self.covers(&need, &goal))
        })
    }

    /// The run boundary: all that a rank does in an epoch comes before all that it does in the next.
    fn bounded(&self, epoch: usize, task: u32, later: usize, other: u32) -> bool {
        epoch < later && self.rank(epoch, task) == self.rank(later, other)
    }

    /// `both`, cut where posts by block cover it piece by piece; and what covers each piece.
    fn parts(&self, a: At<'_>, both: &Rect) -> impl Iterator<Item = (Rect, Need)> + use<> {
        let info = &self.plan(a.epoch).tasks[a.item.task as usize];
        let (item, epoch, both, blocks) = (*a.item, a.epoch, *both, info.blocks);
        let step = match info.flags & BY_BLOCK {
            0 => blocks,
            _ => self
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
        self.goal_of(b.epoch, b.item.task, w, count)
    }

    #[inline]
    fn goal_of(&self, epoch: usize, task: u32, w: &Wait, count: u32) -> Option<Goal> {
        let target = w.target(self.epochs[epoch].clocks[w.clock as usize & 7]);
        (count > 0 && target > 0).then(|| Goal {
            first: self.plan(epoch).words.at(self.rank(epoch, task), w.word, w.clock),
            stride: usize::from(w.stride.max(1)),
            count,
            target,
        })
    }

    /// Whether a post that covers `need` is among those that bring a word of `goal` to its target.
    #[inline]
    fn covers(&self, need: &Need, goal: &Goal) -> bool {
        let plan = self.plan(need.epoch);
        let info = &plan.tasks[need.task as usize];
        let mut at = self.epochs[need.epoch].first_post + info.log as usize;
        for post in self.task(need.epoch, need.task).posts() {
            let first = plan.words.at(post.to(), post.word, post.clock());
            let count = post.count(info.blocks);
            for j in 0..count {
                let log = &self.log.posts[at + j as usize];
                let covered = if need.reads { log.reads } else { log.writes };
                let counted = log.arrived().is_some_and(|value| value <= goal.target);
                if covered >= need.blocks && counted && goal.has(first + j as usize) {
                    return true;
                }
            }
            at += count as usize;
        }
        false
    }

    /// Whether `a` comes before `b`, directly or through other tasks.
    fn before(&mut self, a: At<'a>, b: At<'a>, both: &Rect) -> Answer {
        if self.direct(a, b, both) {
            return Answer::Yes;
        }
        let parts: Vec<(Rect, Need)> = self.parts(a, both).collect();
        let mut all = Answer::Yes;
        for (part, need) in parts {
            match self.through(&need, b, &part) {
                Answer::No => return Answer::No,
                Answer::Unknown => all = Answer::Unknown,
                Answer::Yes => {}
            }
        }
        all
    }

    fn through(&mut self, need: &Need, b: At<'_>, part: &Rect) -> Answer {
        let task = self.task(b.epoch, b.item.task);
        let block = b.item.first_block(part);
        let mut all = Answer::No;
        for w in task.waits() {
            let Some(goal) = self.goal(b, w, guarding(w, b.item, block)) else { continue };
            match self.reaches(need, goal) {
                Answer::Yes => return Answer::Yes,
                Answer::Unknown => all = Answer::Unknown,
                Answer::No => {}
            }
        }
        // What its rank did in earlier epochs comes first, too.
        match self.at_boundary(need, b) {
            Answer::No => all,
            answer => answer,
        }
    }

    fn reaches(&mut self, need: &Need, goal: Goal) -> Answer {
        if let Some(&answer) = self.memo.get(&(*need, goal)) {
            return answer;
        }
        let answer = Search::new(self).run(need, vec![goal], Vec::new());
        self.memo.insert((*need, goal), answer);
        answer
    }

    fn at_boundary(&mut self, need: &Need, b: At<'_>) -> Answer {
        let rank = self.rank(b.epoch, b.item.task);
        if b.epoch <= need.epoch {
            return Answer::No;
        }
        // A goal that no wait has stands for the boundary.
        let key = Goal { first: rank.index(), stride: 0, count: 0, target: b.epoch as u64 };
        if let Some(&answer) = self.memo.get(&(*need, key)) {
            return answer;
        }
        let answer = Search::new(self).run(need, Vec::new(), vec![(rank, b.epoch)]);
        self.memo.insert((*need, key), answer);
        answer
    }

    fn build_posters(&mut self) {
        if self.posters.is_some() {
            return;
        }
        let mut posters: HashMap<usize, Vec<Poster>> = HashMap::new();
        for (e, epoch) in self.epochs.iter().enumerate() {
            let plan = self.plans[epoch.plan];
            for (t, task) in plan.program().tasks.iter().enumerate() {
                let mut at = epoch.first_post + plan.tasks[t].log as usize;
                for (slot, post) in task.posts.iter().enumerate().filter(|(_, p)| p.used()) {
                    let first = plan.words.at(post.to(), post.word, post.clock());
                    for j in 0..post.count(plan.tasks[t].blocks) {
                        if let Some(value) = self.log.posts[at].arrived() {
                            let poster =
                                Poster { epoch: e as u32, task: t as u32, slot: slot as u8, j, value };
                            posters.entry(first + j as usize).or_default().push(poster);
                        }
                        at += 1;
                    }
                }
            }
        }
        self.posters = Some(posters);
    }
}

/// A search backwards, from waits to the posts that they waited for, to the waits before those.
struct Search<'s, 'a> {
    races: &'s mut Races<'a>,
    /// How far each word was followed back.
    words: HashMap<usize, u64>,
    /// From which epoch on each rank's boundary was followed back.
    ranks: HashMap<Rank, usize>,
    goals: Vec<Goal>,
    bounds: Vec<(Rank, usize)>,
    steps: u64,
}

impl<'s, 'a> Search<'s, 'a> {
    fn new(races: &'s mut Races<'a>) -> Search<'s, 'a> {
        races.build_posters();
        Search {
            races,
            words: HashMap::new(),
            ranks: HashMap::new(),
            goals: Vec::new(),
            bounds: Vec::new(),
            steps: 0,
        }
    }

    /// Whether `need` comes before these goals or boundaries.
    fn run(mut self, need: &Need, goals: Vec<Goal>, bounds: Vec<(Rank, usize)>) -> Answer {
        (self.goals, self.bounds) = (goals, bounds);
        let answer = loop {
            if self.steps > SEARCH.min(self.races.left) {
                break Answer::Unknown;
            }
            // Words first: they are told exactly, boundaries fan out.
            if let Some(goal) = self.goals.pop() {
                if self.races.covers(need, &goal) || self.follow(need, &goal) {
                    break Answer::Yes;
                }
            } else if let Some((rank, epoch)) = self.bounds.pop() {
                if self.cross(need, rank, epoch) {
                    break Answer::Yes;
                }
            } else {
                break Answer::No;
            }
        };
        self.races.left = self.races.left.saturating_sub(self.steps);
        answer
    }

    /// Adds what those waited for who posted to the goal's words.
    fn follow(&mut self, need: &Need, goal: &Goal) -> bool {
        for word in goal.words() {
            let followed = self.words.entry(word).or_insert(0);
            let from = std::mem::replace(followed, goal.target.max(*followed));
            if from >= goal.target {
                continue;
            }
            let races = &*self.races;
            let Some(posters) = races.posters.as_ref().and_then(|p| p.get(&word)) else { continue };
            for p in posters.iter().filter(|p| p.value > from && p.value <= goal.target) {
                self.steps += 1;
                let (epoch, task) = (p.epoch as usize, races.task(p.epoch as usize, p.task));
                if races.bounded(need.epoch, need.task, epoch, p.task) {
                    return true;
                }
                let blocks = races.plan(epoch).tasks[p.task as usize].blocks;
                let goals = task.waits().filter_map(|w| {
                    let count = guards_post(w, task, p.slot, p.j, blocks);
                    races.goal_of(epoch, p.task, w, count)
                });
                self.goals.extend(goals);
                if epoch > need.epoch {
                    self.bounds.push((races.rank(epoch, p.task), epoch));
                }
            }
        }
        false
    }

    /// Adds what a rank waited for in the epochs before `epoch`.
    fn cross(&mut self, need: &Need, rank: Rank, epoch: usize) -> bool {
        let races = &*self.races;
        if races.rank(need.epoch, need.task) == rank && need.epoch < epoch {
            return true;
        }
        let followed = self.ranks.entry(rank).or_insert(need.epoch);
        let from = std::mem::replace(followed, epoch.max(*followed));
        for e in from..epoch {
            let plan = races.plan(e);
            for stream in plan.program().streams.iter().filter(|s| s.rank == rank) {
                for id in stream.tasks() {
                    self.steps += 1;
                    let task = plan.program().task(id);
                    let goals = task.waits().filter_map(|w| races.goal_of(e, id.0, w, w.count.into()));
                    self.goals.extend(goals);
                }
            }
        }
        false
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

/// How many of a wait's words come before a post of the same task.
#[inline]
fn guards_post(w: &Wait, task: &Task, slot: u8, j: u32, blocks: u32) -> u32 {
    let post = &task.posts[slot as usize];
    match (post.at(), w.at()) {
        (_, WaitAt::Start) | (PostAt::Done, _) | (PostAt::Loaded, WaitAt::Block) => w.count.into(),
        (_, WaitAt::Store) => 0,
        (PostAt::Block, WaitAt::Block) => {
            let last = (j + 1).saturating_mul(u32::from(post.every.max(1))).min(blocks) - 1;
            w.met_before_block(last)
        }
    }
}
