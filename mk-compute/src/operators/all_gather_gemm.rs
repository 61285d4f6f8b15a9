//! AllGather + GEMM: what it is and how it is asked for. How it is decided is in [`choose`], how it is planned in [`plan`].

mod arrivals;
mod choose;
mod islands;
mod layout;
mod plan;
mod predict;
mod settings;
mod wire;

pub use choose::Choice;
pub use predict::{Limit, Prediction};
pub use settings::{Gather, Plan, Settings};

use super::shard::shard;
use layout::Layout;
use mk_core::{DType, Error, Hardware, Limits, Operator, Program, Rank, Registry};
use std::fmt;
use std::ops::Range;

/// `C = A * B` where every rank starts with a shard of A's rows and of B's columns, and ends with all rows of its
/// shard of C's columns.
///
/// A is `[m, k]`, B `[k, n]`, C `[m, n]`, row-major. Rank `r` holds [rows](AllGatherGemm::rows) of A and
/// [columns](AllGatherGemm::cols) of B and C; shards may be uneven or empty.
///
/// Inside an NVLink group, rows are pushed into the peers' memory or pulled from it. From one group to another each row
/// travels once, from its rank to the rank in the same place of the other group, which multiplies it and forwards it to its
/// neighbours, slice by slice as it lands.
///
/// What is not asked for is chosen by the time that the hardware profile and the links predict: see
/// [`choose`](AllGatherGemm::choose). Every element of C has the same bits in every plan, world and number of lanes.
///
/// ```
/// use mk_compute::{AllGatherGemm, Gather, Plan};
/// use mk_core::{DType, Hardware, Registry, World};
///
/// let registry = Registry::builder()
///     .transport(mk_nvlink::NvLink::new())
///     .handlers(mk_compute::handlers())
///     .build(&World::local(4)?)?;
/// let op = AllGatherGemm::new(1024, 1024, 1024, DType::Bf16).plan_kind(Plan::Fused).gather(Gather::Push);
/// let program = op.plan(&registry)?;
/// // On each of 4 ranks: 16 row blocks x 4 column tiles, small ones for there are many lanes, and 4 row blocks, each in 8 parts, to
/// // each of 3 peers.
/// assert_eq!(program.tasks.len(), 4 * (16 * 4 + 4 * 8 * 3));
/// program.verify(&registry, &Hardware::h200())?;
/// # Ok::<(), mk_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct AllGatherGemm {
    m: u64,
    n: u64,
    k: u64,
    dtype: DType,
    plan: Option<Plan>,
    gather: Option<Gather>,
    lanes: Option<u16>,
    comm_lanes: Option<u16>,
    slices: Option<u16>,
    group: Option<Vec<Rank>>,
    hardware: Hardware,
}

impl AllGatherGemm {
    /// Region of A: bind `[m_r, k]` on each rank. Where neighbours pull, it is on the symmetric heap.
    pub const A: &'static str = "a";
    /// Region of B: bind `[k, n_r]` on each rank.
    pub const B: &'static str = "b";
    /// Region of C: `[m, n_r]` comes back from each rank.
    pub const C: &'static str = "c";
    /// Region in which rows of other ranks arrive: `[m, k]`. There is none where no row moves.
    pub const GATHER: &'static str = "a_gather";
    /// N and K are multiples of this: rows of 16 bytes.
    pub const UNIT: u64 = 8;

    /// `m` rows, `n` columns, sums of `k` elements, on H200s. [`plan`](AllGatherGemm::plan) checks the sizes.
    pub fn new(m: u64, n: u64, k: u64, dtype: DType) -> AllGatherGemm {
        let hardware = Hardware::h200();
        let (plan, gather, lanes, comm_lanes, slices, group) = (None, None, None, None, None, None);
        AllGatherGemm { m, n, k, dtype, plan, gather, lanes, comm_lanes, slices, group, hardware }
    }

    /// Fused or unfused; without this call, the faster one.
    #[must_use]
    pub fn plan_kind(self, plan: Plan) -> Self {
        AllGatherGemm { plan: Some(plan), ..self }
    }

    /// Push or pull inside an NVLink group; without this call, the faster one.
    #[must_use]
    pub fn gather(self, gather: Gather) -> Self {
        AllGatherGemm { gather: Some(gather), ..self }
    }

    /// At most this many lanes a rank; without this call, as many as the hardware has for them.
    #[must_use]
    pub fn lanes(self, lanes: u16) -> Self {
        AllGatherGemm { lanes: Some(lanes), ..self }
    }

    /// At most this many of the lanes move rows inside an NVLink group; without this call, as many as are fastest.
    ///
    /// Fewer keep the rows closer to their order: what is multiplied first arrives first, instead of everything at about the
    /// same time. They must still be enough to fill the link.
    #[must_use]
    pub fn comm_lanes(self, lanes: u16) -> Self {
        AllGatherGemm { comm_lanes: Some(lanes), ..self }
    }

    /// About this many K slices of a row block; the plan takes the nearest number whose slices are whole blocks. Without this
    /// call, as many as are fastest.
    #[must_use]
    pub fn slices(self, slices: u16) -> Self {
        AllGatherGemm { slices: Some(slices), ..self }
    }

    /// Only these ranks of the world take part, in this order: the `i`th of `n` has the shards of rank `i` in a world of `n`.
    /// Without this call, all ranks do.
    #[must_use]
    pub fn group(self, ranks: impl IntoIterator<Item = Rank>) -> Self {
        AllGatherGemm { group: Some(ranks.into_iter().collect()), ..self }
    }

    /// The hardware to plan for; an H200 without this call.
    #[must_use]
    pub fn hardware(self, hardware: Hardware) -> Self {
        AllGatherGemm { hardware, ..self }
    }

    /// The rows of A that `rank` of `world` ranks holds; with a [group](AllGatherGemm::group), the `rank`th of `world` in it.
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
        let most = u64::from(self.hardware.lanes()).min(Limits::LANES);
        if !(1..=most).contains(&lanes) {
            return Err(Error::input(
                "the number of lanes is out of range",
                lanes,
                format!("1 to {most}, one an SM that {} has for them", self.hardware.name),
                "choose a number in that range, or none for all",
            ));
        }
        if self.comm_lanes == Some(0) || self.slices == Some(0) {
            let given = |x: Option<u16>| x.map_or("any number of".into(), |x| x.to_string());
            return Err(Error::input(
                "nothing can be moved",
                format!("{} lanes that move rows, {} slices", given(self.comm_lanes), given(self.slices)),
                "at least 1 of each",
                "choose numbers in that range, or none",
            ));
        }
        Ok(())
    }

    /// Decides how it is planned, and says what that is likely to take, and why it was taken.
    ///
    /// ```
    /// use mk_compute::{AllGatherGemm, Plan};
    /// use mk_core::{DType, Registry, World};
    ///
    /// let registry = Registry::builder()
    ///     .transport(mk_nvlink::NvLink::new())
    ///     .handlers(mk_compute::handlers())
    ///     .build(&World::local(8)?)?;
    /// let large = AllGatherGemm::new(8192, 8192, 8192, DType::Bf16).choose(&registry)?;
    /// assert_eq!(large.settings.plan, Plan::Fused);
    /// assert!(large.speed_up().unwrap() > 1.1);
    /// // Two rows a rank: eight small tiles take longer than one that waits for all of them.
    /// let small = AllGatherGemm::new(16, 65536, 8192, DType::Bf16).choose(&registry)?;
    /// assert_eq!(small.settings.plan, Plan::Unfused);
    /// println!("{}", small.why);
    /// # Ok::<(), mk_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`plan`](AllGatherGemm::plan).
    pub fn choose(&self, registry: &Registry) -> Result<Choice, Error> {
        let layout = self.layout(registry)?;
        choose::choose(self, &layout, registry)
    }

    /// Tasks that its program has, about: what to look at before a plan of millions of them is made.
    ///
    /// # Errors
    /// Illegal sizes, or more than [`Limits`] allow.
    pub fn size(&self, registry: &Registry) -> Result<u128, Error> {
        self.check()?;
        self.check_group(registry.world().size())?;
        let (layout, plan) = (Layout::new(self, registry), self.plan.unwrap_or(Plan::Fused));
        layout.check_size(plan)?;
        Ok(layout.task_count(plan, self.gather.unwrap_or(Gather::Push)))
    }

    /// Plans the program for the registry's world, as [`choose`](AllGatherGemm::choose) decides.
    ///
    /// # Errors
    /// Illegal sizes; two ranks that need each other and that no transport connects ([`Error::MissingCapability`]); a handler
    /// that is not registered; memory, signals or tasks beyond [`Limits`].
    pub fn plan(&self, registry: &Registry) -> Result<Program, Error> {
        let layout = self.layout(registry)?;
        let choice = choose::choose(self, &layout, registry)?;
        self.program(&layout, &choice, registry)
    }

    /// Plans the program as an earlier [`choose`](AllGatherGemm::choose) of this operator in this world decided.
    ///
    /// # Errors
    /// As [`plan`](AllGatherGemm::plan).
    pub fn plan_chosen(&self, choice: &Choice, registry: &Registry) -> Result<Program, Error> {
        self.program(&self.layout(registry)?, choice, registry)
    }

    fn program(&self, layout: &Layout, choice: &Choice, registry: &Registry) -> Result<Program, Error> {
        plan::Planner::new(self, layout, &choice.settings, registry)?.plan()
    }

    fn layout(&self, registry: &Registry) -> Result<Layout, Error> {
        self.check()?;
        self.check_group(registry.world().size())?;
        let mut layout = Layout::new(self, registry);
        layout.check_size(self.plan.unwrap_or(Plan::Fused))?;
        layout.relays();
        Ok(layout)
    }

    /// The ranks that take part.
    fn members(&self, registry: &Registry) -> Vec<Rank> {
        self.group.clone().unwrap_or_else(|| registry.topology().ranks().collect())
    }

    fn check_group(&self, world: u32) -> Result<(), Error> {
        let Some(group) = &self.group else { return Ok(()) };
        let wrong = |given: String| {
            Err(Error::input(
                "no group of ranks for AllGather+GEMM",
                given,
                format!("at least one rank, each of 0..{world} at most once"),
                "correct the group",
            ))
        };
        let mut seen = std::collections::BTreeSet::new();
        match group.iter().find(|r| u32::from(r.0) >= world || !seen.insert(r.0)) {
            Some(rank) => wrong(rank.to_string()),
            None if group.is_empty() => wrong("none".into()),
            None => Ok(()),
        }
    }

    fn lane_count(&self) -> u16 {
        self.lanes.unwrap_or_else(|| self.hardware.lanes().min(Limits::LANES as u32) as u16)
    }
}

impl Operator for AllGatherGemm {
    fn plan(&self, registry: &Registry) -> Result<Program, Error> {
        AllGatherGemm::plan(self, registry)
    }
}

impl fmt::Display for AllGatherGemm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AllGatherGemm { m, n, k, dtype, .. } = self;
        write!(f, "ag-gemm {m} x {n} x {k} {dtype}")
    }
}

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
