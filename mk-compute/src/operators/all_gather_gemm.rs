//! AllGather + GEMM: what it is and how it is asked for. How it is planned is in [`plan`].

mod layout;
mod plan;

use super::shard::shard;
use crate::Gemm;
use layout::Layout;
use mk_core::{DType, Error, Hardware, Limits, Program, Registry};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// When tiles start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Plan {
    /// A tile starts when the first K slice of its rows has arrived; tiles of the rank's own rows start at once.
    #[default]
    Fused,
    /// Every tile starts when all rows have arrived: two kernels, one after the other. The baseline.
    Unfused,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Plan::Fused => "fused",
            Plan::Unfused => "unfused",
        })
    }
}

impl FromStr for Plan {
    type Err = Error;
    fn from_str(s: &str) -> Result<Plan, Error> {
        [Plan::Fused, Plan::Unfused]
            .into_iter()
            .find(|p| p.to_string() == s)
            .ok_or_else(|| Error::input("unknown plan", s, "fused, unfused", "name one of the allowed plans"))
    }
}

/// `C = A * B` where every rank starts with a shard of A's rows and of B's columns, and ends with all rows of its
/// shard of C's columns.
///
/// A is `[m, k]`, B `[k, n]`, C `[m, n]`, row-major. Rank `r` holds [rows](AllGatherGemm::rows) of A and
/// [columns](AllGatherGemm::cols) of B and C; shards may be uneven or empty.
///
/// All ranks must be mapped into each other: row blocks are pushed into the peers' memory, and tiles give credit back
/// by GPU atomics.
///
/// Every element of C has the same bits in every plan, world and number of lanes.
///
/// ```
/// use mk_compute::{AllGatherGemm, Plan};
/// use mk_core::{DType, Hardware, Registry, World};
///
/// let registry = Registry::builder()
///     .transport(mk_nvlink::NvLink::new())
///     .handlers(mk_compute::handlers())
///     .build(&World::local(4)?)?;
/// let op = AllGatherGemm::new(1024, 1024, 1024, DType::Bf16).lanes(8);
/// let program = op.plan(&registry)?;
/// // On each of 4 ranks: 8 row blocks x 1 column tile, and 2 row blocks to each of 3 peers.
/// assert_eq!(program.tasks.len(), 4 * (8 + 2 * 3));
/// program.verify(&registry, &Hardware::h200())?;
/// # Ok::<(), mk_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct AllGatherGemm {
    m: u64,
    n: u64,
    k: u64,
    dtype: DType,
    plan: Plan,
    lanes: Option<u16>,
    comm_lanes: Option<u16>,
    slices: u16,
    hardware: Hardware,
}

impl AllGatherGemm {
    /// Region of A: bind `[m_r, k]` on each rank.
    pub const A: &'static str = "a";
    /// Region of B: bind `[k, n_r]` on each rank.
    pub const B: &'static str = "b";
    /// Region of C: `[m, n_r]` comes back from each rank.
    pub const C: &'static str = "c";
    /// Region into which peers push their rows of A: `[m, k]`. There is none where nothing is pushed.
    pub const GATHER: &'static str = "a_gather";
    /// N and K are multiples of this: rows of 16 bytes.
    pub const UNIT: u64 = 8;
    /// K slices of a row block, unless [`slices`](AllGatherGemm::slices) says otherwise. Enough that a tile starts early;
    /// so few that a slice of 128 rows at K = 4096 is 256 KiB, which a link moves at full speed.
    pub const SLICES: u16 = 4;

    /// `m` rows, `n` columns, sums of `k` elements, fused. [`plan`](AllGatherGemm::plan) checks the sizes.
    pub fn new(m: u64, n: u64, k: u64, dtype: DType) -> AllGatherGemm {
        let (plan, slices, hardware) = (Plan::Fused, AllGatherGemm::SLICES, Hardware::h200());
        AllGatherGemm { m, n, k, dtype, plan, lanes: None, comm_lanes: None, slices, hardware }
    }

    /// Fused or unfused.
    #[must_use]
    pub fn plan_kind(self, plan: Plan) -> Self {
        AllGatherGemm { plan, ..self }
    }

    /// At most this many lanes a rank; without this call, as many as the hardware has for them.
    #[must_use]
    pub fn lanes(self, lanes: u16) -> Self {
        AllGatherGemm { lanes: Some(lanes), ..self }
    }

    /// At most this many of the lanes push; without this call, all of them.
    ///
    /// Fewer keep the pushes closer to their order: what a peer multiplies first arrives first, instead of everything
    /// at about the same time. They must still be enough to fill the link.
    #[must_use]
    pub fn comm_lanes(self, lanes: u16) -> Self {
        AllGatherGemm { comm_lanes: Some(lanes), ..self }
    }

    /// About this many K slices of a row block; the plan takes the nearest number whose slices are whole blocks.
    #[must_use]
    pub fn slices(self, slices: u16) -> Self {
        AllGatherGemm { slices, ..self }
    }

    /// The hardware to plan for; an H200 without this call.
    #[must_use]
    pub fn hardware(self, hardware: Hardware) -> Self {
        AllGatherGemm { hardware, ..self }
    }

    /// The rows of A that `rank` of `world` ranks holds.
    pub fn rows(&self, world: u32, rank: u32) -> Range<u64> {
        shard(self.m, world, rank)
    }

    /// The columns of B and C that `rank` of `world` ranks holds.
    pub fn cols(&self, world: u32, rank: u32) -> Range<u64> {
        let units = shard(self.n / AllGatherGemm::UNIT, world, rank);
        units.start * AllGatherGemm::UNIT..units.end * AllGatherGemm::UNIT
    }

    /// Checks sizes, type and lanes, without planning.
    ///
    /// # Errors
    /// [`Error::Input`] names what was given, and the next legal size.
    pub fn check(&self) -> Result<(), Error> {
        check_unit("N", self.n)?;
        check_unit("K", self.k)?;
        for (name, size) in [("M", self.m), ("N", self.n)] {
            check_at_most(name, size, Limits::EXTENT)?;
        }
        // A put states its columns in 32 bits.
        check_at_most("K", self.k, u64::from(u32::MAX))?;
        if !matches!(self.dtype, DType::Bf16 | DType::F16) {
            return Err(Error::input(
                "AllGather+GEMM does not take this element type",
                self.dtype,
                "bf16, fp16",
                "cast A and B first",
            ));
        }
        let lanes = u64::from(self.lane_count());
        let comm_lanes = self.comm_lane_count();
        let most = u64::from(self.hardware.lanes()).min(Limits::LANES);
        if !(1..=most).contains(&lanes) {
            return Err(Error::input(
                "the number of lanes is out of range",
                lanes,
                format!("1 to {most}, one an SM that {} has for them", self.hardware.name),
                "choose a number in that range, or none for all",
            ));
        }
        if comm_lanes == 0 || self.slices == 0 {
            return Err(Error::input(
                "nothing can be pushed",
                format!("{comm_lanes} lanes that push, {} slices", self.slices),
                "at least 1 of each",
                "choose numbers in that range",
            ));
        }
        Ok(())
    }

    /// Plans the program for the registry's world.
    ///
    /// # Errors
    /// Illegal sizes; two ranks that are not mapped into each other ([`Error::MissingCapability`]); a handler that is not
    /// registered; memory, signals or tasks beyond [`Limits`].
    pub fn plan(&self, registry: &Registry) -> Result<Program, Error> {
        self.check()?;
        let layout = Layout::new(self, registry.world().size());
        layout.check_size()?;
        plan::Planner::new(self, &layout, registry)?.plan()
    }

    fn lane_count(&self) -> u16 {
        self.lanes.unwrap_or_else(|| self.hardware.lanes().min(Limits::LANES as u32) as u16)
    }

    fn comm_lane_count(&self) -> u16 {
        let lanes = self.lane_count();
        self.comm_lanes.map_or(lanes, |most| most.min(lanes))
    }
}

impl fmt::Display for AllGatherGemm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AllGatherGemm { m, n, k, dtype, plan, .. } = self;
        write!(f, "ag-gemm {m} x {n} x {k} {dtype} ({plan})")
    }
}

/// Tiles are as large as the handler takes them.
const TILE: [u64; 2] = [Gemm::ROWS, Gemm::COLS];

fn check_unit(name: &str, size: u64) -> Result<(), Error> {
    if size.is_multiple_of(AllGatherGemm::UNIT) {
        return Ok(());
    }
    let next = size.checked_next_multiple_of(AllGatherGemm::UNIT);
    Err(Error::input(
        format!("{name} is not a multiple of {}", AllGatherGemm::UNIT),
        format!("{name} = {size}"),
        match next {
            Some(next) => format!("multiples of {}; the next is {next}", AllGatherGemm::UNIT),
            None => format!("multiples of {}", AllGatherGemm::UNIT),
        },
        format!("pad the matrices with zeros: rows of {} elements are 16 bytes", AllGatherGemm::UNIT),
    ))
}

fn check_at_most(name: &str, size: u64, most: u64) -> Result<(), Error> {
    if size <= most {
        return Ok(());
    }
    Err(Error::input(
        format!("{name} is too large"),
        format!("{name} = {size}"),
        format!("at most {most}"),
        "use smaller matrices",
    ))
}
