//! Posts: when they leave, how they travel, and what happens where they arrive.

use crate::engine::Engine;
use crate::events::What;
use crate::links::{LOCAL, NS, Sent};
use crate::plan::{CARRIED, REMOTE_WRITE};
use crate::unit::SLOTS;
use mk_core::{Post, PostAt, SignalKind};

/// Instead of a value: adds 1.
const ADD: u64 = u64::MAX;

/// A post that has left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnderWay {
    word: usize,
    /// What it writes, or [`ADD`].
    value: u64,
    log: usize,
    rank: u16,
    /// It arrives twice.
    twice: bool,
    /// It counts twice: a planted fault.
    surplus: bool,
}

impl Engine<'_> {
    /// Makes post `k` of a task, to its word `j`.
    pub(crate) fn send(&mut self, u: usize, s: usize, k: usize, j: u32) {
        let (plan, task, info) = self.task(u, s);
        let (slot, rank) = (self.slots[u * SLOTS + s], self.units[u].rank);
        let post = &task.posts[k];
        let before = if k > 0 && task.posts[0].used() { task.posts[0].count(slot.blocks) } else { 0 };
        let log = slot.log + before as usize + j as usize;
        let covers = match post.at() {
            PostAt::Block => (j + 1).saturating_mul(u32::from(post.every.max(1))).min(slot.blocks),
            _ => slot.blocks,
        };
        let writes = if post.at() == PostAt::Loaded { 0 } else { covers.min(slot.landed) };
        self.log.made(log, covers, writes);
        self.made += 1;
        if self.setup.faults.lose_post == Some(self.made) {
            return;
        }
        let word = plan.words.at(post.to(), post.word + j, post.clock());
        let sent = match info.post_links[k] {
            LOCAL => self.send_home(u),
            link if info.has(CARRIED) => self.send_carried(u, s, link, post, word, info.has(REMOTE_WRITE)),
            link => self.send_atomic(link, post),
        };
        let value = match post.kind() {
            SignalKind::Add => ADD,
            _ => post.value(self.job_of(u).clocks[post.clock() as usize]),
        };
        let surplus = self.setup.faults.surplus_post == Some(self.made);
        let twice = sent.again.is_some();
        let at = self.keep(UnderWay { word, value, log, rank, twice, surplus });
        self.ranks[rank as usize].under_way += 1;
        self.push(sent.arrival, What::Post, u, s, at);
        if let Some(again) = sent.again {
            self.push(again, What::PostAgain, u, s, at);
        }
    }

    fn keep(&mut self, post: UnderWay) -> u32 {
        match self.free_posts.pop() {
            Some(at) => {
                self.posts[at as usize] = post;
                at
            }
            None => {
                self.posts.push(post);
                (self.posts.len() - 1) as u32
            }
        }
    }

    /// To the own rank. Those of one unit arrive in order.
    fn send_home(&mut self, u: usize) -> Sent {
        let latency = self.setup.hardware.local_signal_ns * NS;
        let took = self.chance().1.latency(latency);
        let unit = &mut self.units[u];
        unit.last_post = (unit.last_post + 1).max(self.now + took);
        Sent { arrival: unit.last_post, again: None }
    }

    fn send_atomic(&mut self, link: u32, post: &Post) -> Sent {
        if post.kind() == SignalKind::Packet {
            return Sent { arrival: self.now + 1, again: None };
        }
        let now = self.now;
        let (links, mut chance) = self.chance();
        links.atomic_signal(link, now, &mut chance)
    }

    /// By the transport: right behind the data where the link keeps order; else when the data has been acknowledged, and
    /// the last signal to the same word too.
    fn send_carried(
        &mut self,
        u: usize,
        s: usize,
        link: u32,
        post: &Post,
        word: usize,
        writes: bool,
    ) -> Sent {
        if post.kind() == SignalKind::Packet && writes {
            // The flag has come with the data.
            return Sent { arrival: self.now + 1, again: None };
        }
        let ordered = self.links.all[link as usize].ordered;
        let behind = ordered && writes && post.at() != PostAt::Loaded;
        let mut leaves = self.now;
        if !ordered {
            let overtakes = self.setup.faults.flag_overtakes_data;
            let acked =
                if overtakes || post.at() == PostAt::Loaded { 0 } else { self.slots[u * SLOTS + s].acked };
            leaves = leaves.max(acked).max(self.last_ack.get(&word).copied().unwrap_or(0));
        }
        let (links, mut chance) = self.chance();
        let sent = links.signal(link, leaves, behind, &mut chance);
        if !ordered {
            let acked = sent.again.unwrap_or(sent.arrival) + chance.latency(links.all[link as usize].latency);
            self.last_ack.insert(word, acked);
        }
        sent
    }

    pub(crate) fn on_post(&mut self, at: usize) {
        let post = self.posts[at];
        let before = self.words.values[post.word];
        let value = if post.value == ADD { before + 1 } else { post.value };
        if post.value != ADD && before >= value && self.surplus.is_none() {
            // Values are written in order, so somebody else has raised the word; this write would hide it.
            self.surplus = Some((post.word, value - 1, before));
        }
        self.log.arrived(post.log, value);
        self.words.set(post.word, value + u64::from(post.surplus), &mut self.woken);
        if !post.twice {
            self.free_posts.push(at as u32);
            self.ranks[post.rank as usize].under_way -= 1;
        }
        self.wake();
        if !post.twice {
            self.maybe_end_epoch(post.rank as usize);
        }
    }

    /// Writes the same value once more.
    pub(crate) fn on_post_again(&mut self, at: usize) {
        let post = self.posts[at];
        self.words.set(post.word, post.value, &mut self.woken);
        self.free_posts.push(at as u32);
        self.ranks[post.rank as usize].under_way -= 1;
        self.wake();
        self.maybe_end_epoch(post.rank as usize);
    }
}
