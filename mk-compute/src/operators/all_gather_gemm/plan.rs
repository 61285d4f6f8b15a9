//! The tasks of AllGather + GEMM, and what they wait for.
//!
//! ```text
//! source s     send to a relay (another island): waits for `returned` (a signal of the relay, of the epoch before), posts
//!              `landed` there, a word for each K slice
//! source s     push to a neighbour p: waits for `credit`, posts `arrival` at p, a word for each K slice
//!    or p      pull from s: waits for `ready` of s, posts `arrival` to itself, and `read` at s, which s waits for in the end
//! relay q      forward to a neighbour p: waits for `landed` slice by slice, and for `credit`; posts `arrival` at p
//! p, q         tile: waits for `arrival` or `landed` slice by slice; when it has loaded its operands, it posts `credit` to where
//!              its rows came from, or `freed` at home if that is itself
//! relay q      returns credit to s: waits for `freed`, to which its tiles and forwards post; posts `returned` at s
//! ```
//!
//! Unfused, all rows from one source to one peer post one word when they are done; joins wait for the words of all sources and
//! post `gathered`, for which every tile waits. One word for all sources would need no joins, but its epochs would be kept
//! apart by nothing that is easy to see. Tiles cross the borders of shards, so they post one word, `consumed`, and credits
//! wait for it.

mod exchange;
mod neighbours;
mod network;
mod tiles;

use super::layout::{Layout, slices};
use super::settings::{Plan, Settings};
use super::{AllGatherGemm, Gather};
use crate::Gemm;
use crate::operators::slices::Slices;
use exchange::Exchange;
pub(super) use exchange::words;
use mk_core::{
    Handler, Label, Lane, Op, Program, ProgramBuilder, Queue, Rank, Region, RegionId, RegionKind, Registry,
    Shape, deal,
};
use std::ops::Range;

type Result<T> = std::result::Result<T, mk_core::Error>;

/// A program under construction.
pub(super) struct Planner<'a> {
    op: &'a AllGatherGemm,
    layout: &'a Layout,
    settings: &'a Settings,
    slices: Slices,
    registry: &'a Registry,
    b: ProgramBuilder,
    gemm: Op,
    regions: [RegionId; 3],
    tile: Label,
    exchange: Option<Exchange>,
    /// Tasks dealt to the comm streams of the rank that is planned: those that move rows inside an island, and those that
    /// send to others.
    dealt: [u64; 2],
}

impl<'a> Planner<'a> {
    /// Declares handlers, regions, signals and labels.
    pub(super) fn new(
        op: &'a AllGatherGemm,
        layout: &'a Layout,
        settings: &'a Settings,
        registry: &'a Registry,
    ) -> Result<Planner<'a>> {
        let mut b = ProgramBuilder::new(&format!("{op} ({})", settings.plan), registry);
        let len = |r: &Range<u64>| r.end - r.start;
        // Ranks that take no part have no element.
        let per_rank = |extent: &dyn Fn(usize) -> [u64; 2]| {
            let mut extents = vec![[0, 0]; registry.world().size() as usize];
            layout.places().for_each(|(rank, place)| extents[rank.index()] = extent(place));
            Shape::PerRank(extents)
        };
        let mut a = Region::input(AllGatherGemm::A, op.dtype, per_rank(&|r| [len(&layout.rows[r]), op.k]));
        let pulls = settings.gather == Gather::Pull && layout.exchanges() && layout.islands.largest() > 1;
        if pulls {
            a.kind = RegionKind::Heap;
        }
        let of_b = per_rank(&|r| [op.k, len(&layout.cols[r])]);
        let c = per_rank(&|r| [op.m, len(&layout.cols[r])]);
        let regions = [
            b.region(a)?,
            b.region(Region::input(AllGatherGemm::B, op.dtype, of_b))?,
            b.region(Region::output(AllGatherGemm::C, op.dtype, c))?,
        ];
        let gemm = b.op(Gemm::NAME)?;
        let tile = b.label("tile local");
        let slices = slices(op, settings);
        let exchange = match layout.exchanges() {
            true => Some(Exchange::new(op, layout, settings, slices, &mut b)?),
            false => None,
        };
        Ok(Planner {
            op,
            layout,
            settings,
            slices,
            registry,
            b,
            gemm,
            regions,
            tile,
            exchange,
            dealt: [0; 2],
        })
    }

    /// Adds all tasks. On each comm stream, what waits for less comes first: so a stream never holds up what it waits for.
    pub(super) fn plan(mut self) -> Result<Program> {
        let arrivals = super::arrivals::Arrivals::new(self.op, self.layout, self.settings, self.registry)?;
        for rank in 0..self.layout.world {
            self.dealt = [0; 2];
            if self.exchange.is_some() {
                self.sends(rank)?;
                self.neighbours(rank)?;
                self.joins(rank)?;
                self.returns(rank)?;
            }
            match self.settings.plan {
                Plan::Fused => self.fused_tiles(rank, &arrivals)?,
                Plan::Unfused => self.unfused_tiles(rank)?,
            }
        }
        self.b.finish()
    }

    fn rank(&self, place: u32) -> Rank {
        self.layout.rank(place)
    }

    fn fused(&self) -> bool {
        self.settings.plan == Plan::Fused
    }

    fn exchange(&self) -> &Exchange {
        self.exchange.as_ref().expect("rows move only in a plan that has an exchange")
    }

    /// The next of the lanes that move rows inside an island.
    fn comm_lane(&mut self) -> Queue {
        self.dealt[0] += 1;
        deal(self.dealt[0] - 1, self.settings.comm_lanes)
    }

    /// The next of the lanes that send to other islands: the last ones, which move nothing else if there are enough.
    fn network_lane(&mut self) -> Queue {
        self.dealt[1] += 1;
        let lanes = self.settings.network_lanes.max(1);
        let lane = (self.dealt[1] - 1) % u64::from(lanes);
        Queue::Lane(Lane(self.settings.lanes - 1 - lane as u16))
    }
}
