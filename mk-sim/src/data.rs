//! Data mode: the bytes of tasks at work, and of memory.

use crate::engine::Job;
use crate::memory::{Memory, POISON, Part, copy_rows};
use crate::plan::Plan;
use crate::unit::SLOTS;
use mk_core::{
    Access, Bindings, Io, Mode, Phase, Rank, Rect, RegionId, RegionKind, Registry, Spec, Step, Task, Tensor, View,
    Views, Walk,
};
use std::collections::BTreeMap;

/// A task's copies.
#[derive(Default)]
struct Copies {
    rank: Rank,
    spec: Option<Spec>,
    /// A compute task's, one for each access.
    views: Vec<View>,
    /// A comm task's blocks that are read and have not landed; and whether the model has seen them.
    blocks: Vec<(u32, bool, Vec<View>)>,
}

/// Bytes at work.
pub(crate) struct Data<'a> {
    registry: &'a Registry,
    memory: &'a mut Memory,
    slots: Vec<Copies>,
    /// What each epoch of the run gives back.
    pub(crate) results: Vec<Bindings>,
    /// Outputs that peers may reach, of epochs that have not ended everywhere: peers may be an epoch ahead, so each epoch
    /// collects its own.
    outputs: BTreeMap<(usize, usize, Rank), Vec<u8>>,
    /// Ranks that have not ended each epoch.
    left: Vec<u32>,
}

impl<'a> Data<'a> {
    pub(crate) fn new(registry: &'a Registry, memory: &'a mut Memory, jobs: usize, units: usize) -> Data<'a> {
        Data {
            registry,
            memory,
            slots: (0..units * SLOTS).map(|_| Copies::default()).collect(),
            results: vec![Bindings::new(); jobs],
            outputs: BTreeMap::new(),
            left: vec![registry.world().size(); jobs],
        }
    }

    /// A rank begins an epoch: the caller's tensors are bound, and what it must write is poisoned.
    pub(crate) fn begin(&mut self, plan: &Plan, job: &Job<'_>, rank: Rank) {
        let epoch = job.clocks[0];
        for (i, region) in plan.program().regions.iter().enumerate() {
            let to = self.memory.whole_mut(plan.regions[i], rank, epoch);
            match (region.kind, region.io) {
                (_, Io::Input | Io::InOut) => {
                    let given = job.bindings.and_then(|b| b.get(rank, &region.name));
                    if let Some(tensor) = given {
                        to.copy_from_slice(&tensor.bytes);
                    }
                }
                (RegionKind::Bound, Io::Output | Io::Scratch) if !region.shared => to.fill(POISON),
                _ => {}
            }
        }
    }

    /// A rank has ended an epoch: what it gives back is taken.
    pub(crate) fn end(&mut self, plan: &Plan, job: &Job<'_>, number: usize, rank: Rank) {
        self.take_results(plan, job, number, rank, |r| r.kind == RegionKind::Bound);
        self.left[number] -= 1;
        if self.left[number] == 0 {
            for r in 0..plan.program().ranks {
                self.take_results(plan, job, number, Rank(r as u16), |r| r.kind != RegionKind::Bound);
            }
        }
    }

    fn take_results(
        &mut self,
        plan: &Plan,
        job: &Job<'_>,
        number: usize,
        rank: Rank,
        which: impl Fn(&mk_core::Region) -> bool,
    ) {
        for (i, region) in plan.program().regions.iter().enumerate() {
            if !matches!(region.io, Io::Output | Io::InOut) || !which(region) {
                continue;
            }
            let [rows, cols] = region.extent(rank);
            let collected = self.outputs.remove(&(number, i, rank));
            let untouched = || match (region.kind, region.io) {
                // Nobody wrote it in this epoch.
                (RegionKind::Heap | RegionKind::Staging, Io::Output) => {
                    vec![POISON; (rows * cols * region.dtype.bytes()) as usize]
                }
                _ => self.memory.whole(plan.regions[i], rank, job.clocks[0]).to_vec(),
            };
            let bytes = collected.unwrap_or_else(untouched);
            self.results[number].set(rank, &region.name, Tensor { dtype: region.dtype, rows, cols, bytes });
        }
    }

    /// A task begins in a slot.
    pub(crate) fn take(&mut self, plan: &Plan, slot: usize, rank: Rank, task: u32) {
        let copies = &mut self.slots[slot];
        copies.rank = rank;
        copies.spec = plan.spec(self.registry, rank, task).ok();
        copies.views.clear();
        copies.blocks.clear();
    }

    /// Snapshots what a compute task loads in blocks `from..to`.
    pub(crate) fn load(&mut self, plan: &Plan, job: &Job<'_>, slot: usize, from: u32, to: u32) {
        let copies = &mut self.slots[slot];
        let Some(spec) = &copies.spec else { return };
        if copies.views.is_empty() {
            copies.views = spec.accesses.iter().map(|a| view(plan, a.region, &a.rect)).collect();
        }
        for (a, v) in spec.accesses.iter().zip(&mut copies.views).filter(|(a, _)| a.at == Phase::Load) {
            let whole_now = a.walk == Walk::Whole && from == 0;
            let part = if whole_now { a.rect } else { span(a, from, to) };
            if !part.is_empty() && (whole_now || a.walk != Walk::Whole) {
                let region = plan.regions[a.region.index()];
                self.memory.read(region, a.rank, job.clocks[0], &part, &a.rect, &mut v.bytes);
            }
        }
    }

    /// Computes a compute task.
    pub(crate) fn math(&mut self, plan: &Plan, slot: usize, task: &Task) {
        let handler = &self.registry.handlers()[plan.opcodes[task.op.index()] as usize];
        handler.model(&task.args, Step::Math, &mut Views::new(&mut self.slots[slot].views));
    }

    /// Snapshots what a compute task's stores update.
    pub(crate) fn fetch_updates(&mut self, plan: &Plan, job: &Job<'_>, slot: usize) {
        let copies = &mut self.slots[slot];
        let Some(spec) = &copies.spec else { return };
        for (a, v) in spec.accesses.iter().zip(&mut copies.views) {
            if a.at == Phase::Store && a.mode == Mode::Update && !a.rect.is_empty() {
                let region = plan.regions[a.region.index()];
                self.memory.read(region, a.rank, job.clocks[0], &a.rect, &a.rect, &mut v.bytes);
            }
        }
    }

    /// Writes what a compute task stores.
    pub(crate) fn store(&mut self, plan: &Plan, job: &Job<'_>, number: usize, slot: usize, part: Part) {
        let copies = std::mem::take(&mut self.slots[slot]);
        if let Some(spec) = &copies.spec {
            for (a, v) in spec.accesses.iter().zip(&copies.views) {
                if a.at == Phase::Store && a.mode.writes() {
                    self.write(plan, job, number, a, &a.rect, &v.bytes, part);
                }
            }
        }
        self.slots[slot] = copies;
    }

    /// Snapshots what a comm task reads in a block.
    pub(crate) fn read(&mut self, plan: &Plan, job: &Job<'_>, slot: usize, block: u32) {
        let copies = &mut self.slots[slot];
        let Some(spec) = &copies.spec else { return };
        let mut views = Vec::with_capacity(spec.accesses.len());
        for a in &spec.accesses {
            let rect = a.block_rect(block);
            let mut v = view(plan, a.region, &rect);
            if a.mode == Mode::Read && !rect.is_empty() {
                let region = plan.regions[a.region.index()];
                self.memory.read(region, a.rank, job.clocks[0], &rect, &rect, &mut v.bytes);
            }
            views.push(v);
        }
        copies.blocks.push((block, false, views));
    }

    /// Writes what a comm task writes in a block. What it updates is looked at when the first of it lands.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn land(
        &mut self,
        plan: &Plan,
        job: &Job<'_>,
        number: usize,
        slot: usize,
        task: &Task,
        block: u32,
        part: Part,
    ) {
        let mut copies = std::mem::take(&mut self.slots[slot]);
        let at = copies.blocks.iter().position(|(b, ..)| *b == block);
        if let (Some(spec), Some(at)) = (&copies.spec, at) {
            let (_, seen, views) = &mut copies.blocks[at];
            if !std::mem::replace(seen, true) {
                for (a, v) in spec.accesses.iter().zip(views.iter_mut()) {
                    let rect = a.block_rect(block);
                    if a.mode == Mode::Update && !rect.is_empty() {
                        let region = plan.regions[a.region.index()];
                        self.memory.read(region, a.rank, job.clocks[0], &rect, &rect, &mut v.bytes);
                    }
                }
                let handler = &self.registry.handlers()[plan.opcodes[task.op.index()] as usize];
                handler.model(&task.args, Step::Block(block), &mut Views::new(views));
            }
            for (a, v) in spec.accesses.iter().zip(views.iter()).filter(|(a, _)| a.mode.writes()) {
                self.write(plan, job, number, a, &a.block_rect(block), &v.bytes, part);
            }
            if part == Part::All {
                copies.blocks.swap_remove(at);
            }
        }
        self.slots[slot] = copies;
    }

    #[allow(clippy::too_many_arguments)]
    fn write(
        &mut self,
        plan: &Plan,
        job: &Job<'_>,
        number: usize,
        a: &Access,
        rect: &Rect,
        bytes: &[u8],
        part: Part,
    ) {
        if rect.is_empty() {
            return;
        }
        let region = &plan.program().regions[a.region.index()];
        self.memory.write(plan.regions[a.region.index()], a.rank, job.clocks[0], rect, bytes, part);
        if region.io == Io::Output && region.kind != RegionKind::Bound {
            let ([rows, cols], element) = (region.extent(a.rank), region.dtype.bytes());
            let output = self
                .outputs
                .entry((number, a.region.index(), a.rank))
                .or_insert_with(|| vec![POISON; (rows * cols * element) as usize]);
            copy_rows(output, cols, element as usize, rect, bytes, part);
        }
    }
}

/// Zeros, of the size of `rect`.
fn view(plan: &Plan, region: RegionId, rect: &Rect) -> View {
    let dtype = plan.program().regions[region.index()].dtype;
    let bytes = vec![0; (rect.area() * dtype.bytes()) as usize];
    View { dtype, rows: rect.rows as usize, cols: rect.cols as usize, bytes }
}

/// What a walked access touches in blocks `from..to`.
fn span(a: &Access, from: u32, to: u32) -> Rect {
    let (first, last) = (a.block_rect(from), a.block_rect(to.max(1) - 1));
    let (row, col) = (first.row, first.col);
    Rect::new(row, col, last.row_end().max(row) - row, last.col_end().max(col) - col)
}
