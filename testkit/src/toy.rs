//! Tiny handlers and transports: they touch a few elements only, so that all schedules of a program can be explored.
//!
//! Compute: [`Map`] (`2 x + 1`), [`Add`], [`Accumulate`] (updates in place), [`Fill`] (reads nothing). Transports:
//! [`Near`] over mapped memory, posts carried by the frame; [`Far`] between nodes, unordered, signals carried by the
//! transport.

use mk_core::{
    Access, ArgError, Caps, Carrier, CommOp, CopyArgs, Direction, Env, Error, Handler, HandlerRef, Hardware,
    LinkModel, Mode, Phase, Port, Proxy, Rank, Rect, RegionId, Registry, Spec, Step, Stream, SyncArgs,
    Topology, Transport, Views, Walk, World, copy_model, copy_spec, device_args, sync_spec,
};
use std::sync::Arc;

device_args! {
    /// Arguments of [`Map`], [`Add`] and [`Accumulate`]: rectangles of one size.
    pub struct TileArgs {
        /// First operand.
        pub a: RegionId,
        /// Second operand ([`Add`] only).
        pub b: RegionId,
        /// Result.
        pub dst: RegionId,
        /// Rows of a block of the loads; 0: everything is one block.
        pub block_rows: u16,
        /// 1: the result is stored block by block, too; 0: as a whole.
        pub walked_store: u16,
        /// First row of the first operand.
        pub a_row: u32,
        /// First column of the first operand.
        pub a_col: u32,
        /// First row of the second operand.
        pub b_row: u32,
        /// First column of the second operand.
        pub b_col: u32,
        /// First row of the result.
        pub dst_row: u32,
        /// First column of the result.
        pub dst_col: u32,
        /// Rows.
        pub rows: u32,
        /// Columns.
        pub cols: u32,
    }
}

device_args! {
    /// Arguments of [`Fill`].
    pub struct FillArgs {
        /// Result.
        pub dst: RegionId,
        /// First row.
        pub row: u32,
        /// First column.
        pub col: u32,
        /// Rows.
        pub rows: u32,
        /// Columns.
        pub cols: u32,
        /// What is written.
        pub value: f32,
    }
}

impl TileArgs {
    fn blocks(&self) -> u32 {
        if self.block_rows == 0 { 1 } else { self.rows.div_ceil(self.block_rows as u32).max(1) }
    }

    fn walk(&self) -> Walk {
        if self.block_rows == 0 { Walk::Whole } else { Walk::Rows(self.block_rows as u64) }
    }

    fn rect(&self, row: u32, col: u32) -> Rect {
        Rect::new(row as u64, col as u64, self.rows as u64, self.cols as u64)
    }

    fn load(&self, rank: Rank, region: RegionId, row: u32, col: u32) -> Access {
        let (rect, walk) = (self.rect(row, col), self.walk());
        Access { region, rank, rect, mode: Mode::Read, at: Phase::Load, walk, proxy: Proxy::Generic }
    }

    fn store(&self, rank: Rank, mode: Mode) -> Access {
        let walk = if self.walked_store == 0 { Walk::Whole } else { self.walk() };
        let rect = self.rect(self.dst_row, self.dst_col);
        Access { region: self.dst, rank, rect, mode, at: Phase::Store, walk, proxy: Proxy::Generic }
    }
}

/// `dst = 2 a + 1`.
#[derive(Clone, Copy, Debug)]
pub struct Map;
/// `dst = a + b`.
#[derive(Clone, Copy, Debug)]
pub struct Add;
/// `dst += a`.
#[derive(Clone, Copy, Debug)]
pub struct Accumulate;
/// `dst = value`.
#[derive(Clone, Copy, Debug)]
pub struct Fill;

impl Handler for Map {
    type Args = TileArgs;
    const NAME: &'static str = "toy.map";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Compute;
    fn spec(&self, a: &TileArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        let mut spec = Spec::new(a.blocks());
        spec.touch(env, a.load(env.rank, a.a, a.a_row, a.a_col))?;
        spec.touch(env, a.store(env.rank, Mode::Write))?;
        Ok(spec)
    }
    fn model(&self, _: &TileArgs, _: Step, views: &mut Views<'_>) {
        let out: Vec<f32> = views.load_f32(0).iter().map(|x| 2.0 * x + 1.0).collect();
        views.store_f32(1, &out);
    }
}

impl Handler for Add {
    type Args = TileArgs;
    const NAME: &'static str = "toy.add";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Compute;
    fn spec(&self, a: &TileArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        let mut spec = Spec::new(a.blocks());
        spec.touch(env, a.load(env.rank, a.a, a.a_row, a.a_col))?;
        spec.touch(env, a.load(env.rank, a.b, a.b_row, a.b_col))?;
        spec.touch(env, a.store(env.rank, Mode::Write))?;
        Ok(spec)
    }
    fn model(&self, _: &TileArgs, _: Step, views: &mut Views<'_>) {
        let out: Vec<f32> = views.load_f32(0).iter().zip(views.load_f32(1)).map(|(a, b)| a + b).collect();
        views.store_f32(2, &out);
    }
}

impl Handler for Accumulate {
    type Args = TileArgs;
    const NAME: &'static str = "toy.accumulate";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Compute;
    fn spec(&self, a: &TileArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        let mut spec = Spec::new(a.blocks());
        spec.touch(env, a.load(env.rank, a.a, a.a_row, a.a_col))?;
        spec.touch(env, a.store(env.rank, Mode::Update))?;
        Ok(spec)
    }
    fn model(&self, _: &TileArgs, _: Step, views: &mut Views<'_>) {
        let out: Vec<f32> = views.load_f32(1).iter().zip(views.load_f32(0)).map(|(d, a)| d + a).collect();
        views.store_f32(1, &out);
    }
}

impl Handler for Fill {
    type Args = FillArgs;
    const NAME: &'static str = "toy.fill";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Compute;
    fn spec(&self, a: &FillArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        let mut spec = Spec::new(1);
        let rect = Rect::new(a.row as u64, a.col as u64, a.rows as u64, a.cols as u64);
        let (region, rank, walk) = (a.dst, env.rank, Walk::Whole);
        let (mode, at, proxy) = (Mode::Write, Phase::Store, Proxy::Generic);
        spec.touch(env, Access { region, rank, rect, mode, at, walk, proxy })?;
        Ok(spec)
    }
    fn model(&self, a: &FillArgs, _: Step, views: &mut Views<'_>) {
        let n = views.get(0).rows * views.get(0).cols;
        views.store_f32(0, &vec![a.value; n]);
    }
}

macro_rules! copy_handler {
    ($(#[$doc:meta])* $name:ident, $text:literal, $direction:expr, $carrier:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        struct $name;
        impl Handler for $name {
            type Args = CopyArgs;
            const NAME: &'static str = $text;
            const VERSION: u32 = 1;
            const STREAM: Stream = Stream::Comm;
            const CARRIER: Carrier = $carrier;
            fn spec(&self, a: &CopyArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
                copy_spec(a, env, $direction)
            }
            fn model(&self, _: &CopyArgs, step: Step, views: &mut Views<'_>) {
                copy_model($direction, step, views);
            }
        }
    };
}
macro_rules! sync_handler {
    ($name:ident, $text:literal, $carrier:expr) => {
        #[derive(Clone, Copy, Debug)]
        struct $name;
        impl Handler for $name {
            type Args = SyncArgs;
            const NAME: &'static str = $text;
            const VERSION: u32 = 1;
            const STREAM: Stream = Stream::Comm;
            const CARRIER: Carrier = $carrier;
            fn spec(&self, a: &SyncArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
                sync_spec(a, env)
            }
            fn model(&self, _: &SyncArgs, _: Step, _: &mut Views<'_>) {}
        }
    };
}

copy_handler!(NearPut, "near.put", Direction::Put, Carrier::Frame);
copy_handler!(NearGet, "near.get", Direction::Get, Carrier::Frame);
copy_handler!(NearPutSignal, "near.put_signal", Direction::Put, Carrier::Frame);
copy_handler!(NearReducePut, "near.reduce_put", Direction::ReducePut, Carrier::Frame);
sync_handler!(NearSignal, "near.signal", Carrier::Frame);
sync_handler!(NearWait, "near.wait", Carrier::Frame);
copy_handler!(FarPut, "far.put", Direction::Put, Carrier::Frame);
copy_handler!(FarGet, "far.get", Direction::Get, Carrier::Frame);
copy_handler!(FarPutSignal, "far.put_signal", Direction::Put, Carrier::Transport);
sync_handler!(FarSignal, "far.signal", Carrier::Transport);

/// Mapped memory: whatever NVLink would serve.
#[derive(Clone, Copy, Debug)]
pub struct Near;
/// A network between nodes that keeps no order.
#[derive(Clone, Copy, Debug)]
pub struct Far;

fn link(from: Rank, to: Rank, ordered: bool) -> LinkModel {
    let port = |r: Rank| Port { id: r.0 as u32, gb_per_s: 100.0 };
    LinkModel { latency_ns: 1_000.0, egress: port(from), ingress: port(to), ordered }
}

impl Transport for Near {
    fn name(&self) -> &'static str {
        "near"
    }
    fn probe(&self) -> Result<Caps, Error> {
        Ok(Caps::all())
    }
    fn caps(&self, topology: &Topology, from: Rank, to: Rank) -> Caps {
        let all = Caps::PUT | Caps::GET | Caps::SIGNAL | Caps::ATOMIC_ADD | Caps::REDUCE | Caps::ORDERED;
        if topology.mapped(from, to) { all } else { Caps::empty() }
    }
    fn link(&self, _: &Topology, _: &Hardware, from: Rank, to: Rank) -> LinkModel {
        link(from, to, true)
    }
    fn handlers(&self) -> Vec<(CommOp, HandlerRef)> {
        vec![
            (CommOp::Put, Arc::new(NearPut)),
            (CommOp::Get, Arc::new(NearGet)),
            (CommOp::PutSignal, Arc::new(NearPutSignal)),
            (CommOp::ReducePut, Arc::new(NearReducePut)),
            (CommOp::Signal, Arc::new(NearSignal)),
            (CommOp::Wait, Arc::new(NearWait)),
        ]
    }
}

impl Transport for Far {
    fn name(&self) -> &'static str {
        "far"
    }
    fn probe(&self) -> Result<Caps, Error> {
        Ok(Caps::all())
    }
    fn caps(&self, topology: &Topology, from: Rank, to: Rank) -> Caps {
        let serves = topology.networked(from, to) && !topology.mapped(from, to);
        if serves { Caps::PUT | Caps::GET | Caps::SIGNAL } else { Caps::empty() }
    }
    fn link(&self, _: &Topology, _: &Hardware, from: Rank, to: Rank) -> LinkModel {
        link(from, to, false)
    }
    fn handlers(&self) -> Vec<(CommOp, HandlerRef)> {
        vec![
            (CommOp::Put, Arc::new(FarPut)),
            (CommOp::Get, Arc::new(FarGet)),
            (CommOp::PutSignal, Arc::new(FarPutSignal)),
            (CommOp::Signal, Arc::new(FarSignal)),
        ]
    }
}

/// A registry of the toys for `ranks` ranks on `nodes` nodes (one NIC each where there are several).
///
/// # Errors
/// A world that does not exist, for example ranks that do not divide over the nodes.
pub fn registry(nodes: u64, ranks: u64) -> Result<Registry, Error> {
    let world = World::of(Topology::uniform(nodes, ranks, u32::from(nodes > 1))?);
    Registry::builder()
        .transport(Near)
        .transport(Far)
        .handler(Map)
        .handler(Add)
        .handler(Accumulate)
        .handler(Fill)
        .build(&world)
}
