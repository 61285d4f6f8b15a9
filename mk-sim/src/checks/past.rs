//! What lies before a wait that was met, where no single post tells it: a search backwards, from words to the posts that
//! raised them, to what those tasks had waited for.
//!
//! Three things keep it linear. A post that arrived before the first post that covers the access leads nowhere, nor does
//! one of an earlier epoch, so a search looks at a window of the run only. A short search that stops at what it looks for comes first. What it does
//! not settle is told by the *closure* of the wait, everything in the window that is certain once it is met: it is made
//! once for all accesses that are asked about, and made again, at least twice as wide, for one further back.

use super::run::{Arrived, Goal, Need, Run, guards_post};
use crate::hash::{Map, Set};
use mk_core::{Rank, TaskId};

/// Whether one access comes before another; unknown if it was not looked for far enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Yes,
    No,
    Unknown,
}

/// Where a search begins.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum End {
    /// A wait that was met.
    Met(Goal),
    /// A rank that began an epoch: it had ended those before.
    Began(Rank, usize),
}

/// Steps of a search that stops at what it looks for: enough for a way over two or three tasks. Others are found by
/// closures.
const NEAR: u64 = 32;
/// Steps of all searches: so many, and so many for each post of the run.
const STEPS: u64 = 1 << 26;
const STEPS_A_POST: u64 = 64;
/// Words in closures that are kept, of some 24 bytes each; beyond that they are forgotten and start again.
const KEPT: usize = 1 << 23;

/// A post that arrived, and who made it.
#[derive(Clone, Copy, Default)]
struct Poster {
    value: u64,
    order: u32,
    epoch: u32,
    task: u32,
    /// Its word among those of the post, twice; plus which post of the task it is.
    which: u32,
}

/// The posts to each word, by value.
struct Posters {
    first: Vec<usize>,
    all: Vec<Poster>,
    /// No wait of an epoch was met by a post of a later one. So it is in programs that are right, and then no way leads
    /// from an epoch back to an earlier one.
    in_step: bool,
}

impl Posters {
    fn new(run: &Run<'_>) -> Posters {
        let mut first = vec![0];
        each(run, |word, _| {
            if first.len() < word + 2 {
                first.resize(word + 2, 0);
            }
            first[word + 1] += 1;
        });
        for i in 1..first.len() {
            first[i] += first[i - 1];
        }
        let (mut next, mut all) = (first.clone(), vec![Poster::default(); first[first.len() - 1]]);
        each(run, |word, poster| {
            all[next[word]] = poster;
            next[word] += 1;
        });
        for w in first.windows(2) {
            let posts = &mut all[w[0]..w[1]];
            posts.sort_unstable_by_key(|p| (p.value, p.order));
            // Values are reached in order of time, but for words that several tasks set: there, it was later at most.
            let mut latest = 0;
            posts.iter_mut().for_each(|p| {
                latest = p.order.max(latest);
                p.order = latest;
            });
        }
        let mut posters = Posters { first, all, in_step: true };
        posters.in_step = run.epochs.len() == 1 || posters.are_in_step(run);
        posters
    }

    fn are_in_step(&self, run: &Run<'_>) -> bool {
        let words = self.first.windows(2).map(|w| &self.all[w[0]..w[1]]);
        let mut sorted = words.map(|posts| posts.is_sorted_by_key(|p| p.epoch));
        let last = |goal: Goal| {
            goal.words().filter_map(move |w| self.between(w, 0, goal.target).last()).map(|p| p.epoch)
        };
        sorted.all(|sorted| sorted)
            && (0..run.epochs.len()).all(|e| {
                let tasks = run.plan(e).program().tasks.iter().enumerate();
                let mut waits = tasks.flat_map(|(t, task)| task.waits().map(move |w| (t as u32, w)));
                waits.all(|(t, w)| {
                    let goal = run.goal(e, t, w, w.count.into());
                    goal.into_iter().flat_map(last).all(|epoch| epoch as usize <= e)
                })
            })
    }

    /// The posts that brought a word from above `from` to `to`.
    #[inline]
    fn between(&self, word: usize, from: u64, to: u64) -> &[Poster] {
        let Some(&[first, end]) = self.first.get(word..word + 2) else { return &[] };
        let posts = &self.all[first..end];
        let below = |value: u64| posts.partition_point(|p| p.value <= value);
        &posts[below(from)..below(to)]
    }

    /// When a goal was met: the order of its last post.
    fn met(&self, goal: &Goal) -> u32 {
        let last = |word| self.between(word, 0, goal.target).last().map_or(0, |p| p.order);
        goal.words().map(last).max().unwrap_or(0)
    }
}

/// All posts of a run that arrived, with their words.
fn each(run: &Run<'_>, mut found: impl FnMut(usize, Poster)) {
    for (e, epoch) in run.epochs.iter().enumerate() {
        let plan = run.plans[epoch.plan];
        for (t, task) in plan.program().tasks.iter().enumerate() {
            let mut at = epoch.first_post + plan.tasks[t].log as usize;
            for (slot, post) in task.posts.iter().enumerate().filter(|(_, p)| p.used()) {
                let first = plan.words.at(post.to(), post.word, post.clock());
                for j in 0..post.count(plan.tasks[t].blocks) {
                    let log = &run.log.posts[at];
                    at += 1;
                    let Some(value) = log.arrived() else { continue };
                    let (epoch, task, which) = (e as u32, t as u32, j << 1 | slot as u32);
                    found(first + j as usize, Poster { value, order: log.order, epoch, task, which });
                }
            }
        }
    }
}

/// What a search has seen, and what it has still to look at.
#[derive(Default)]
struct Seen {
    /// How far each word was followed back.
    words: Map<usize, u64>,
    /// Up to which epoch each rank's run had ended.
    ended: Map<Rank, usize>,
    /// Goals of several words.
    wide: Set<Goal>,
    /// First come, first followed: so the shortest way is found first.
    goals: Vec<Goal>,
    next: usize,
    bounds: Vec<(Rank, usize)>,
}

impl Seen {
    fn clear(&mut self) {
        self.words.clear();
        self.ended.clear();
        self.wide.clear();
        self.goals.clear();
        self.next = 0;
        self.bounds.clear();
    }

    #[inline]
    fn add(&mut self, goal: Goal) {
        if goal.count == 1 || self.wide.insert(goal) {
            self.goals.push(goal);
        }
    }

    /// Whether what covers `need` has been seen.
    fn answer(&self, run: &Run<'_>, need: &Need) -> Answer {
        let met = |post: Arrived| self.words.get(&post.word).is_some_and(|&upto| post.value <= upto);
        let ended = |rank: &Rank| self.ended.get(rank).is_some_and(|&ended| ended > need.epoch);
        let seen = run.any_cover(need, met) || ended(&run.rank(need.epoch, need.task));
        if seen { Answer::Yes } else { Answer::No }
    }
}

/// Everything that is certain at an end, from a post on.
struct Closure {
    from: u32,
    seen: Seen,
}

/// A search has taken as many steps as it may.
struct OutOfSteps;

/// What each rank waited for in an epoch: words, and up to where.
type Waited = Map<(Rank, usize), Vec<Goal>>;

/// See the module.
pub(super) struct Past {
    posters: Posters,
    waited: Waited,
    closures: Map<(End, usize), Closure>,
    /// Words in closures.
    kept: usize,
    near: Seen,
    left: u64,
    /// Steps that were taken.
    pub(super) steps: u64,
}

impl Past {
    pub(super) fn new(run: &Run<'_>) -> Past {
        let posters = Posters::new(run);
        Past {
            left: STEPS + STEPS_A_POST * posters.all.len() as u64,
            posters,
            waited: Waited::default(),
            closures: Map::default(),
            kept: 0,
            near: Seen::default(),
            steps: 0,
        }
    }

    /// Whether what covers `need` is certain at `end`, as far as a few steps tell, or what is known already.
    pub(super) fn near(&mut self, run: &Run<'_>, need: &Need, end: End) -> Answer {
        let Some((first, _)) = self.window(run, need, end) else { return Answer::No };
        if let Some(answer) = self.known(run, need, end, first) {
            return answer;
        }
        let mut near = std::mem::take(&mut self.near);
        near.clear();
        let found = self.search(run, &mut near, end, need.epoch, first, Some(need));
        self.near = near;
        match found {
            Ok(true) => Answer::Yes,
            Ok(false) => Answer::No,
            Err(OutOfSteps) => Answer::Unknown,
        }
    }

    /// Whether what covers `need` is certain at `end`, by its closure.
    pub(super) fn far(&mut self, run: &Run<'_>, need: &Need, end: End) -> Answer {
        let Some((first, last)) = self.window(run, need, end) else { return Answer::No };
        if let Some(answer) = self.known(run, need, end, first) {
            return answer;
        }
        let window = u64::from(last - first).next_power_of_two();
        let from = u64::from(last).saturating_sub(window) as u32;
        let mut seen = Seen::default();
        if self.search(run, &mut seen, end, need.epoch, from, None).is_err() {
            return Answer::Unknown;
        }
        // Only what it found is asked for.
        let seen = Seen { words: seen.words, ended: seen.ended, ..Seen::default() };
        let answer = seen.answer(run, need);
        if self.kept > KEPT {
            self.closures.clear();
            self.kept = 0;
        }
        self.kept += seen.words.len();
        self.closures.insert((end, need.epoch), Closure { from, seen });
        answer
    }

    /// The first post that covers `need`, and the last one that `end` waited for: what lies between them counts. Nothing if
    /// it came after the end.
    fn window(&self, run: &Run<'_>, need: &Need, end: End) -> Option<(u32, u32)> {
        let mut first = None;
        run.any_cover(need, |post| {
            first = Some(first.map_or(post.order, |f: u32| f.min(post.order)));
            false
        });
        let last = match &end {
            End::Met(goal) => self.posters.met(goal),
            End::Began(..) => run.log.arrivals(),
        };
        // Without a post, only a run boundary can tell it.
        let first = first.unwrap_or(0);
        (first <= last).then_some((first, last))
    }

    fn known(&self, run: &Run<'_>, need: &Need, end: End, first: u32) -> Option<Answer> {
        let closure = self.closures.get(&(end, need.epoch)).filter(|c| c.from <= first)?;
        Some(closure.seen.answer(run, need))
    }

    /// Looks for `need`, in a few steps; or at everything.
    fn search(
        &mut self,
        run: &Run<'_>,
        seen: &mut Seen,
        end: End,
        epoch: usize,
        from: u32,
        need: Option<&Need>,
    ) -> Result<bool, OutOfSteps> {
        match end {
            End::Met(goal) => seen.add(goal),
            End::Began(rank, epoch) => seen.bounds.push((rank, epoch)),
        }
        let limit = if need.is_some() { NEAR.min(self.left) } else { self.left };
        let (posters, waited) = (&self.posters, &mut self.waited);
        let mut search = Search { run, posters, waited, need, epoch, from, left: limit };
        let found = search.go(seen);
        let taken = limit - search.left;
        self.left -= taken;
        self.steps += taken;
        found
    }
}

/// A search under way.
struct Search<'s, 'a> {
    run: &'s Run<'a>,
    posters: &'s Posters,
    waited: &'s mut Waited,
    need: Option<&'s Need>,
    /// Earlier epochs, and posts that arrived before, lead nowhere.
    epoch: usize,
    from: u32,
    left: u64,
}

impl Search<'_, '_> {
    fn step(&mut self) -> Result<(), OutOfSteps> {
        self.left = self.left.checked_sub(1).ok_or(OutOfSteps)?;
        Ok(())
    }

    fn go(&mut self, seen: &mut Seen) -> Result<bool, OutOfSteps> {
        loop {
            // Words first: they are told exactly, boundaries fan out.
            let found = if let Some(&goal) = seen.goals.get(seen.next) {
                seen.next += 1;
                self.need.is_some_and(|need| self.run.covers(need, &goal)) || self.follow(seen, &goal)?
            } else if let Some((rank, epoch)) = seen.bounds.pop() {
                self.cross(seen, rank, epoch)?
            } else {
                return Ok(false);
            };
            if found {
                return Ok(true);
            }
        }
    }

    /// Adds what those waited for who posted to the goal's words.
    fn follow(&mut self, seen: &mut Seen, goal: &Goal) -> Result<bool, OutOfSteps> {
        let (posters, first) = (self.posters, self.from);
        let oldest = if posters.in_step { self.epoch as u32 } else { 0 };
        for word in goal.words() {
            self.step()?;
            let followed = seen.words.entry(word).or_insert(0);
            let from = std::mem::replace(followed, goal.target.max(*followed));
            if from >= goal.target {
                continue;
            }
            let posts = posters.between(word, from, goal.target).iter().rev();
            for p in posts.take_while(|p| p.order >= first && p.epoch >= oldest) {
                self.step()?;
                if self.expand(seen, p) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Adds what a task had waited for when it posted; whether that was after the run boundary that is looked for.
    fn expand(&mut self, seen: &mut Seen, p: &Poster) -> bool {
        let (run, epoch) = (self.run, p.epoch as usize);
        if self.need.is_some_and(|need| run.bounded(need.epoch, need.task, epoch, p.task)) {
            return true;
        }
        let (task, blocks) = (run.task(epoch, p.task), run.plan(epoch).tasks[p.task as usize].blocks);
        for w in task.waits() {
            let count = guards_post(w, task, (p.which & 1) as u8, p.which >> 1, blocks);
            run.goal(epoch, p.task, w, count).into_iter().for_each(|goal| seen.add(goal));
        }
        if epoch > self.epoch {
            seen.bounds.push((run.rank(epoch, p.task), epoch));
        }
        false
    }

    /// Adds what a rank waited for in the epochs before `epoch`.
    fn cross(&mut self, seen: &mut Seen, rank: Rank, epoch: usize) -> Result<bool, OutOfSteps> {
        if let Some(need) = self.need
            && self.run.rank(need.epoch, need.task) == rank
            && need.epoch < epoch
        {
            return Ok(true);
        }
        let followed = seen.ended.entry(rank).or_insert(self.epoch);
        let from = std::mem::replace(followed, epoch.max(*followed));
        for e in from..epoch {
            let run = self.run;
            let waited = self.waited.entry((rank, e)).or_insert_with(|| waited(run, rank, e));
            // Before they are followed one by one: one of them may tell it.
            if let Some(need) = self.need
                && run.any_cover(need, |post| has(waited, post))
            {
                return Ok(true);
            }
            self.left = self.left.checked_sub(waited.len() as u64).ok_or(OutOfSteps)?;
            seen.goals.extend_from_slice(waited);
        }
        Ok(false)
    }
}

/// What a rank waited for in an epoch, word by word, in their order.
fn waited(run: &Run<'_>, rank: Rank, epoch: usize) -> Vec<Goal> {
    let mut words = Map::default();
    let plan = run.plan(epoch);
    let mut streams: Vec<u32> =
        plan.units[plan.rank_units[rank.index()].clone()].iter().map(|u| u.stream).collect();
    // All lanes claim from one ticket queue.
    streams.dedup();
    for stream in streams {
        for TaskId(task) in plan.program().streams[stream as usize].tasks() {
            let waits = run.task(epoch, task).waits();
            for goal in waits.filter_map(|w| run.goal(epoch, task, w, w.count.into())) {
                for word in goal.words() {
                    let upto = words.entry(word).or_insert(0);
                    *upto = goal.target.max(*upto);
                }
            }
        }
    }
    let one = |(first, target)| Goal { first, stride: 1, count: 1, target };
    let mut waited: Vec<Goal> = words.into_iter().map(one).collect();
    waited.sort_unstable_by_key(|goal| goal.first);
    waited
}

/// Whether a post is among what was waited for.
fn has(waited: &[Goal], post: Arrived) -> bool {
    let found = waited.binary_search_by_key(&post.word, |goal| goal.first);
    found.is_ok_and(|i| post.value <= waited[i].target)
}
