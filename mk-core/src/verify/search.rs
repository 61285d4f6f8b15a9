//! The search behind `order`: backwards over words, from what guards an access to what everybody who posts there had
//! waited for.
//!
//! A short search that stops at its goal comes first. What it does not settle is answered from the *closure* of the
//! guards, everything that is certain once they are met, which is kept: a barrier between many tasks is searched once.

use super::facts::Facts;
use super::order::{Answer, Poster};
use crate::{PostAt, Rank, TaskId, Wait, WaitAt};
use std::collections::{HashMap, HashSet, VecDeque};

/// A post, as the source of an order: these words of this rank stand for it, any of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Source {
    pub(super) rank: Rank,
    pub(super) lo: u32,
    /// One past the last word.
    pub(super) hi: u32,
    /// Its place among the posts to the word, where prefixes are waited for; else 0.
    pub(super) ordinal: u32,
}

/// "This word has received `upto` posts", in an epoch from which `left` more may be stepped back.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Goal {
    pub(super) word: u32,
    pub(super) rank: Rank,
    pub(super) upto: u32,
    pub(super) left: u8,
}

impl Source {
    fn meets(&self, g: &Goal) -> bool {
        g.rank == self.rank
            && (self.lo..self.hi).contains(&g.word)
            && (self.ordinal == 0 || self.ordinal <= g.upto)
    }
}

/// One post to a word.
#[derive(Clone, Copy)]
struct OnePost {
    task: TaskId,
    /// Which of its posts, and the block after which it is made.
    slot: u8,
    block: u32,
}

/// Who posts to each word, in stream order.
struct Posters {
    first: Vec<u64>,
    all: Vec<OnePost>,
}

impl Posters {
    fn new(facts: &Facts<'_>) -> Posters {
        let mut first = Vec::with_capacity(facts.totals.len() + 1);
        let mut sum = 0u64;
        first.push(0);
        for &t in &facts.totals {
            sum += t as u64;
            first.push(sum);
        }
        let mut next = first.clone();
        let none = OnePost { task: TaskId(0), slot: 0, block: 0 };
        let mut all = vec![none; sum as usize];
        for (i, task) in facts.program.tasks.iter().enumerate() {
            let blocks = facts.blocks[i];
            for (slot, post) in task.posts.iter().enumerate().filter(|(_, p)| p.used()) {
                for j in 0..post.count(blocks) {
                    let next = &mut next[facts.at(post.to(), post.word + j)];
                    let block = match post.at() {
                        PostAt::Block => ((j + 1) * post.every as u32).min(blocks) - 1,
                        _ => blocks - 1,
                    };
                    all[*next as usize] = OnePost { task: TaskId(i as u32), slot: slot as u8, block };
                    *next += 1;
                }
            }
        }
        Posters { first, all }
    }

    fn of(&self, at: usize) -> &[OnePost] {
        &self.all[self.first[at] as usize..self.first[at + 1] as usize]
    }
}

/// Everything that is certain once some guards are met.
#[derive(Default)]
struct Closure {
    /// Words, and how many of their posts.
    words: HashMap<(Rank, u32), u32>,
    /// Ranks whose earlier run has ended.
    ended: HashSet<Rank>,
    /// Ranks whose run of the same epoch has started.
    started: HashSet<Rank>,
}

impl Closure {
    fn meets(&self, s: &Source) -> bool {
        let met =
            |word| self.words.get(&(s.rank, word)).is_some_and(|&upto| s.ordinal == 0 || s.ordinal <= upto);
        (s.lo..s.hi).any(met)
    }
}

/// What a closure is of.
#[derive(PartialEq, Eq, Hash)]
enum Of {
    /// These guards of a task of this rank, so many epochs later.
    Guards(Vec<Goal>, Rank, u8),
    /// All waits of a rank.
    End(Rank),
}

/// Posts that a search looks at before the closure is taken instead.
const NEAR: u64 = 256;
/// Words that are kept in closures; beyond that they are forgotten and start again.
const KEPT: usize = 1 << 22;

/// See the module.
pub(super) struct Search<'f, 'p> {
    later: &'f Facts<'p>,
    earlier: &'f Facts<'p>,
    /// For two programs: the later program's shared words in the earlier one.
    pub(super) map: Option<HashMap<u32, u32>>,
    /// Of the later program, and of the earlier one if it is another; built when first needed.
    posters: Option<(Posters, Option<Posters>)>,
    /// Waits of each rank of the earlier run; `left` holds their lag.
    waits: Option<Vec<Vec<Goal>>>,
    closures: HashMap<Of, Closure>,
    kept: usize,
    /// Posts that may still be looked at.
    budget: u64,
}

/// A search under way.
#[derive(Default)]
struct Frontier {
    seen: HashSet<Goal>,
    ended: HashSet<(Rank, u8)>,
    started: HashSet<Rank>,
    open: VecDeque<Goal>,
    /// Run boundaries that are still to be stepped over.
    boundaries: VecDeque<(Rank, u8)>,
}

impl Frontier {
    fn add(&mut self, g: Goal) {
        if self.seen.insert(g) {
            self.open.push_back(g);
        }
    }
}

/// When a search stops before it has seen everything.
#[derive(Clone, Copy)]
struct Until<'a> {
    sources: &'a [Source],
    rank: Option<Rank>,
    /// Posts that it may look at.
    limit: u64,
}

impl<'f, 'p> Search<'f, 'p> {
    pub(super) fn new(
        earlier: &'f Facts<'p>,
        later: &'f Facts<'p>,
        map: Option<HashMap<u32, u32>>,
    ) -> Search<'f, 'p> {
        Search {
            later,
            earlier,
            map,
            posters: None,
            waits: None,
            closures: HashMap::new(),
            kept: 0,
            // Programs that need more than this have no discipline that a person could follow either.
            budget: 4_000_000 + 256 * later.program.tasks.len() as u64,
        }
    }

    /// Whether one of the sources (made by `source_rank`) is certain once the guards of a task of `rank` are met.
    pub(super) fn before(
        &mut self,
        sources: &[Source],
        source_rank: Rank,
        guards: Vec<Goal>,
        rank: Rank,
        epochs: u8,
    ) -> Answer {
        if epochs > 0 && source_rank == rank {
            return Answer::Ordered;
        }
        let of = Of::Guards(guards, rank, epochs);
        if let Some(closure) = self.closures.get(&of) {
            return certain(closure, sources, source_rank);
        }
        let Of::Guards(guards, ..) = &of else { unreachable!("it was made just now") };
        let until = Until { sources, rank: Some(source_rank), limit: NEAR };
        match self.run(guards, rank, epochs, until) {
            Ok((found, _)) => return if found { Answer::Ordered } else { Answer::Unordered },
            Err(OutOfBudget) if self.budget == 0 => return Answer::Unknown,
            Err(OutOfBudget) => {}
        }
        self.closure(of).map_or(Answer::Unknown, |closure| certain(closure, sources, source_rank))
    }

    /// Whether one of the sources is certain once a rank's run has ended.
    pub(super) fn before_end(&mut self, sources: &[Source], owner: Rank) -> Answer {
        self.closure(Of::End(owner)).map_or(Answer::Unknown, |closure| {
            if sources.iter().any(|s| closure.meets(s)) { Answer::Ordered } else { Answer::Unordered }
        })
    }

    /// Whether `owner` has started its run once the guards of a task of `rank` are met.
    pub(super) fn after_start(&mut self, guards: Vec<Goal>, rank: Rank, owner: Rank) -> Answer {
        self.closure(Of::Guards(guards, rank, 0)).map_or(Answer::Unknown, |closure| {
            if closure.started.contains(&owner) { Answer::Ordered } else { Answer::Unordered }
        })
    }

    /// The place of a task's post among those to a word that one stream writes (in the earlier program).
    pub(super) fn ordinal(&mut self, rank: Rank, word: u32, task: TaskId) -> u32 {
        self.need_posters();
        let posts = self.posts(true, rank, word);
        posts.partition_point(|p| p.task < task) as u32 + 1
    }

    /// All who post to a word.
    pub(super) fn posters_of(&mut self, earlier: bool, rank: Rank, word: u32) -> Vec<Poster> {
        self.need_posters();
        let facts = if earlier { self.earlier } else { self.later };
        let poster = |p: &OnePost| {
            let rank = facts.rank_of[p.task.index()];
            Poster { rank, task: p.task, guards: post_guards(facts, *p, rank, 1) }
        };
        self.posts(earlier, rank, word).iter().map(poster).collect()
    }

    fn need_posters(&mut self) {
        if self.posters.is_none() {
            let earlier = self.map.as_ref().map(|_| Posters::new(self.earlier));
            self.posters = Some((Posters::new(self.later), earlier));
        }
    }

    fn posts(&self, earlier: bool, rank: Rank, word: u32) -> &[OnePost] {
        let (later_posts, earlier_posts) =
            self.posters.as_ref().expect("posters are built before they are asked for");
        match earlier_posts {
            Some(posts) if earlier => posts.of(self.earlier.at(rank, word)),
            _ => later_posts.of(self.later.at(rank, word)),
        }
    }

    /// The closure of something, from store or made now; `None` if the budget is used up.
    fn closure(&mut self, of: Of) -> Option<&Closure> {
        if self.closures.contains_key(&of) {
            return self.closures.get(&of);
        }
        let until = Until { sources: &[], rank: None, limit: u64::MAX };
        let all = match &of {
            Of::Guards(guards, rank, epochs) => self.run(guards, *rank, *epochs, until),
            Of::End(rank) => {
                let waits = &self.need_waits()[rank.index()];
                let goals: Vec<Goal> = waits.iter().filter(|g| g.left == 0).copied().collect();
                self.run(&goals, *rank, 0, until)
            }
        };
        let closure = self.close(all.ok()?.1);
        if self.kept > KEPT {
            self.closures.clear();
            self.kept = 0;
        }
        self.kept += closure.words.len();
        Some(self.closures.entry(of).or_insert(closure))
    }

    fn close(&self, frontier: Frontier) -> Closure {
        let mut closure = Closure { started: frontier.started, ..Closure::default() };
        closure.ended.extend(frontier.ended.iter().map(|(rank, _)| *rank));
        for g in frontier.seen.iter().filter(|g| self.map.is_none() || g.left == 0) {
            let upto = closure.words.entry((g.rank, g.word)).or_insert(g.upto);
            *upto = g.upto.max(*upto);
        }
        closure
    }

    /// Searches from the guards; whether it met what it looked for, and all that it saw.
    fn run(
        &mut self,
        guards: &[Goal],
        rank: Rank,
        epochs: u8,
        until: Until<'_>,
    ) -> Result<(bool, Frontier), OutOfBudget> {
        self.need_posters();
        let mut f = Frontier::default();
        for &g in guards {
            self.step(&mut f, g, false);
        }
        let mut left = until.limit;
        if epochs > 0 && self.boundary(&mut f, rank, epochs - 1, until) {
            return Ok((true, f));
        }
        // A direct order needs no search, however long the list of posters is.
        if f.open.iter().any(|g| self.is_source(g, until)) {
            return Ok((true, f));
        }
        loop {
            // Nearest first: most orders are two or three posts long, while a run boundary leads to all waits of a rank.
            while let Some(goal) = f.open.pop_front() {
                if self.is_source(&goal, until) || self.expand(&mut f, goal, until, &mut left)? {
                    return Ok((true, f));
                }
            }
            let Some((rank, left)) = f.boundaries.pop_front() else { return Ok((false, f)) };
            self.step_over(&mut f, rank, left);
        }
    }

    fn is_source(&self, goal: &Goal, until: Until<'_>) -> bool {
        // With two programs a goal that has no epochs left lies in the earlier one, and only there are sources.
        (self.map.is_none() || goal.left == 0) && until.sources.iter().any(|s| s.meets(goal))
    }

    /// Adds what a goal's posters waited for. True if a run that ended before is the one that is looked for.
    fn expand(
        &mut self,
        f: &mut Frontier,
        goal: Goal,
        until: Until<'_>,
        left: &mut u64,
    ) -> Result<bool, OutOfBudget> {
        let in_earlier = self.map.is_some() && goal.left == 0;
        let facts = if in_earlier { self.earlier } else { self.later };
        let count = goal.upto.min(facts.totals[facts.at(goal.rank, goal.word)]);
        for i in 0..count as usize {
            *left = left.checked_sub(1).ok_or(OutOfBudget)?;
            self.budget = self.budget.checked_sub(1).ok_or(OutOfBudget)?;
            let post = self.posts(in_earlier, goal.rank, goal.word)[i];
            let rank = facts.rank_of[post.task.index()];
            f.started.insert(rank);
            if goal.left > 0 && self.boundary(f, rank, goal.left - 1, until) {
                return Ok(true);
            }
            for g in post_guards(facts, post, rank, goal.left) {
                self.step(f, g, in_earlier);
            }
        }
        Ok(false)
    }

    /// Adds a goal. Across two programs, one that lies a run back is the earlier program's, if they share the word.
    fn step(&self, f: &mut Frontier, g: Goal, in_earlier: bool) {
        match &self.map {
            Some(map) if !in_earlier && g.left == 0 => {
                if let Some(&word) = map.get(&g.word) {
                    f.add(Goal { word, ..g });
                }
            }
            _ => f.add(g),
        }
    }

    /// The run boundary: everything that `rank` executed in the run before. True if that is what is looked for.
    fn boundary(&self, f: &mut Frontier, rank: Rank, left: u8, until: Until<'_>) -> bool {
        if until.rank == Some(rank) {
            return true;
        }
        if f.ended.insert((rank, left)) {
            f.boundaries.push_back((rank, left));
        }
        false
    }

    /// Adds all that a rank waited for in its earlier run.
    fn step_over(&mut self, f: &mut Frontier, rank: Rank, left: u8) {
        for g in &self.need_waits()[rank.index()] {
            // `left` of these goals is their lag.
            if let Some(left) = left.checked_sub(g.left) {
                f.add(Goal { left, ..*g });
            }
        }
    }

    fn need_waits(&mut self) -> &[Vec<Goal>] {
        let facts = self.earlier;
        self.waits.get_or_insert_with(|| rank_waits(facts))
    }
}

/// A search has looked at as many posts as it may.
struct OutOfBudget;

fn certain(closure: &Closure, sources: &[Source], source_rank: Rank) -> Answer {
    let met = closure.ended.contains(&source_rank) || sources.iter().any(|s| closure.meets(s));
    if met { Answer::Ordered } else { Answer::Unordered }
}

/// All waits of each rank, once; `left` holds the lag.
fn rank_waits(facts: &Facts<'_>) -> Vec<Vec<Goal>> {
    let mut waits = vec![Vec::new(); facts.program.ranks as usize];
    for (i, task) in facts.program.tasks.iter().enumerate() {
        let rank = facts.rank_of[i];
        for w in task.waits() {
            waits[rank.index()].extend(w.words().map(|word| Goal {
                word,
                rank,
                upto: w.upto,
                left: w.lag(),
            }));
        }
    }
    for w in &mut waits {
        w.sort_unstable_by_key(|g| (g.word, g.upto, g.left));
        w.dedup();
    }
    waits
}

/// The goals that `met` words of a wait stand for, if its lag is within `left`.
pub(super) fn guard_goals(w: &Wait, rank: Rank, met: u32, left: u8) -> impl Iterator<Item = Goal> + use<> {
    let (upto, lag) = (w.upto, w.lag());
    w.words()
        .take(met as usize)
        .filter_map(move |word| Some(Goal { word, rank, upto, left: left.checked_sub(lag)? }))
}

/// What a poster waited for before it posted.
fn post_guards(facts: &Facts<'_>, p: OnePost, rank: Rank, left: u8) -> Vec<Goal> {
    let task = facts.program.task(p.task);
    let post = &task.posts[p.slot as usize];
    let mut goals = Vec::new();
    for w in task.waits() {
        let met = match (post.at(), w.at()) {
            (PostAt::Done, _) | (_, WaitAt::Start) => w.count as u32,
            (_, WaitAt::Store) => 0,
            (PostAt::Loaded, WaitAt::Block) => w.count as u32,
            (PostAt::Block, WaitAt::Block) => w.met_before_block(p.block),
        };
        goals.extend(guard_goals(w, rank, met, left));
    }
    goals
}
