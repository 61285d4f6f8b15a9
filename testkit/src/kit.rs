//! Short-hands to write small programs of [`toy`] handlers.

use crate::toy::{self, FillArgs, TileArgs};
use mk_core::{
    CopyArgs, DType, Error, Lane, PostTo, Program, ProgramBuilder, Queue, Rank, Region, RegionId, RegionKind,
    Registry, Shape, SignalKind, SignalRef, SyncArgs, TaskRef, WaitFor,
};

/// A program with the registry that it was made for.
#[derive(Clone, Debug)]
pub struct Case {
    /// What it is.
    pub name: String,
    /// The program.
    pub program: Program,
    /// Its registry.
    pub registry: Registry,
}

/// A place in a region: region, first row, first column.
pub type At = (RegionId, u32, u32);

/// Where a task runs: rank and lane.
pub type On = (u16, u16);

/// The lane number that stands for the ticket queue.
pub const TICKET: u16 = u16::MAX;

/// A program under construction.
pub struct Kit {
    /// The builder, for what has no short-hand.
    pub b: ProgramBuilder,
    registry: Registry,
    name: String,
}

fn queue(lane: u16) -> Queue {
    if lane == TICKET { Queue::Ticket } else { Queue::Lane(Lane(lane)) }
}

impl Kit {
    /// An empty program for `ranks` ranks on `nodes` nodes.
    ///
    /// # Errors
    /// A world that does not exist.
    pub fn new(name: impl Into<String>, nodes: u64, ranks: u64) -> Result<Kit, Error> {
        let (registry, name) = (toy::registry(nodes, ranks)?, name.into());
        Ok(Kit { b: ProgramBuilder::new(&name, &registry), registry, name })
    }

    /// The finished program.
    ///
    /// # Errors
    /// As [`ProgramBuilder::finish`].
    pub fn finish(self) -> Result<Case, Error> {
        Ok(Case { name: self.name, program: self.b.finish()?, registry: self.registry })
    }

    /// An input of the caller.
    ///
    /// # Errors
    /// As [`ProgramBuilder::region`].
    pub fn input(&mut self, name: &str, rows: u64, cols: u64) -> Result<RegionId, Error> {
        self.b.region(Region::input(name, DType::F32, Shape::Uniform([rows, cols])))
    }

    /// An output of the caller.
    ///
    /// # Errors
    /// As [`ProgramBuilder::region`].
    pub fn output(&mut self, name: &str, rows: u64, cols: u64) -> Result<RegionId, Error> {
        self.b.region(Region::output(name, DType::F32, Shape::Uniform([rows, cols])))
    }

    /// Scratch memory that peers reach, of so many rotating copies.
    ///
    /// # Errors
    /// As [`ProgramBuilder::region`].
    pub fn heap(&mut self, name: &str, rows: u64, cols: u64, depth: u32) -> Result<RegionId, Error> {
        self.b.region(Region::heap(name, DType::F32, Shape::Uniform([rows, cols])).rotating(depth))
    }

    /// Scratch memory that no peer reaches.
    ///
    /// # Errors
    /// As [`ProgramBuilder::region`].
    pub fn local(&mut self, name: &str, rows: u64, cols: u64) -> Result<RegionId, Error> {
        let shape = Shape::Uniform([rows, cols]);
        self.b.region(Region::new(name, RegionKind::Bound, mk_core::Io::Scratch, DType::F32, shape))
    }

    /// A signal of `Add` words.
    ///
    /// # Errors
    /// As [`ProgramBuilder::signal`].
    pub fn adds(&mut self, name: &str, words: u64) -> Result<SignalRef, Error> {
        self.b.signal(name, SignalKind::Add, words)
    }

    /// A signal of `Set` words.
    ///
    /// # Errors
    /// As [`ProgramBuilder::signal`].
    pub fn sets(&mut self, name: &str, words: u64) -> Result<SignalRef, Error> {
        self.b.signal(name, SignalKind::Set, words)
    }

    /// A compute task of two or three rectangles.
    ///
    /// # Errors
    /// As [`ProgramBuilder::task`].
    pub fn tile(&mut self, op: &str, on: On, label: &str, args: TileArgs) -> Result<TaskRef, Error> {
        let (op, label) = (self.b.op(op)?, self.b.label(label));
        self.b.task(Rank(on.0), queue(on.1), op, label, &args)
    }

    /// `dst = 2 src + 1`, all in one block.
    ///
    /// # Errors
    /// As [`ProgramBuilder::task`].
    pub fn map(&mut self, on: On, label: &str, src: At, dst: At, size: [u32; 2]) -> Result<TaskRef, Error> {
        self.tile("toy.map", on, label, tile(src, src, dst, size))
    }

    /// `dst = 2 src + 1`, loaded in blocks of so many rows, stored in blocks if `walked`.
    ///
    /// # Errors
    /// As [`ProgramBuilder::task`].
    #[allow(clippy::too_many_arguments, reason = "one short line a task in the programs that use it")]
    pub fn walk(
        &mut self,
        on: On,
        label: &str,
        src: At,
        dst: At,
        size: [u32; 2],
        block_rows: u16,
        walked: bool,
    ) -> Result<TaskRef, Error> {
        let args = TileArgs { block_rows, walked_store: walked.into(), ..tile(src, src, dst, size) };
        self.tile("toy.map", on, label, args)
    }

    /// `dst = a + b`.
    ///
    /// # Errors
    /// As [`ProgramBuilder::task`].
    pub fn add(
        &mut self,
        on: On,
        label: &str,
        a: At,
        b: At,
        dst: At,
        size: [u32; 2],
    ) -> Result<TaskRef, Error> {
        self.tile("toy.add", on, label, tile(a, b, dst, size))
    }

    /// `dst += a`.
    ///
    /// # Errors
    /// As [`ProgramBuilder::task`].
    pub fn accumulate(
        &mut self,
        on: On,
        label: &str,
        a: At,
        dst: At,
        size: [u32; 2],
    ) -> Result<TaskRef, Error> {
        self.tile("toy.accumulate", on, label, tile(a, a, dst, size))
    }

    /// `dst = value`.
    ///
    /// # Errors
    /// As [`ProgramBuilder::task`].
    pub fn fill(
        &mut self,
        on: On,
        label: &str,
        dst: At,
        size: [u32; 2],
        value: f32,
    ) -> Result<TaskRef, Error> {
        let (op, label) = (self.b.op("toy.fill")?, self.b.label(label));
        let args = FillArgs { dst: dst.0, row: dst.1, col: dst.2, rows: size[0], cols: size[1], value };
        self.b.task(Rank(on.0), queue(on.1), op, label, &args)
    }

    /// A copy by the handler `op`, in `units` units of 8 columns or more.
    ///
    /// # Errors
    /// As [`ProgramBuilder::task`].
    #[allow(clippy::too_many_arguments, reason = "one short line a task in the programs that use it")]
    pub fn copy(
        &mut self,
        op: &str,
        on: On,
        label: &str,
        peer: u16,
        src: At,
        dst: At,
        size: [u32; 2],
        units: u16,
    ) -> Result<TaskRef, Error> {
        let (op, label) = (self.b.op(op)?, self.b.label(label));
        let args = CopyArgs {
            src: src.0,
            dst: dst.0,
            peer: Rank(peer),
            units,
            src_row: src.1.into(),
            src_col: src.2.into(),
            dst_row: dst.1.into(),
            dst_col: dst.2.into(),
            rows: size[0],
            cols: size[1],
        };
        self.b.task(Rank(on.0), queue(on.1), op, label, &args)
    }

    /// A signal or wait task by the handler `op`.
    ///
    /// # Errors
    /// As [`ProgramBuilder::task`].
    pub fn sync(&mut self, op: &str, on: On, label: &str, peer: u16) -> Result<TaskRef, Error> {
        let (op, label) = (self.b.op(op)?, self.b.label(label));
        self.b.task(Rank(on.0), queue(on.1), op, label, &SyncArgs { peer: Rank(peer) })
    }

    /// Makes a task wait.
    ///
    /// # Errors
    /// As [`ProgramBuilder::wait`].
    pub fn wait(&mut self, task: TaskRef, wait: WaitFor) -> Result<(), Error> {
        self.b.wait(task, wait)
    }

    /// Posts word `index` of `rank` when the task is done.
    ///
    /// # Errors
    /// As [`ProgramBuilder::post`].
    pub fn done(&mut self, task: TaskRef, rank: u16, signal: SignalRef, index: u64) -> Result<(), Error> {
        self.b.post(task, PostTo::done(Rank(rank), signal, index))
    }

    /// Posts word `index` of `rank` when the task has loaded.
    ///
    /// # Errors
    /// As [`ProgramBuilder::post`].
    pub fn loaded(&mut self, task: TaskRef, rank: u16, signal: SignalRef, index: u64) -> Result<(), Error> {
        self.b.post(task, PostTo::loaded(Rank(rank), signal, index))
    }
}

/// Three rectangles of one size, all in one block.
pub fn tile(a: At, b: At, dst: At, size: [u32; 2]) -> TileArgs {
    TileArgs {
        a: a.0,
        b: b.0,
        dst: dst.0,
        block_rows: 0,
        walked_store: 0,
        a_row: a.1,
        a_col: a.2,
        b_row: b.1,
        b_col: b.2,
        dst_row: dst.1,
        dst_col: dst.2,
        rows: size[0],
        cols: size[1],
    }
}
