//! Happens-before: is this access ordered before that one, by signals alone?
//!
//! Almost every answer is *direct*: a post that covers the first access goes to a word that guards the second. The
//! rest is a search backwards over words (`search`): a word is complete only after the waits of everybody who posts to it.

use super::facts::{Facts, Item};
use super::search::{Goal, Search, Source, guard_goals};
use crate::{Mode, Phase, Post, PostAt, Rank, TaskId, Wait, WaitAt, Walk};
use std::collections::{HashMap, HashSet};

/// Answer of a query.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Ordered,
    Unordered,
    /// The budget was used up.
    Unknown,
}

/// Order between an earlier and a later run, of one program or of two.
pub(super) struct Order<'f, 'p> {
    /// The program of the later access, and that of the earlier one (which may be the same).
    later: &'f Facts<'p>,
    earlier: &'f Facts<'p>,
    search: Search<'f, 'p>,
}

impl<'f, 'p> Order<'f, 'p> {
    /// Order within the runs of one program.
    pub(super) fn within(facts: &'f Facts<'p>) -> Order<'f, 'p> {
        Order { later: facts, earlier: facts, search: Search::new(facts, facts, None) }
    }

    /// Order of a run of `earlier` before a run of `later`; `map` gives the place of the later program's shared words
    /// in the earlier one.
    pub(super) fn between(
        earlier: &'f Facts<'p>,
        later: &'f Facts<'p>,
        map: HashMap<u32, u32>,
    ) -> Order<'f, 'p> {
        Order { later, earlier, search: Search::new(earlier, later, Some(map)) }
    }

    /// Whether `a` (of the earlier program) happens before `b` (of the later one) where both touch `both`, when `b`'s
    /// run is `epochs` runs after `a`'s. Two programs are always one run apart.
    pub(super) fn before(&mut self, a: &Item, b: &Item, both: &crate::Rect, epochs: u8) -> Answer {
        let (ra, rb) = (self.earlier.rank_of[a.task.index()], self.later.rank_of[b.task.index()]);
        if epochs > 0 && ra == rb {
            return Answer::Ordered;
        }
        let block = first_block(b, both);
        if self.direct(a, b, block, epochs) {
            return Answer::Ordered;
        }
        let sources = self.sources(a);
        if sources.is_empty() && epochs == 0 {
            return Answer::Unordered;
        }
        let guards = self.guards(b, block, epochs);
        self.search.before(&sources, ra, guards, rb, epochs)
    }

    /// Whether `owner` learns of `a`, an access of another rank to its memory, before its own run ends.
    pub(super) fn before_end(&mut self, a: &Item, owner: Rank) -> Answer {
        let sources = self.sources(a);
        if sources.is_empty() { Answer::Unordered } else { self.search.before_end(&sources, owner) }
    }

    /// Whether `b`, an access of another rank to `owner`'s memory, begins only after `owner`'s own run has begun.
    pub(super) fn after_start(&mut self, b: &Item, owner: Rank) -> Answer {
        let guards = self.guards(b, first_block(b, &b.rect), 0);
        let rank = self.later.rank_of[b.task.index()];
        self.search.after_start(guards, rank, owner)
    }

    /// The ranks that post to a word in the earlier program, each with one of its tasks; and the different ways in which
    /// tasks of the later one come to post there.
    pub(super) fn posters(&mut self, rank: Rank, word: u32, later_word: u32) -> (Vec<Poster>, Vec<Poster>) {
        let mut seen = HashSet::new();
        let mut first = self.search.posters_of(true, rank, word);
        first.retain(|p| seen.insert(p.rank));
        let mut seen = HashSet::new();
        let mut second = self.search.posters_of(false, rank, later_word);
        second.retain(|p| seen.insert((p.rank, p.guards.clone())));
        (first, second)
    }

    /// Whether what `y`'s rank posts to a word in the earlier run has arrived before `x` posts there in the next.
    pub(super) fn post_before_post(&mut self, rank: Rank, word: u32, y: &Poster, x: &Poster) -> Answer {
        // All posts of the earlier run, not a prefix of them.
        let ordinal = self.earlier.totals[self.earlier.at(rank, word)];
        let source = Source { rank, lo: word, hi: word + 1, ordinal };
        self.search.before(&[source], y.rank, x.guards.clone(), x.rank, 1)
    }

    /// A post that covers `a` is among those that a wait guarding `b` waits for.
    #[inline]
    fn direct(&self, a: &Item, b: &Item, block: u32, epochs: u8) -> bool {
        let (ta, tb) = (self.earlier.program.task(a.task), self.later.program.task(b.task));
        let (blocks, rb) = (self.earlier.blocks[a.task.index()], self.later.rank_of[b.task.index()]);
        for p in ta.posts().filter(|p| p.to() == rb) {
            let Some(from) = covered_from(p, a, blocks) else { continue };
            let (lo, hi) = (p.word + from, p.word + p.count(blocks));
            for w in tb.waits() {
                if w.upto < w.total || w.lag() > epochs || (self.search.map.is_some() && w.lag() == 0) {
                    continue;
                }
                let hit = |j: u32| {
                    let word = w.word + j * w.stride as u32;
                    let word = self.search.map.as_ref().map_or(Some(word), |map| map.get(&word).copied());
                    word.is_some_and(|word| (lo..hi).contains(&word))
                };
                if (0..guarding(w, b, block)).any(hit) {
                    return true;
                }
            }
        }
        false
    }

    /// The words that stand for `a`'s having happened.
    fn sources(&mut self, a: &Item) -> Vec<Source> {
        let facts = self.earlier;
        let blocks = facts.blocks[a.task.index()];
        let mut sources = Vec::new();
        for p in facts.program.task(a.task).posts() {
            let Some(from) = covered_from(p, a, blocks) else { continue };
            let (lo, hi) = (p.word + from, p.word + p.count(blocks));
            if !facts.prefixes {
                sources.push(Source { rank: p.to(), lo, hi, ordinal: 0 });
                continue;
            }
            // Where prefixes are waited for, its place among the word's posts counts.
            for word in lo..hi {
                let ordinal = self.search.ordinal(p.to(), word, a.task);
                sources.push(Source { rank: p.to(), lo: word, hi: word + 1, ordinal });
            }
        }
        sources
    }

    fn guards(&self, b: &Item, block: u32, epochs: u8) -> Vec<Goal> {
        let rank = self.later.rank_of[b.task.index()];
        let waits = self.later.program.task(b.task).waits();
        waits.flat_map(|w| guard_goals(w, rank, guarding(w, b, block), epochs)).collect()
    }
}

/// Somebody who posts to a word.
pub(super) struct Poster {
    pub(super) rank: Rank,
    pub(super) task: TaskId,
    /// What it waits for first.
    pub(super) guards: Vec<Goal>,
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
