//! The plainest way to run a program: one task after the other, each as a whole, on real bytes.
//!
//! It has no time, no overlap and no detectors. It is a second opinion on what a right program computes; it cannot run
//! programs whose tasks must overlap (two that hand each other block after block).

use mk_core::{
    Access, ArgError, Bindings, Error, Io, Program, Rank, Rect, RegionId, Registry, SignalKind, Spec, Step,
    Stream, Tensor, View, Views,
};
use std::collections::HashMap;

/// A program that has run for some epochs.
#[derive(Debug)]
pub struct Serial<'a> {
    program: &'a Program,
    registry: &'a Registry,
    opcodes: Vec<u16>,
    epoch: u64,
    words: HashMap<(Rank, u32), u64>,
    memory: HashMap<(RegionId, Rank, u64), Tensor>,
}

impl<'a> Serial<'a> {
    /// The program before its first epoch; all memory holds zeros.
    ///
    /// # Errors
    /// A handler that is not registered.
    pub fn new(program: &'a Program, registry: &'a Registry) -> Result<Serial<'a>, Error> {
        let opcodes = program.opcodes(registry)?;
        let mut memory = HashMap::new();
        for (i, region) in program.regions.iter().enumerate() {
            for rank in (0..program.ranks as u16).map(Rank) {
                let [rows, cols] = region.extent(rank);
                for copy in 0..u64::from(region.depth) {
                    let zeros = Tensor::zeros(region.dtype, rows, cols);
                    memory.insert((RegionId(i as u16), rank, copy), zeros);
                }
            }
        }
        Ok(Serial { program, registry, opcodes, epoch: 0, words: HashMap::new(), memory })
    }

    /// Runs one epoch on all ranks.
    ///
    /// # Errors
    /// Tasks that can never start; the error names them.
    pub fn run(&mut self, inputs: &Bindings) -> Result<Bindings, Error> {
        self.epoch += 1;
        for (rank, name, tensor) in inputs.iter() {
            if let Some(place) = self.place(name, rank) {
                self.memory.insert(place, tensor.clone());
            }
        }
        let mut next: Vec<u32> = self.program.streams.iter().map(|s| s.first).collect();
        loop {
            let mut moved = false;
            for (s, stream) in self.program.streams.iter().enumerate() {
                while next[s] < stream.first + stream.len && self.is_ready(stream.rank, next[s]) {
                    self.execute(stream.rank, next[s])?;
                    next[s] += 1;
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        let left = |(s, &n): (usize, &u32)| {
            let stream = &self.program.streams[s];
            (n < stream.first + stream.len).then(|| self.program.task_name(mk_core::TaskId(n)))
        };
        let stuck: Vec<String> = next.iter().enumerate().filter_map(left).collect();
        if !stuck.is_empty() {
            return Err(Error::build(format!("nothing can start: {}", stuck.join(", ")), "find the cycle"));
        }
        Ok(self.outputs())
    }

    fn place(&self, name: &str, rank: Rank) -> Option<(RegionId, Rank, u64)> {
        let i = self.program.regions.iter().position(|r| r.name == name)?;
        Some((RegionId(i as u16), rank, self.epoch % u64::from(self.program.regions[i].depth)))
    }

    fn outputs(&self) -> Bindings {
        let mut out = Bindings::new();
        for region in self.program.regions.iter().filter(|r| matches!(r.io, Io::Output | Io::InOut)) {
            for rank in (0..self.program.ranks as u16).map(Rank) {
                if let Some(tensor) = self.place(&region.name, rank).and_then(|p| self.memory.get(&p)) {
                    out.set(rank, &region.name, tensor.clone());
                }
            }
        }
        out
    }

    fn is_ready(&self, rank: Rank, task: u32) -> bool {
        let word = |w: u32| self.words.get(&(rank, w)).copied().unwrap_or(0);
        let task = &self.program.tasks[task as usize];
        task.waits().all(|w| w.words().all(|x| word(x) >= w.target(self.epoch)))
    }

    fn execute(&mut self, rank: Rank, index: u32) -> Result<(), Error> {
        let task = &self.program.tasks[index as usize];
        let opcode = self.opcodes[task.op.index()];
        let spec = self.program.spec(self.registry, opcode, rank, task)?;
        let handler = &self.registry.handlers()[opcode as usize];
        let wrong = |e: ArgError| Error::Args { handler: handler.name().into(), message: e.to_string() };
        if handler.stream() == Stream::Compute {
            self.step(&spec, None, |v| handler.model(&task.args, Step::Math, v)).map_err(wrong)?;
        } else {
            for b in 0..spec.blocks {
                self.step(&spec, Some(b), |v| handler.model(&task.args, Step::Block(b), v)).map_err(wrong)?;
            }
        }
        for p in task.posts() {
            for word in p.word..p.word + p.count(spec.blocks) {
                let at = self.words.entry((p.to(), word)).or_default();
                *at = if p.kind() == SignalKind::Add { *at + 1 } else { p.value(self.epoch) };
            }
        }
        Ok(())
    }

    /// Loads what the step's accesses name, calls the model, stores what they write.
    fn step(
        &mut self,
        spec: &Spec,
        block: Option<u32>,
        model: impl FnOnce(&mut Views<'_>) -> Result<(), ArgError>,
    ) -> Result<(), ArgError> {
        let rect = |a: &Access| block.map_or(a.rect, |b| a.block_rect(b));
        if block.is_some() && spec.accesses.iter().all(|a| rect(a).is_empty()) {
            return Ok(());
        }
        let mut views: Vec<View> = spec.accesses.iter().map(|a| self.load(a, rect(a))).collect();
        model(&mut Views::new(&mut views))?;
        for (a, view) in spec.accesses.iter().zip(views).filter(|(a, _)| a.mode.writes()) {
            let (r, at) = (rect(a), self.copy_of(a));
            if let Some(tensor) = self.memory.get_mut(&at).filter(|_| !r.is_empty()) {
                let part = Tensor { dtype: view.dtype, rows: r.rows, cols: r.cols, bytes: view.bytes };
                tensor.paste(r.row, r.col, &part);
            }
        }
        Ok(())
    }

    fn copy_of(&self, a: &Access) -> (RegionId, Rank, u64) {
        (a.region, a.rank, self.epoch % u64::from(self.program.regions[a.region.index()].depth))
    }

    fn load(&self, a: &Access, r: Rect) -> View {
        let dtype = self.program.regions[a.region.index()].dtype;
        let bytes = match self.memory.get(&self.copy_of(a)) {
            Some(t) if !r.is_empty() => t.slice(r.row, r.rows, r.col, r.cols).bytes,
            _ => Vec::new(),
        };
        let [rows, cols] = if r.is_empty() { [0, 0] } else { [r.rows, r.cols] };
        View { dtype, rows: rows as usize, cols: cols as usize, bytes }
    }
}
