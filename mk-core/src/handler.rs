//! Handlers: one operation each, with one `Spec` from which everything else follows.

use crate::{ArgError, DType, DeviceAbi, Field, Limits, Rank, Rect, Region, RegionId};
use smallvec::SmallVec;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Which stream of a lane a handler runs in. The two are served by different warps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// Load, math and store warps.
    Compute = 0,
    /// The comm warp.
    Comm = 1,
}

/// Who carries a task's posts to other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Carrier {
    /// The frame, by GPU atomics on mapped memory.
    Frame,
    /// The handler's transport, after the data that they follow; no `Add` words.
    Transport,
}

/// What a handler may look at when it states its [`Spec`].
#[derive(Clone, Copy, Debug)]
pub struct Env<'a> {
    /// The program's regions.
    pub regions: &'a [Region],
    /// The rank that executes the task.
    pub rank: Rank,
    /// Ranks in the world.
    pub ranks: u32,
}

impl<'a> Env<'a> {
    /// The region, or an error that names the number of regions.
    #[inline]
    pub fn region(&self, id: RegionId) -> Result<&'a Region, ArgError> {
        self.regions.get(id.index()).ok_or_else(|| {
            ArgError::new(format!("{id} does not exist: the program has {} regions", self.regions.len()))
        })
    }

    /// The rank, or an error that names the size of the world.
    #[inline]
    pub fn peer(&self, rank: Rank) -> Result<Rank, ArgError> {
        if (rank.0 as u32) < self.ranks {
            Ok(rank)
        } else {
            Err(ArgError::new(format!("{rank} is outside a world of {} ranks", self.ranks)))
        }
    }
}

/// How an access uses memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Reads.
    Read,
    /// Writes, without looking at what was there.
    Write,
    /// Reads, changes and writes back. Two updates of the same bytes must be ordered like any other two writes:
    /// that is what makes results the same bits, run after run.
    Update,
}

impl Mode {
    /// Whether it changes memory.
    #[inline]
    pub fn writes(self) -> bool {
        self != Mode::Read
    }
}

/// The part of a task in which an access happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Load warp of a compute task.
    Load,
    /// Store warp of a compute task.
    Store,
    /// Comm warp.
    Comm,
}

/// The order in which an access touches its rectangle, one block after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Walk {
    /// In no particular order: for a load from block 0 on, for a store after everything is loaded.
    Whole,
    /// Block `b` touches this many rows, from row `b * rows` of the rectangle.
    Rows(u64),
    /// Block `b` touches this many columns, from column `b * cols` of the rectangle.
    Cols(u64),
}

/// Through which path of the GPU's memory system an access goes; the frame places proxy fences by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Proxy {
    /// Ordinary loads and stores.
    Generic,
    /// TMA and bulk copies.
    Async,
}

/// One rectangle that a task touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// Which region.
    pub region: RegionId,
    /// On which rank.
    pub rank: Rank,
    /// Which elements.
    pub rect: Rect,
    /// How.
    pub mode: Mode,
    /// In which part of the task.
    pub at: Phase,
    /// In which order.
    pub walk: Walk,
    /// By which path.
    pub proxy: Proxy,
}

impl Access {
    /// What block `block` touches of it.
    #[inline]
    pub fn block_rect(&self, block: u32) -> Rect {
        let r = self.rect;
        let part = |size: u64, whole: u64| {
            let from = size.saturating_mul(block as u64).min(whole);
            (from, size.min(whole - from))
        };
        match self.walk {
            Walk::Whole => r,
            Walk::Rows(n) => {
                let (from, rows) = part(n, r.rows);
                Rect::new(r.row + from, r.col, rows, r.cols)
            }
            Walk::Cols(n) => {
                let (from, cols) = part(n, r.cols);
                Rect::new(r.row, r.col + from, r.rows, cols)
            }
        }
    }

    /// The first block that touches any of `part`, which lies inside [`Access::rect`].
    #[inline]
    pub fn first_block(&self, part: &Rect) -> u32 {
        match self.walk {
            Walk::Whole => 0,
            Walk::Rows(n) => ((part.row - self.rect.row) / n.max(1)).min(u32::MAX as u64) as u32,
            Walk::Cols(n) => ((part.col - self.rect.col) / n.max(1)).min(u32::MAX as u64) as u32,
        }
    }

    /// The last block (of `blocks`) that touches any of `part`, which is not empty and lies inside [`Access::rect`].
    #[inline]
    pub fn last_block(&self, part: &Rect, blocks: u32) -> u32 {
        let last = blocks.max(1) - 1;
        match self.walk {
            Walk::Whole => last,
            Walk::Rows(n) => ((part.row_end() - 1 - self.rect.row) / n.max(1)).min(last as u64) as u32,
            Walk::Cols(n) => ((part.col_end() - 1 - self.rect.col) / n.max(1)).min(last as u64) as u32,
        }
    }
}

/// How much arithmetic and traffic a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Work {
    /// Operations on tensor cores (a multiply and an add are two).
    pub tensor_flops: u64,
    /// Operations on ordinary cores.
    pub vector_flops: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

/// What a task touches and how much work it is: legality, bounds, the verifier's edges, byte counts and time
/// all come from it.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// What it touches.
    pub accesses: SmallVec<[Access; 4]>,
    /// How much it is.
    pub work: Work,
    /// Blocks of its load, or units of a comm task; at least 1.
    pub blocks: u32,
}

impl Spec {
    /// A task of `blocks` blocks that touches nothing yet.
    #[inline]
    pub fn new(blocks: u32) -> Spec {
        Spec { accesses: SmallVec::new(), work: Work::default(), blocks: blocks.max(1) }
    }

    /// Adds an access, and its bytes to the work. An empty rectangle is no access.
    #[inline]
    pub fn touch(&mut self, env: &Env<'_>, access: Access) -> Result<(), ArgError> {
        let bytes = access.rect.area().saturating_mul(env.region(access.region)?.dtype.bytes());
        let work = &mut self.work;
        if access.mode != Mode::Write {
            work.read_bytes = work.read_bytes.saturating_add(bytes);
        }
        if access.mode.writes() {
            work.write_bytes = work.write_bytes.saturating_add(bytes);
        }
        self.accesses.push(access);
        Ok(())
    }
}

/// The part of a task that a [`Handler::model`] call computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// All of a compute task: every load has happened, no store has.
    Math,
    /// One block of a comm task: views hold that block's bytes only.
    Block(u32),
}

/// One access's bytes: a dense, row-major copy.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// Type of its elements.
    pub dtype: DType,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// The bytes that a task's spec names, in the order of its accesses, and nothing else.
#[derive(Debug)]
pub struct Views<'a>(&'a mut [View]);

impl<'a> Views<'a> {
    /// Views over these copies; what the model leaves in those of writing accesses is stored.
    pub fn new(views: &'a mut [View]) -> Views<'a> {
        Views(views)
    }

    /// Access `i`'s view.
    pub fn get(&self, i: usize) -> &View {
        &self.0[i]
    }

    /// Access `i`'s view, to write to.
    pub fn get_mut(&mut self, i: usize) -> &mut View {
        &mut self.0[i]
    }

    /// All elements of access `i`, as f32.
    pub fn load_f32(&self, i: usize) -> Vec<f32> {
        let v = &self.0[i];
        (0..v.rows * v.cols).map(|e| v.dtype.load(&v.bytes, e)).collect()
    }

    /// Stores `values` to access `i`, each rounded once to its type.
    ///
    /// # Panics
    /// If there are not as many values as elements.
    pub fn store_f32(&mut self, i: usize, values: &[f32]) {
        let v = &mut self.0[i];
        assert_eq!(values.len(), v.rows * v.cols, "view {i} takes one value for each of its elements");
        for (e, &x) in values.iter().enumerate() {
            v.dtype.store(&mut v.bytes, e, x);
        }
    }

    /// Copies access `from`'s bytes to access `to`.
    ///
    /// # Panics
    /// If the two are not of the same size.
    pub fn copy(&mut self, from: usize, to: usize) {
        let (a, b) = if from < to {
            let (l, r) = self.0.split_at_mut(to);
            (&l[from], &mut r[0])
        } else {
            let (l, r) = self.0.split_at_mut(from);
            (&r[0], &mut l[to])
        };
        b.bytes.copy_from_slice(&a.bytes);
    }
}

/// A handler's CUDA side. The kernel that is generated includes `source` and calls the role functions of `name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// File name, for messages and debuggers.
    pub file: &'static str,
    /// Its text (`include_str!`).
    pub source: &'static str,
    /// The struct that holds the role functions.
    pub name: &'static str,
    /// Pages of a group, 16 KB each, at most.
    pub pages: u8,
    /// Registers a math thread may use.
    pub math_registers: u16,
    /// Least compute capability, times ten.
    pub min_arch: u16,
}

/// One operation: what it touches, what it computes, how a GPU does it.
///
/// ```
/// use mk_core::*;
///
/// device_args! {
///     /// Arguments of [`Negate`].
///     pub struct NegateArgs { /// In and out.
///         pub region: RegionId }
/// }
/// /// Flips the sign of a whole region.
/// struct Negate;
/// impl Handler for Negate {
///     type Args = NegateArgs;
///     const NAME: &'static str = "negate";
///     const VERSION: u32 = 1;
///     const STREAM: Stream = Stream::Compute;
///     fn spec(&self, a: &NegateArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
///         let rect = env.region(a.region)?.whole(env.rank);
///         let mut spec = Spec::new(1);
///         let access = |mode, at| Access {
///             region: a.region, rank: env.rank, rect, mode, at, walk: Walk::Whole, proxy: Proxy::Generic,
///         };
///         spec.touch(env, access(Mode::Read, Phase::Load))?;
///         spec.touch(env, access(Mode::Write, Phase::Store))?;
///         spec.work.vector_flops = rect.area();
///         Ok(spec)
///     }
///     fn model(&self, _: &NegateArgs, _: Step, views: &mut Views<'_>) {
///         let negated: Vec<f32> = views.load_f32(0).iter().map(|x| -x).collect();
///         views.store_f32(1, &negated);
///     }
/// }
/// ```
pub trait Handler: Send + Sync + 'static {
    /// Its arguments.
    type Args: DeviceAbi;
    /// Its name; opcodes follow the sorted names.
    const NAME: &'static str;
    /// Raised whenever the meaning of its arguments changes.
    const VERSION: u32;
    /// The stream that it runs in.
    const STREAM: Stream;
    /// Who carries its posts to other ranks.
    const CARRIER: Carrier = Carrier::Frame;

    /// Checks the arguments, and says what the task touches and how much work it is.
    ///
    /// # Errors
    /// Arguments that the handler does not accept. Bounds are checked by the verifier, not here.
    fn spec(&self, args: &Self::Args, env: &Env<'_>) -> Result<Spec, ArgError>;

    /// Computes one step on the CPU. It sees the spec's bytes, nothing else.
    fn model(&self, args: &Self::Args, step: Step, views: &mut Views<'_>);

    /// Its CUDA side; `None` for a handler that only the simulator runs.
    fn device(&self) -> Option<Device> {
        None
    }

    /// An operand that two tasks have in common and that neighbouring lanes could load once for both: its place in the
    /// [`accesses`](Spec::accesses), 0 or 1. `None`: there is none.
    ///
    /// The CUDA side must then take as many groups in both tasks, of as many pages; load that operand by `load_shared_box`
    /// where the frame says so; and release groups by its math role, for both lanes: a store role frees them in its own only.
    fn shares(&self, _a: &Self::Args, _b: &Self::Args) -> Option<u8> {
        None
    }
}

/// A [`Handler`] whose argument type is erased. Implemented for every handler.
pub trait DynHandler: Send + Sync + 'static {
    /// [`Handler::NAME`].
    fn name(&self) -> &'static str;
    /// [`Handler::VERSION`].
    fn version(&self) -> u32;
    /// [`Handler::STREAM`].
    fn stream(&self) -> Stream;
    /// [`Handler::CARRIER`].
    fn carrier(&self) -> Carrier;
    /// [`Handler::device`].
    fn device(&self) -> Option<Device>;
    /// [`Handler::shares`]; where that panics, nothing is shared.
    fn shares(&self, a: &[u8; Limits::ARG_BYTES], b: &[u8; Limits::ARG_BYTES]) -> Option<u8>;
    /// The name of the C struct and its fields.
    fn abi(&self) -> (&'static str, &'static [Field]);
    /// [`Handler::spec`]; a panic is an error like any other.
    fn spec(&self, args: &[u8; Limits::ARG_BYTES], env: &Env<'_>) -> Result<Spec, ArgError>;
    /// [`Handler::model`].
    ///
    /// # Errors
    /// The model panicked, or left a view with another type or size.
    fn model(
        &self,
        args: &[u8; Limits::ARG_BYTES],
        step: Step,
        views: &mut Views<'_>,
    ) -> Result<(), ArgError>;
    /// The arguments as JSON.
    fn args_to_json(&self, args: &[u8; Limits::ARG_BYTES]) -> serde_json::Value;
    /// Appends the arguments as JSON text, fields in the order of the C struct: what a program file holds.
    ///
    /// # Errors
    /// Arguments that JSON cannot give back: a number that is not finite, or a byte that belongs to no field.
    fn write_args(&self, args: &[u8; Limits::ARG_BYTES], to: &mut Vec<u8>) -> Result<(), ArgError>;
    /// The arguments from JSON; the error says which field is wrong.
    fn args_from_json(&self, json: &serde_json::value::RawValue)
    -> Result<[u8; Limits::ARG_BYTES], ArgError>;
}

/// A registered handler.
pub type HandlerRef = Arc<dyn DynHandler>;

/// Runs a user's code; a panic becomes an error, so that no handler ends the process.
fn caught<T>(what: &str, f: impl FnOnce() -> T) -> Result<T, ArgError> {
    // What a panicking handler leaves half done is its arguments' copies and its views, and the caller drops both.
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        ArgError::new(format!("its {what} panicked: {text}"))
    })
}

impl<H: Handler> DynHandler for H {
    fn name(&self) -> &'static str {
        H::NAME
    }
    fn version(&self) -> u32 {
        H::VERSION
    }
    fn stream(&self) -> Stream {
        H::STREAM
    }
    fn carrier(&self) -> Carrier {
        H::CARRIER
    }
    fn device(&self) -> Option<Device> {
        Handler::device(self)
    }
    fn shares(&self, a: &[u8; Limits::ARG_BYTES], b: &[u8; Limits::ARG_BYTES]) -> Option<u8> {
        let [a, b] = [a, b].map(H::Args::from_bytes);
        caught("shares", || Handler::shares(self, &a, &b)).ok().flatten()
    }
    fn abi(&self) -> (&'static str, &'static [Field]) {
        (H::Args::C_NAME, H::Args::FIELDS)
    }
    fn spec(&self, args: &[u8; Limits::ARG_BYTES], env: &Env<'_>) -> Result<Spec, ArgError> {
        caught("spec", || Handler::spec(self, &H::Args::from_bytes(args), env))?
    }
    fn model(
        &self,
        args: &[u8; Limits::ARG_BYTES],
        step: Step,
        views: &mut Views<'_>,
    ) -> Result<(), ArgError> {
        let shape = |v: &View| (v.dtype, v.rows, v.cols, v.bytes.len());
        let before: SmallVec<[_; 4]> = views.0.iter().map(shape).collect();
        caught("model", || Handler::model(self, &H::Args::from_bytes(args), step, views))?;
        match views.0.iter().map(shape).zip(before).position(|(now, then)| now != then) {
            None => Ok(()),
            Some(i) => Err(ArgError::new(format!("its model left view {i} with another type or size"))),
        }
    }
    fn args_to_json(&self, args: &[u8; Limits::ARG_BYTES]) -> serde_json::Value {
        serde_json::to_value(H::Args::from_bytes(args)).unwrap_or(serde_json::Value::Null)
    }
    fn write_args(&self, args: &[u8; Limits::ARG_BYTES], to: &mut Vec<u8>) -> Result<(), ArgError> {
        let (typed, start) = (H::Args::from_bytes(args), to.len());
        if typed.to_bytes() != *args {
            return Err(ArgError::new("a byte of the arguments belongs to no field"));
        }
        serde_json::to_writer(&mut *to, &typed).map_err(|e| ArgError::new(e.to_string()))?;
        // Arguments are numbers and ids: serde_json writes `null` only for a number that JSON does not have.
        if to[start..].windows(4).any(|w| w == b"null") {
            return Err(ArgError::new("an argument is not a finite number"));
        }
        Ok(())
    }
    fn args_from_json(
        &self,
        json: &serde_json::value::RawValue,
    ) -> Result<[u8; Limits::ARG_BYTES], ArgError> {
        serde_json::from_str::<H::Args>(json.get())
            .map(|a| a.to_bytes())
            .map_err(|e| ArgError::new(e.to_string()))
    }
}
