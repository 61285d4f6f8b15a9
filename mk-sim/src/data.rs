//! Data mode: the bytes of tasks at work, and of memory.

use crate::engine::Job;
use crate::memory::{Memory, POISON, Part};
use crate::plan::Plan;
use crate::unit::SLOTS;
use mk_core::{
    Access, ArgError, Bindings, Error, Io, Mode, Phase, Rank, Rect, RegionId, RegionKind, Registry, Spec,
    Step, Task, Tensor, View, Views, Walk,
};

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
    /// The first thing that a handler did wrong: its results are worth nothing then.
    pub(crate) wrong: Option<Error>,
}

impl<'a> Data<'a> {
    pub(crate) fn new(registry: &'a Registry, memory: &'a mut Memory, jobs: usize, units: usize) -> Data<'a> {
        Data {
            registry,
            memory,
            slots: (0..units * SLOTS).map(|_| Copies::default()).collect(),
            results: vec![Bindings::new(); jobs],
            wrong: None,
        }
    }

    /// A rank begins an epoch: the caller's tensors are bound, and what holds nothing from the last epoch is poisoned.
    /// (Peers do not touch the caller's memory before a post of the rank, so they are never too early.)
    pub(crate) fn begin(&mut self, plan: &Plan, job: &Job<'_>, rank: Rank) {
        for (i, region) in plan.program().regions.iter().enumerate() {
            let to = self.memory.whole_mut(plan.regions[i], rank, job.clocks[0]);
            match region.io {
                Io::Input | Io::InOut => {
                    if let Some(tensor) = job.bindings.and_then(|b| b.get(rank, &region.name)) {
                        to.copy_from_slice(&tensor.bytes);
                    }
                }
                Io::Output => to.fill(POISON),
                Io::Scratch if region.kind == RegionKind::Bound && !region.shared => to.fill(POISON),
                Io::Scratch => {}
            }
        }
    }

    /// A rank has ended an epoch: what it gives back is taken.
    pub(crate) fn end(&mut self, plan: &Plan, job: &Job<'_>, number: usize, rank: Rank) {
        for (i, region) in plan.program().regions.iter().enumerate() {
            if matches!(region.io, Io::Output | Io::InOut) {
                let [rows, cols] = region.extent(rank);
                let bytes = self.memory.whole(plan.regions[i], rank, job.clocks[0]).to_vec();
                self.results[number].set(
                    rank,
                    &region.name,
                    Tensor { dtype: region.dtype, rows, cols, bytes },
                );
            }
        }
    }

    /// A task begins in a slot.
    pub(crate) fn take(&mut self, plan: &Plan, slot: usize, rank: Rank, task: u32) {
        let copies = &mut self.slots[slot];
        copies.rank = rank;
        copies.views.clear();
        copies.blocks.clear();
        match plan.spec(self.registry, rank, task) {
            Ok(spec) => copies.spec = Some(spec),
            Err(e) => {
                copies.spec = None;
                self.wrong.get_or_insert(e);
            }
        }
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
        let done = handler.model(&task.args, Step::Math, &mut Views::new(&mut self.slots[slot].views));
        if done.is_err() {
            self.slots[slot].spec = None;
        }
        self.note(handler.name(), done);
    }

    /// Keeps the first thing that a handler did wrong.
    fn note(&mut self, handler: &str, done: Result<(), ArgError>) {
        if let (Err(e), None) = (done, &self.wrong) {
            self.wrong = Some(Error::Args { handler: handler.into(), message: e.to_string() });
        }
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
    pub(crate) fn store(&mut self, plan: &Plan, job: &Job<'_>, slot: usize, part: Part) {
        let copies = std::mem::take(&mut self.slots[slot]);
        if let Some(spec) = &copies.spec {
            for (a, v) in spec.accesses.iter().zip(&copies.views) {
                if a.at == Phase::Store && a.mode.writes() {
                    self.write(plan, job, a, &a.rect, &v.bytes, part);
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
                let done = handler.model(&task.args, Step::Block(block), &mut Views::new(views));
                if done.is_err() {
                    // What it left is not written anywhere.
                    views.clear();
                }
                self.note(handler.name(), done);
            }
            for (a, v) in spec.accesses.iter().zip(views.iter()).filter(|(a, _)| a.mode.writes()) {
                self.write(plan, job, a, &a.block_rect(block), &v.bytes, part);
            }
            if part == Part::All {
                copies.blocks.swap_remove(at);
            }
        }
        self.slots[slot] = copies;
    }

    fn write(&mut self, plan: &Plan, job: &Job<'_>, a: &Access, rect: &Rect, bytes: &[u8], part: Part) {
        if !rect.is_empty() {
            self.memory.write(plan.regions[a.region.index()], a.rank, job.clocks[0], rect, bytes, part);
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
