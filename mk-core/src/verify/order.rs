//! Happens-before: is this access ordered before that one, by signals alone?
//!
//! Almost every answer is *direct*: a post that covers the first access goes to a word that guards the second. The
//! rest is a search backwards over words: a word is complete only after the waits of everybody who posts to it. The
//! answers are remembered by (first post, first guard), so that a barrier between many tasks is searched once.

use super::facts::{Facts, Item};
use crate::{Mode, Phase, Post, PostAt, Rank, Task, TaskId, Wait, WaitAt, Walk};
use std::collections::{HashMap, HashSet};

/// A post, as the source of an order: these words of this rank stand for it, any of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Source {
    rank: Rank,
    lo: u32,
    /// One past the last word.
    hi: u32,
    /// Its place among the posts to the word, where prefix waits exist.
    ordinal: u32,
}

/// "This word has received `upto` posts", in the epoch that lies `lag` before the later access.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Goal {
    word: u32,
    rank: Rank,
    upto: u32,
    /// Epochs that may still be stepped back.
    left: u8,
}

/// Answer of a query.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Ordered,
    Unordered,
    /// The budget was used up.
    Unknown,
}

/// One poster of a word.
#[derive(Clone, Copy)]
struct Poster {
    task: TaskId,
    /// Which of its posts, and the block after which it is made.
    slot: u8,
    block: u32,
}

/// Who posts to each word, in stream order.
struct Posters {
    first: Vec<u64>,
    all: Vec<Poster>,
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
        let none = Poster { task: TaskId(0), slot: 0, block: 0 };
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
                    all[*next as usize] = Poster { task: TaskId(i as u32), slot: slot as u8, block };
                    *next += 1;
                }
            }
        }
        Posters { first, all }
    }

    fn of(&self, at: usize) -> &[Poster] {
        &self.all[self.first[at] as usize..self.first[at + 1] as usize]
    }
}

/// Order between an earlier and a later run, of one program or of two.
pub(super) struct Order<'f, 'p> {
    /// The program of the later access, and that of the earlier one where it is another.
    later: &'f Facts<'p>,
    earlier: Option<&'f Facts<'p>>,
    later_posters: Option<Posters>,
    earlier_posters: Option<Posters>,
    /// For two programs: the later program's shared words in the earlier one.
    map: HashMap<u32, u32>,
    /// Waits of each rank of the earlier run, for the run boundary; built when first needed.
    rank_waits: Option<Vec<Vec<Goal>>>,
    memo: HashMap<(Source, Rank, u8, Goal), Answer>,
    /// Words that each rank waits for in the same epoch, and how many posts of them at most.
    waited: Option<HashMap<(Rank, u32), u32>>,
    memo_of_ends: HashMap<(Source, Rank), Answer>,
    memo_of_starts: HashMap<(Goal, Rank), Answer>,
    budget: u64,
}

impl<'f, 'p> Order<'f, 'p> {
    /// Order within the runs of one program.
    pub(super) fn within(facts: &'f Facts<'p>) -> Order<'f, 'p> {
        Order::new(facts, None, HashMap::new())
    }

    /// Order of a run of `earlier` before a run of `later`; `map` gives the place of the later program's shared words
    /// in the earlier one.
    pub(super) fn between(
        earlier: &'f Facts<'p>,
        later: &'f Facts<'p>,
        map: HashMap<u32, u32>,
    ) -> Order<'f, 'p> {
        Order::new(later, Some(earlier), map)
    }

    fn new(later: &'f Facts<'p>, earlier: Option<&'f Facts<'p>>, map: HashMap<u32, u32>) -> Order<'f, 'p> {
        let tasks = later.program.tasks.len() + earlier.map_or(0, |e| e.program.tasks.len());
        Order {
            later,
            earlier,
            later_posters: None,
            earlier_posters: None,
            map,
            rank_waits: None,
            memo: HashMap::new(),
            waited: None,
            memo_of_ends: HashMap::new(),
            memo_of_starts: HashMap::new(),
            // Programs that need more than this have no discipline that a person could follow either.
            budget: 4_000_000 + 256 * tasks as u64,
        }
    }

    fn facts_of_earlier(&self) -> &'f Facts<'p> {
        self.earlier.unwrap_or(self.later)
    }

    /// Whether `a` (of the earlier program) happens before `b` (of the later one) where both touch `both`, when `b`'s
    /// run is `epochs` runs after `a`'s. Two programs are always one run apart.
    pub(super) fn before(&mut self, a: &Item, b: &Item, both: &crate::Rect, epochs: u8) -> Answer {
        let (ea, lb) = (self.facts_of_earlier(), self.later);
        let (ra, rb) = (ea.rank_of[a.task.index()], lb.rank_of[b.task.index()]);
        if epochs > 0 && ra == rb {
            return Answer::Ordered;
        }
        let (ta, tb) = (ea.program.task(a.task), lb.program.task(b.task));
        let block = first_block(b, both);
        if self.direct(ta, ea.blocks[a.task.index()], a, tb, rb, b, block, epochs) {
            return Answer::Ordered;
        }
        let mut sources = Vec::new();
        for p in ta.posts() {
            if let Some(from) = covered_from(p, a, ea.blocks[a.task.index()]) {
                self.sources(a.task, p, from, &mut sources);
            }
        }
        let guards: Vec<Goal> =
            tb.waits().flat_map(|w| guard_goals(w, rb, guarding(w, b, block), epochs)).collect();
        self.search(&sources, ra, guards, rb, epochs)
    }

    /// Whether `owner` learns of `a`, an access of another rank to its memory, before its own run ends.
    pub(super) fn before_end(&mut self, a: &Item, owner: Rank) -> Answer {
        let facts = self.later;
        let (rank, task) = (facts.rank_of[a.task.index()], facts.program.task(a.task));
        let mut sources = Vec::new();
        for p in task.posts() {
            if let Some(from) = covered_from(p, a, facts.blocks[a.task.index()]) {
                self.sources(a.task, p, from, &mut sources);
            }
        }
        let waited = self.waited.get_or_insert_with(|| waited(facts));
        let hit = |s: &Source| {
            let upto =
                |word| waited.get(&(owner, word)).is_some_and(|&upto| s.ordinal == 0 || s.ordinal <= upto);
            s.rank == owner && (s.lo..s.hi).any(upto)
        };
        if sources.iter().any(hit) {
            return Answer::Ordered;
        }
        let mut answer = Answer::Unordered;
        for s in sources {
            let found = match self.memo_of_ends.get(&(s, owner)) {
                Some(found) => *found,
                None => {
                    let waits = self.rank_waits.get_or_insert_with(|| rank_waits(facts));
                    let goals: Vec<Goal> =
                        waits[owner.index()].iter().filter(|g| g.left == 0).copied().collect();
                    let found = self.search_all(&[s], rank, &goals, owner, 0);
                    self.memo_of_ends.insert((s, owner), found);
                    found
                }
            };
            match found {
                Answer::Ordered => return found,
                Answer::Unknown => answer = found,
                Answer::Unordered => {}
            }
        }
        answer
    }

    /// Whether `b`, an access of another rank to `owner`'s memory, begins only after `owner`'s own run has begun.
    pub(super) fn after_start(&mut self, b: &Item, owner: Rank) -> Answer {
        let facts = self.later;
        let (rank, task) = (facts.rank_of[b.task.index()], facts.program.task(b.task));
        let block = first_block(b, &b.rect);
        let guards: Vec<Goal> =
            task.waits().flat_map(|w| guard_goals(w, rank, guarding(w, b, block), 0)).collect();
        let mut answer = Answer::Unordered;
        for goal in guards {
            let found = match self.memo_of_starts.get(&(goal, owner)) {
                Some(found) => *found,
                None => {
                    let found = self.posted_by(goal, owner);
                    self.memo_of_starts.insert((goal, owner), found);
                    found
                }
            };
            match found {
                Answer::Ordered => return found,
                Answer::Unknown => answer = found,
                Answer::Unordered => {}
            }
        }
        answer
    }

    /// Whether a task of `owner` is among those that a goal needs, directly or not.
    fn posted_by(&mut self, goal: Goal, owner: Rank) -> Answer {
        self.need_posters();
        let facts = self.later;
        let mut search = Search { seen: HashSet::new(), ranks: HashSet::new(), open: Vec::new() };
        search.goal(goal);
        while let Some(goal) = search.open.pop() {
            let at = facts.at(goal.rank, goal.word);
            let count = (goal.upto as usize).min(facts.totals[at] as usize);
            for i in 0..count {
                let Some(budget) = self.budget.checked_sub(1) else { return Answer::Unknown };
                self.budget = budget;
                let poster = self.posters(false).of(at)[i];
                let rank = facts.rank_of[poster.task.index()];
                if rank == owner {
                    return Answer::Ordered;
                }
                post_guards(facts, poster, rank, 0).into_iter().for_each(|g| search.goal(g));
            }
        }
        Answer::Unordered
    }

    /// Whether poster `y`'s post to a word (in the earlier run) arrives before poster `x` posts there in the next.
    pub(super) fn post_before_post(
        &mut self,
        rank: Rank,
        word: u32,
        y: usize,
        x: usize,
        later_word: u32,
    ) -> Answer {
        self.need_posters();
        let (ea, lb) = (self.facts_of_earlier(), self.later);
        let py = self.posters(true).of(ea.at(rank, word))[y];
        let px = self.posters(false).of(lb.at(rank, later_word))[x];
        let (ry, rx) = (ea.rank_of[py.task.index()], lb.rank_of[px.task.index()]);
        if ry == rx {
            return Answer::Ordered;
        }
        let source = Source { rank, lo: word, hi: word + 1, ordinal: y as u32 + 1 };
        let guards = post_guards(lb, px, rx, 1);
        self.search(&[source], ry, guards, rx, 1)
    }

    /// How many posters a word has in the earlier and in the later program.
    pub(super) fn posters_of(&mut self, rank: Rank, word: u32, later_word: u32) -> (Vec<Rank>, Vec<Rank>) {
        self.need_posters();
        let ranks = |facts: &Facts<'_>, posters: &[Poster]| {
            posters.iter().map(|p| facts.rank_of[p.task.index()]).collect::<Vec<_>>()
        };
        let (ea, lb) = (self.facts_of_earlier(), self.later);
        (
            ranks(ea, self.posters(true).of(ea.at(rank, word))),
            ranks(lb, self.posters(false).of(lb.at(rank, later_word))),
        )
    }

    /// The tasks of poster `y` of the earlier program and poster `x` of the later one.
    pub(super) fn poster_tasks(
        &self,
        rank: Rank,
        word: u32,
        y: usize,
        later_word: u32,
        x: usize,
    ) -> (TaskId, TaskId) {
        let (ea, lb) = (self.facts_of_earlier(), self.later);
        (
            self.posters(true).of(ea.at(rank, word))[y].task,
            self.posters(false).of(lb.at(rank, later_word))[x].task,
        )
    }

    fn need_posters(&mut self) {
        if self.later_posters.is_none() {
            self.later_posters = Some(Posters::new(self.later));
            self.earlier_posters = self.earlier.map(Posters::new);
        }
    }

    fn posters(&self, earlier: bool) -> &Posters {
        let of = if earlier { self.earlier_posters.as_ref() } else { None };
        of.or(self.later_posters.as_ref()).expect("posters are built before they are asked for")
    }

    /// A post that covers `a` is among those that a wait guarding `b` waits for.
    #[allow(clippy::too_many_arguments)]
    #[inline]
    fn direct(
        &self,
        ta: &Task,
        blocks_a: u32,
        a: &Item,
        tb: &Task,
        rb: Rank,
        b: &Item,
        block: u32,
        epochs: u8,
    ) -> bool {
        for p in ta.posts().filter(|p| p.to() == rb) {
            let Some(from) = covered_from(p, a, blocks_a) else { continue };
            let (lo, hi) = (p.word + from, p.word + p.count(blocks_a));
            for w in tb.waits() {
                if w.upto < w.total || w.lag() > epochs || (self.earlier.is_some() && w.lag() == 0) {
                    continue;
                }
                let met = guarding(w, b, block);
                let hit = |j: u32| {
                    let word = w.word + j * w.stride as u32;
                    let word = if self.earlier.is_none() { Some(word) } else { self.map.get(&word).copied() };
                    word.is_some_and(|word| (lo..hi).contains(&word))
                };
                if (0..met).any(hit) {
                    return true;
                }
            }
        }
        false
    }

    /// The words of a post that cover an access, as sources.
    fn sources(&mut self, task: TaskId, p: &Post, from: u32, to: &mut Vec<Source>) {
        let facts = self.facts_of_earlier();
        let (lo, hi) = (p.word + from, p.word + p.count(facts.blocks[task.index()]));
        if !facts.prefixes {
            to.push(Source { rank: p.to(), lo, hi, ordinal: 0 });
            return;
        }
        self.need_posters();
        for word in lo..hi {
            // Words that a prefix is waited for have one writing stream, whose tasks stand in order.
            let of = self.posters(true).of(facts.at(p.to(), word));
            let ordinal = of.partition_point(|q| q.task < task) as u32 + 1;
            to.push(Source { rank: p.to(), lo: word, hi: word + 1, ordinal });
        }
    }

    fn search(
        &mut self,
        sources: &[Source],
        source_rank: Rank,
        guards: Vec<Goal>,
        rank: Rank,
        epochs: u8,
    ) -> Answer {
        let Some(first) = guards.first().copied() else {
            return self.search_all(sources, source_rank, &[], rank, epochs);
        };
        // The guards of a task are searched together; the first of them (with its rank) names the set well enough only
        // if there is one, so only then the answer is remembered.
        let key = match sources {
            [one] if guards.len() == 1 => Some((*one, source_rank, epochs, first)),
            _ => None,
        };
        if let Some(answer) = key.and_then(|k| self.memo.get(&k)) {
            return *answer;
        }
        let answer = self.search_all(sources, source_rank, &guards, rank, epochs);
        if let Some(key) = key {
            self.memo.insert(key, answer);
        }
        answer
    }

    fn search_all(
        &mut self,
        sources: &[Source],
        source_rank: Rank,
        guards: &[Goal],
        rank: Rank,
        epochs: u8,
    ) -> Answer {
        if sources.is_empty() && epochs == 0 {
            return Answer::Unordered;
        }
        self.need_posters();
        let mut search = Search { seen: HashSet::new(), ranks: HashSet::new(), open: Vec::new() };
        for &g in guards {
            self.step(&mut search, g, false);
        }
        // A direct order needs no search, however long the list of posters is.
        if self.earlier.is_none() && search.open.iter().any(|g| sources.iter().any(|s| s.meets(g))) {
            return Answer::Ordered;
        }
        if epochs > 0 && self.boundary(&mut search, rank, source_rank, epochs - 1) {
            return Answer::Ordered;
        }
        while let Some(goal) = search.open.pop() {
            match self.expand(&mut search, goal, sources, source_rank) {
                Some(true) => return Answer::Ordered,
                Some(false) => {}
                None => return Answer::Unknown,
            }
        }
        Answer::Unordered
    }

    /// Whether a goal is one of the sources; if not, what its posters waited for becomes goals. `None`: no budget left.
    fn expand(
        &mut self,
        search: &mut Search,
        goal: Goal,
        sources: &[Source],
        source_rank: Rank,
    ) -> Option<bool> {
        // With two programs a goal that has no epochs left lies in the earlier one.
        let in_earlier = self.earlier.is_some() && goal.left == 0;
        let reachable = self.earlier.is_none() || in_earlier;
        if reachable && sources.iter().any(|s| s.meets(&goal)) {
            return Some(true);
        }
        let facts = if in_earlier { self.facts_of_earlier() } else { self.later };
        let at = facts.at(goal.rank, goal.word);
        let count = (goal.upto as usize).min(facts.totals[at] as usize);
        for i in 0..count {
            self.budget = self.budget.checked_sub(1)?;
            let poster = self.posters(in_earlier).of(at)[i];
            let rank = facts.rank_of[poster.task.index()];
            if goal.left > 0 && self.boundary(search, rank, source_rank, goal.left - 1) {
                return Some(true);
            }
            for g in post_guards(facts, poster, rank, goal.left) {
                self.step(search, g, in_earlier);
            }
        }
        Some(false)
    }

    /// Adds a goal. Across two programs, one that lies a run back is the earlier program's, if they share the word.
    fn step(&self, search: &mut Search, g: Goal, in_earlier: bool) {
        if self.earlier.is_none() || in_earlier || g.left > 0 {
            search.goal(g);
        } else if let Some(&word) = self.map.get(&g.word) {
            search.goal(Goal { word, ..g });
        }
    }

    /// The run boundary: everything that `rank` executed in the run before. True if the source is among it.
    fn boundary(&mut self, search: &mut Search, rank: Rank, source_rank: Rank, left: u8) -> bool {
        if rank == source_rank {
            return true;
        }
        if !search.ranks.insert((rank, left)) {
            return false;
        }
        if self.rank_waits.is_none() {
            self.rank_waits = Some(rank_waits(self.facts_of_earlier()));
        }
        let waits = self.rank_waits.as_ref().expect("it was built just now");
        for g in &waits[rank.index()] {
            // `left` of a stored goal is its lag here.
            if let Some(left) = left.checked_sub(g.left) {
                search.goal(Goal { left, ..*g });
            }
        }
        false
    }
}

struct Search {
    seen: HashSet<Goal>,
    ranks: HashSet<(Rank, u8)>,
    open: Vec<Goal>,
}

impl Search {
    fn goal(&mut self, g: Goal) {
        if self.seen.insert(g) {
            self.open.push(g);
        }
    }
}

impl Source {
    fn meets(&self, g: &Goal) -> bool {
        g.rank == self.rank
            && (self.lo..self.hi).contains(&g.word)
            && (self.ordinal == 0 || self.ordinal <= g.upto)
    }
}

/// The words that each rank waits for in the same epoch, and how many posts of them at most.
fn waited(facts: &Facts<'_>) -> HashMap<(Rank, u32), u32> {
    let mut waited = HashMap::new();
    for (i, task) in facts.program.tasks.iter().enumerate() {
        for w in task.waits().filter(|w| w.lag() == 0) {
            for word in w.words() {
                let upto = waited.entry((facts.rank_of[i], word)).or_insert(w.upto);
                *upto = w.upto.max(*upto);
            }
        }
    }
    waited
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

/// The first block in which `item` touches any of `both`.
fn first_block(item: &Item, both: &crate::Rect) -> u32 {
    if let Some(block) = item.block {
        return block;
    }
    let (place, size) = match item.walk {
        Walk::Whole => return 0,
        Walk::Rows(n) => (both.row - item.rect.row, n),
        Walk::Cols(n) => (both.col - item.rect.col, n),
    };
    (place / size.max(1)).min(u32::MAX as u64) as u32
}

/// How many of a wait's words are met before `item` touches its block `block`.
#[inline]
fn guarding(w: &Wait, item: &Item, block: u32) -> u32 {
    match (w.at(), item.at, item.walk) {
        (WaitAt::Start, ..) => w.count as u32,
        // A whole store comes after all loads, and so after all waits.
        (_, Phase::Store, Walk::Whole) => w.count as u32,
        (WaitAt::Store, Phase::Store, _) => w.count as u32,
        (WaitAt::Store, ..) => 0,
        (WaitAt::Block, ..) => w.met_before_block(block),
    }
}

/// The first of a post's words that covers `item` (all later ones do too); `None` if none does.
#[inline]
fn covered_from(p: &Post, item: &Item, blocks: u32) -> Option<u32> {
    match p.at() {
        PostAt::Done => Some(0),
        PostAt::Loaded => (item.mode == Mode::Read).then_some(0),
        PostAt::Block => Some(item.block.unwrap_or(blocks - 1) / (p.every.max(1) as u32)),
    }
}

/// The goals that `met` words of a wait stand for, if its lag is within `left`.
fn guard_goals(w: &Wait, rank: Rank, met: u32, left: u8) -> impl Iterator<Item = Goal> + use<> {
    let (upto, lag) = (w.upto, w.lag());
    w.words()
        .take(met as usize)
        .filter_map(move |word| Some(Goal { word, rank, upto, left: left.checked_sub(lag)? }))
}

/// What a poster waited for before it posted.
fn post_guards(facts: &Facts<'_>, p: Poster, rank: Rank, left: u8) -> Vec<Goal> {
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
