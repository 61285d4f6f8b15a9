//! Comm tasks: block by block, read, transit, landing.

use crate::engine::Engine;
use crate::events::What;
use crate::links::{LOCAL, NS};
use crate::memory::Part;
use crate::plan::{CARRIED, Leg, PACKET, TaskInfo};
use crate::unit::{Role, SLOTS};
use mk_core::{Mode, Post, PostAt, Rank};

/// How something that is sent gets there.
pub(crate) struct Landing {
    /// When it has left.
    pub(crate) left: u64,
    /// When all of it is there, for the last time.
    pub(crate) land: u64,
    /// When it was there for the first time.
    pub(crate) early: Option<u64>,
}

impl Engine<'_> {
    /// Reads from where a leg leads, from `from` on: when the bytes are here. `ahead`: they were asked for while others came, so that
    /// they follow those. Nothing if the NIC fails.
    pub(crate) fn get(
        &mut self,
        u: usize,
        s: usize,
        leg: &Leg,
        bytes: u64,
        (from, ahead): (u64, bool),
    ) -> Option<u64> {
        if leg.there == LOCAL {
            return Some(from);
        }
        let (links, mut chance) = self.chance();
        let way = chance.latency(links.all[leg.there as usize].latency);
        let asked = if ahead { from.saturating_sub(way) } else { from + way };
        let mut transfer = links.reply(leg.back, asked, bytes, leg.weight, &mut chance);
        // Ways differ: what was asked for ahead may have come already.
        transfer.arrival = transfer.arrival.max(from);
        if transfer.failed {
            self.push(transfer.arrival, What::NicError, u, s, leg.access.rank.0.into());
            return None;
        }
        Some(transfer.arrival)
    }

    /// Writes to where a leg leads. Nothing if the NIC fails.
    pub(crate) fn put(&mut self, u: usize, s: usize, leg: &Leg, bytes: u64, from: u64) -> Option<Landing> {
        if leg.there == LOCAL {
            return Some(Landing { left: from, land: from, early: None });
        }
        let (links, mut chance) = self.chance();
        let transfer = links.transfer(leg.there, from, bytes, leg.weight, &mut chance);
        let link = &links.all[leg.there as usize];
        let acked = if link.ordered { 0 } else { transfer.arrival + chance.latency(link.latency) };
        if transfer.failed {
            self.push(transfer.arrival, What::NicError, u, s, leg.access.rank.0.into());
            return None;
        }
        let slot = &mut self.slots[u * SLOTS + s];
        slot.acked = slot.acked.max(acked);
        Some(Landing { left: transfer.left, land: transfer.arrival, early: transfer.early })
    }

    /// Reads the next block, if it may be read. `ahead`: right behind the one before it.
    pub(crate) fn read(&mut self, u: usize, s: usize, ahead: bool) {
        if let Err((word, target)) = self.ready_blocks(u, s) {
            return self.wait(u, s, Role::Load, word, target);
        }
        self.waited(u, s, Role::Load);
        let slot = &self.slots[u * SLOTS + s];
        let (block, from) = (slot.loaded, self.now.max(slot.ready));
        let (_, _, info) = self.task(u, s);
        if info.leg_count == 0 {
            self.busy(u, from, from);
            return self.push(from, What::Read, u, s, block);
        }
        let Some((read, landing)) = self.send_block(u, s, info, block, (from, ahead)) else { return };
        self.busy(u, from, read);
        self.push(read, What::Read, u, s, block);
        if let Some(Landing { land, early, .. }) = landing {
            if let Some(early) = early {
                self.push(early, What::LandEarly, u, s, block);
            }
            self.push(land, What::Land, u, s, block);
        }
    }

    /// Books a block's way: when it has been read, and how it lands, if the task writes at all.
    fn send_block(
        &mut self,
        u: usize,
        s: usize,
        info: &TaskInfo,
        block: u32,
        (from, ahead): (u64, bool),
    ) -> Option<(u64, Option<Landing>)> {
        let legs = self.task(u, s).0.legs_of(info);
        let factor = self.slots[u * SLOTS + s].factor;
        let far = legs.iter().any(|l| l.there != LOCAL);
        let copy = NS / self.setup.hardware.sm_copy_gb_per_s * f64::from(factor);
        let mut read = from;
        for leg in legs.iter().filter(|l| !l.access.mode.writes()) {
            let bytes = leg.bytes(block);
            // A copy to a peer is as fast as its link; one at home as fast as a lane copies.
            let local = if far { 0 } else { (bytes as f64 * copy) as u64 };
            read = read.max(from + local).max(self.get(u, s, leg, bytes, (from, ahead))?);
        }
        // Bytes of a peer must be here before they go on; those of the own memory stream through.
        let fetched = legs.iter().any(|l| l.there != LOCAL && !l.access.mode.writes());
        let out = if fetched { read } else { from };
        let (mut writes, mut land, mut early) = (false, 0, None);
        for leg in legs.iter().filter(|l| l.access.mode.writes()) {
            let packet = info.has(PACKET) && leg.there != LOCAL;
            let bytes = leg.bytes(block) * if packet { 2 } else { 1 };
            let mut start = out;
            if leg.access.mode == Mode::Update {
                start = self.get(u, s, leg, bytes, (start, ahead))?;
            }
            let landing = self.put(u, s, leg, bytes, start)?;
            read = read.max(landing.left);
            land = land.max(landing.land);
            early = early.or(landing.early);
            writes = true;
        }
        if !writes {
            return Some((read, None));
        }
        land = land.max(read) + Self::ps(info.math / info.blocks as f32, factor);
        // What lands has been read before, and what lands in pieces does so one after the other.
        land = land.max(read + 2);
        if self.setup.faults.torn {
            early = Some(read + (land - read) / 2);
        }
        let early = early.map(|e| e.clamp(read + 1, land - 1));
        Some((read, Some(Landing { left: read, land, early })))
    }

    pub(crate) fn on_read(&mut self, u: usize, s: usize, block: u32) {
        let (plan, task, info) = self.task(u, s);
        let job = *self.job_of(u);
        if let Some(data) = &mut self.data {
            data.read(plan, &job, u * SLOTS + s, block);
        }
        let slot = &mut self.slots[u * SLOTS + s];
        slot.loaded = block + 1;
        let all = slot.loaded == slot.blocks;
        if all {
            self.units[u].loading = false;
            for k in 0..task.posts.len() {
                if task.posts[k].used() && task.posts[k].at() == PostAt::Loaded {
                    self.send(u, s, k, 0);
                }
            }
        }
        let lands = plan.legs_of(info).iter().any(|l| l.access.mode.writes());
        if !lands {
            self.slots[u * SLOTS + s].landed = block + 1;
        }
        if !lands || self.setup.faults.flag_overtakes_data {
            self.make_posts(u, s);
        }
        match all {
            true => self.start_next(u, 0),
            false => self.read(u, s, true),
        }
    }

    /// What lands before the last of it: half of a block, or all of it a first time.
    pub(crate) fn on_land_early(&mut self, u: usize, s: usize, block: u32) {
        let part = if self.setup.faults.torn { Part::Half } else { Part::First };
        self.land_bytes(u, s, block, part);
    }

    pub(crate) fn on_land(&mut self, u: usize, s: usize, block: u32) {
        self.land_bytes(u, s, block, Part::All);
        let slot = &mut self.slots[u * SLOTS + s];
        let ahead = &mut self.ahead[u * SLOTS + s];
        if block != slot.landed {
            return ahead.push(block);
        }
        slot.landed += 1;
        while let Some(i) = ahead.iter().position(|b| *b == slot.landed) {
            ahead.swap_remove(i);
            slot.landed += 1;
        }
        if !self.ranks[self.units[u].rank as usize].dead {
            self.make_posts(u, s);
        }
    }

    fn land_bytes(&mut self, u: usize, s: usize, block: u32, part: Part) {
        if self.data.is_none() {
            return;
        }
        let (plan, task, _) = self.task(u, s);
        let job = *self.job_of(u);
        if let Some(data) = &mut self.data {
            data.land(plan, &job, u * SLOTS + s, task, block, part);
        }
    }

    /// Makes the posts of a comm task that can be made, and ends it if all is done.
    pub(crate) fn make_posts(&mut self, u: usize, s: usize) {
        let (_, task, _) = self.task(u, s);
        let number = self.number(u, s);
        let slot = self.slots[u * SLOTS + s];
        let mut all = slot.landed == slot.blocks;
        for (k, post) in task.posts.iter().enumerate().filter(|(_, p)| p.used()) {
            let reach = if self.overtakes(u, s, k, post) { slot.loaded } else { slot.landed };
            let whole = reach == slot.blocks;
            let upto = match post.at() {
                PostAt::Loaded => 0,
                PostAt::Done => u32::from(whole),
                PostAt::Block if whole => post.count(slot.blocks),
                PostAt::Block => reach / u32::from(post.every.max(1)),
            };
            for j in slot.made[k]..upto {
                if self.held(u, number, post, slot.blocks) {
                    break;
                }
                self.slots[u * SLOTS + s].made[k] = j + 1;
                self.send(u, s, k, j);
            }
            let made = self.slots[u * SLOTS + s].made[k];
            all &= post.at() == PostAt::Loaded || made == post.count(slot.blocks);
        }
        if all {
            self.end_comm(u, s, number);
        }
    }

    fn end_comm(&mut self, u: usize, s: usize, number: u64) {
        let last = self.units[u].begun;
        self.end_task(u, s);
        self.start_next(u, 0);
        // Those behind it may have been held by its posts.
        for n in number + 1..last {
            let s = (n % SLOTS as u64) as usize;
            if n >= self.units[u].ended && !self.slots[u * SLOTS + s].done {
                self.make_posts(u, s);
            }
        }
    }

    /// The place of a slot's task among those that its unit has begun.
    fn number(&self, u: usize, s: usize) -> u64 {
        let unit = &self.units[u];
        let behind = (unit.begun + SLOTS as u64 - 1 - s as u64) % SLOTS as u64;
        unit.begun - 1 - behind
    }

    /// Whether an earlier task of the stream has still to post to the same word: posts of one stream to one word arrive
    /// in its order.
    fn held(&self, u: usize, number: u64, post: &Post, blocks: u32) -> bool {
        let unit = &self.units[u];
        (unit.ended..number).any(|n| {
            let s = (n % SLOTS as u64) as usize;
            let slot = &self.slots[u * SLOTS + s];
            let (_, task, _) = self.task(u, s);
            let pending = |(k, p): (usize, &Post)| {
                p.used()
                    && p.at() != PostAt::Loaded
                    && p.rank == post.rank
                    && slot.made[k] < p.count(slot.blocks)
                    && p.word < post.word + post.count(blocks)
                    && post.word < p.word + p.count(slot.blocks)
            };
            !slot.done && task.posts.iter().enumerate().any(pending)
        })
    }

    /// Whether a post breaks its promise to follow its data.
    fn overtakes(&self, u: usize, s: usize, k: usize, post: &Post) -> bool {
        let (_, _, info) = self.task(u, s);
        let link = info.post_links[k];
        self.setup.faults.flag_overtakes_data
            && info.has(CARRIED)
            && post.to() != Rank(self.units[u].rank)
            && link != LOCAL
            && !self.links.all[link as usize].ordered
    }
}
