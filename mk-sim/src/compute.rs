//! Compute tasks: load, math and store.

use crate::engine::Engine;
use crate::events::What;
use crate::memory::Part;
use crate::plan::{REMOTE_WRITE, TaskInfo, UPDATES};
use crate::unit::{Role, SLOTS};
use mk_core::{Mode, Phase, PostAt};

impl Engine<'_> {
    /// Loads as many blocks as may be loaded.
    pub(crate) fn load(&mut self, u: usize, s: usize) {
        let ready = match self.ready_blocks(u, s) {
            Ok(ready) => ready,
            Err((word, target)) => return self.wait(u, s, Role::Load, word, target),
        };
        self.waited(u, s, Role::Load);
        let (plan, _, info) = self.task(u, s);
        let slot = &mut self.slots[u * SLOTS + s];
        let from = self.now.max(slot.ready);
        let (all, blocks) = (Self::ps(info.load, slot.factor), u64::from(slot.blocks));
        let part = u64::from(ready - slot.loaded);
        let took = if part == blocks { all } else { (all as f64 * part as f64 / blocks as f64) as u64 };
        if slot.loaded == 0 {
            slot.first = from + all / blocks;
        }
        let mut end = from + took;
        if info.leg_count > 0 {
            let Some(fetched) = self.fetch(u, s, plan, info, from, part) else { return };
            end = end.max(fetched);
        }
        self.busy(u, from, end);
        self.push(end, What::Loaded, u, s, ready);
    }

    /// Loads from other ranks: when the bytes are here. Nothing if the NIC fails.
    fn fetch(
        &mut self,
        u: usize,
        s: usize,
        plan: &crate::plan::Plan,
        info: &TaskInfo,
        from: u64,
        part: u64,
    ) -> Option<u64> {
        let (mut end, blocks) = (from, u64::from(info.blocks));
        for leg in plan.legs_of(info).iter().filter(|l| l.access.at == Phase::Load) {
            let bytes = leg.access.rect.area() * leg.element;
            let bytes = (bytes as f64 * part as f64 / blocks as f64) as u64;
            end = end.max(self.get(u, s, leg, bytes, (from, false))?);
        }
        Some(end)
    }

    pub(crate) fn on_loaded(&mut self, u: usize, s: usize, to: u32) {
        let (plan, task, info) = self.task(u, s);
        let job = *self.job_of(u);
        let slot = &mut self.slots[u * SLOTS + s];
        let from = std::mem::replace(&mut slot.loaded, to);
        if let Some(data) = &mut self.data {
            data.load(plan, &job, u * SLOTS + s, from, to);
        }
        if to < slot.blocks {
            return self.load(u, s);
        }
        let math = Self::ps(info.math, slot.factor);
        let (first, blocks) = (slot.first, u64::from(slot.blocks));
        let start = self.units[u].math_free.max(first);
        let end = (start + math).max(self.now + math / blocks);
        self.units[u].math_free = end;
        self.units[u].loading = false;
        self.busy(u, start, end);
        self.push(end, What::Computed, u, s, 0);
        for k in 0..task.posts.len() {
            if task.posts[k].used() && task.posts[k].at() == PostAt::Loaded {
                self.send(u, s, k, 0);
            }
        }
        self.start_next(u, 0);
    }

    pub(crate) fn on_computed(&mut self, u: usize, s: usize) {
        let (plan, task, info) = self.task(u, s);
        self.slots[u * SLOTS + s].computed = true;
        if let Some(data) = &mut self.data
            && !info.has(UPDATES)
        {
            data.math(plan, u * SLOTS + s, task);
        }
        self.try_store(u);
    }

    /// Lets the store role take the next task, which is the first that has not ended.
    pub(crate) fn try_store(&mut self, u: usize) {
        let unit = &self.units[u];
        let s = (unit.ended % SLOTS as u64) as usize;
        if unit.storing || unit.ended == unit.begun || !self.slots[u * SLOTS + s].computed {
            return;
        }
        if let Err((word, target)) = self.ready_to_store(u, s) {
            return self.park(u, s, word, target);
        }
        self.waited(u, s, Role::Store);
        self.units[u].storing = true;
        let (plan, _, info) = self.task(u, s);
        let mut end = self.now + Self::ps(info.store, self.slots[u * SLOTS + s].factor);
        let mut early =
            (self.setup.faults.torn && end > self.now + 1).then(|| self.now + (end - self.now) / 2);
        if info.has(REMOTE_WRITE) {
            let Some(landed) = self.store_remote(u, s, plan, info) else { return };
            end = end.max(landed.0);
            early = landed.1.or(early);
        }
        self.busy(u, self.now, end);
        if let Some(early) = early {
            self.push(early, What::StoreEarly, u, s, 0);
        }
        self.push(end, What::Stored, u, s, 0);
    }

    /// Stores to other ranks: when they have landed, and when for the first time if they do twice. Nothing if the NIC
    /// fails.
    fn store_remote(
        &mut self,
        u: usize,
        s: usize,
        plan: &crate::plan::Plan,
        info: &TaskInfo,
    ) -> Option<(u64, Option<u64>)> {
        let (mut end, mut early) = (self.now, None);
        for leg in plan.legs_of(info).iter().filter(|l| l.access.at == Phase::Store) {
            let bytes = leg.access.rect.area() * leg.element;
            let mut from = self.now;
            if leg.access.mode == Mode::Update {
                from = self.get(u, s, leg, bytes, (from, false))?;
            }
            let landing = self.put(u, s, leg, bytes, from)?;
            end = end.max(landing.land);
            early = early.or(landing.early);
        }
        // What has landed twice, or in pieces, has done so before the last of it lands.
        Some((end, early.map(|e| e.min(end - 1))))
    }

    /// What the store writes before it has ended: half of it, or all of it a first time.
    pub(crate) fn on_store_early(&mut self, u: usize, s: usize) {
        self.store_bytes(u, s, if self.setup.faults.torn { Part::Half } else { Part::First });
        self.slots[u * SLOTS + s].early = true;
    }

    pub(crate) fn on_stored(&mut self, u: usize, s: usize) {
        self.store_bytes(u, s, Part::All);
        self.units[u].storing = false;
        let (_, task, _) = self.task(u, s);
        let slot = &mut self.slots[u * SLOTS + s];
        slot.landed = slot.blocks;
        for k in 0..task.posts.len() {
            if task.posts[k].used() && task.posts[k].at() == PostAt::Done {
                self.send(u, s, k, 0);
            }
        }
        self.end_task(u, s);
        self.start_next(u, 0);
        self.try_store(u);
    }

    fn store_bytes(&mut self, u: usize, s: usize, part: Part) {
        if self.data.is_none() {
            return;
        }
        let (plan, task, info) = self.task(u, s);
        let job = *self.job_of(u);
        let computes = info.has(UPDATES) && !self.slots[u * SLOTS + s].early;
        if let Some(data) = &mut self.data {
            if computes {
                data.fetch_updates(plan, &job, u * SLOTS + s);
                data.math(plan, u * SLOTS + s, task);
            }
            data.store(plan, &job, u * SLOTS + s, part);
        }
    }
}
