//! What every transport's handlers have in common: argument structs, specs and models of put, get and reduce-put.
//!
//! A transport's own handler names itself, its carrier and its device side, and calls these for the rest.

use crate::{
    Access, ArgError, DType, Env, Mode, Phase, Proxy, Rank, Rect, RegionId, Spec, Step, Views, Walk,
    device_args,
};

/// The operations that a transport can offer a planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CommOp {
    /// Write bytes to a peer. Its posts may only raise words that the executing rank's frame reaches.
    Put,
    /// Read bytes from a peer.
    Get,
    /// Write bytes to a peer, then raise a word there; the word is seen only after the bytes.
    PutSignal,
    /// Raise a word on a peer.
    Signal,
    /// Wait for words, touch nothing, post: a join.
    Wait,
    /// Add bytes to a peer's memory. Not atomic: the adds to one place are ordered by signals.
    ReducePut,
}

device_args! {
    /// Arguments of put, get, put_signal and reduce_put: a rectangle from `src` to `dst`, one of which is on `peer`.
    pub struct CopyArgs {
        /// Region that is read.
        pub src: RegionId,
        /// Region that is written.
        pub dst: RegionId,
        /// The other rank (its `dst` for put and reduce-put, its `src` for get); may be the executing rank itself.
        pub peer: Rank,
        /// Column slices that are sent (and may be posted) one after the other; at least 1.
        pub units: u16,
        /// First row in `src`.
        pub src_row: u64,
        /// First column in `src`.
        pub src_col: u64,
        /// First row in `dst`.
        pub dst_row: u64,
        /// First column in `dst`.
        pub dst_col: u64,
        /// Rows.
        pub rows: u32,
        /// Columns.
        pub cols: u32,
    }
}

device_args! {
    /// Arguments of signal and wait: everything that they do stands in their waits and posts.
    pub struct SyncArgs {
        /// The rank that is meant, for the transport to find its queue; the executing rank itself for a wait.
        pub peer: Rank,
    }
}

/// Columns are sent in multiples of 8: 16 bytes of a 2-byte type.
const COLUMN_UNIT: u64 = 8;

impl CopyArgs {
    /// Columns of one unit (the last may have fewer): the even share, rounded up to 16-byte rows.
    #[inline]
    pub fn unit_cols(&self) -> u64 {
        (self.cols as u64).div_ceil(self.units.max(1) as u64).max(1).next_multiple_of(COLUMN_UNIT)
    }
}

/// Which end of a copy is on the peer, and how it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// `dst` is on the peer and overwritten.
    Put,
    /// `src` is on the peer.
    Get,
    /// `dst` is on the peer and added to.
    ReducePut,
}

/// The spec of a copy: reads `src`, then writes (or updates) `dst`, unit by unit.
///
/// # Errors
/// An unknown region or rank, no units, or element types that differ.
#[inline]
pub fn copy_spec(a: &CopyArgs, env: &Env<'_>, direction: Direction) -> Result<Spec, ArgError> {
    let (src, dst) = (env.region(a.src)?, env.region(a.dst)?);
    let peer = env.peer(a.peer)?;
    if a.units == 0 {
        return Err(ArgError::new("units is 0: at least 1 is needed"));
    }
    if src.dtype != dst.dtype {
        return Err(ArgError::new(format!(
            "'{}' holds {} but '{}' holds {}: cast first",
            src.name, src.dtype, dst.name, dst.dtype
        )));
    }
    let (src_rank, dst_rank, mode) = match direction {
        Direction::Put => (env.rank, peer, Mode::Write),
        Direction::Get => (peer, env.rank, Mode::Write),
        Direction::ReducePut => (env.rank, peer, Mode::Update),
    };
    let mut spec = Spec::new(a.units as u32);
    let access = |region, rank, row, col, mode| Access {
        region,
        rank,
        rect: Rect::new(row, col, a.rows as u64, a.cols as u64),
        mode,
        at: Phase::Comm,
        walk: Walk::Cols(a.unit_cols()),
        proxy: Proxy::Async,
    };
    spec.touch(env, access(a.src, src_rank, a.src_row, a.src_col, Mode::Read))?;
    spec.touch(env, access(a.dst, dst_rank, a.dst_row, a.dst_col, mode))?;
    if direction == Direction::ReducePut {
        spec.work.vector_flops = a.rows as u64 * a.cols as u64;
    }
    Ok(spec)
}

/// The model of a copy: what [`copy_spec`] reads is written, or added in f32 and rounded once.
pub fn copy_model(direction: Direction, _: Step, views: &mut Views<'_>) {
    if direction != Direction::ReducePut {
        return views.copy(0, 1);
    }
    if views.get(1).dtype == DType::I32 {
        return add_i32(views);
    }
    let sum: Vec<f32> = views.load_f32(0).iter().zip(views.load_f32(1)).map(|(a, b)| b + a).collect();
    views.store_f32(1, &sum);
}

/// Integers are added as integers: f32 holds them exactly only below 2^24.
fn add_i32(views: &mut Views<'_>) {
    let int = |b: &[u8]| i32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    let added = views.get(0).bytes.clone();
    for (to, a) in views.get_mut(1).bytes.chunks_exact_mut(4).zip(added.chunks_exact(4)) {
        let sum = int(to).wrapping_add(int(a));
        to.copy_from_slice(&sum.to_le_bytes());
    }
}

/// The spec of signal and wait: they touch nothing.
///
/// # Errors
/// An unknown rank.
#[inline]
pub fn sync_spec(a: &SyncArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
    env.peer(a.peer)?;
    Ok(Spec::new(1))
}
