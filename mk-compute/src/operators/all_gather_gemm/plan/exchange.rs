//! What only a plan that moves rows has: the region that they arrive in, the words, the labels.

use super::Result;
use crate::operators::all_gather_gemm::AllGatherGemm;
use crate::operators::all_gather_gemm::layout::{Layout, RowBlock};
use crate::operators::all_gather_gemm::settings::{Gather, Plan, Settings};
use crate::operators::slices::Slices;
use mk_core::{
    Carrier, CommOp, Label, ProgramBuilder, Region, RegionId, Registry, Shape, SignalKind, SignalRef,
};

/// Labels of tasks, by the rank that they are for.
pub(super) struct Labels {
    pub(super) ready: Label,
    pub(super) join: Label,
    pub(super) read: Label,
    pub(super) send: Vec<Label>,
    pub(super) push: Vec<Label>,
    pub(super) pull: Vec<Label>,
    pub(super) forward: Vec<Label>,
    pub(super) credit: Vec<Label>,
    pub(super) tile: Vec<Label>,
    /// Of rows that may be of several ranks.
    pub(super) gathered: Label,
}

/// See the module.
pub(super) struct Exchange {
    pub(super) gather: RegionId,
    /// Rows from a neighbour are there: a word for each slice (fused), or for each source.
    pub(super) arrival: SignalRef,
    /// Rows from another island are there: a word for each slice, in the order in which the relay takes them in.
    pub(super) landed: SignalRef,
    /// A neighbour has read what was pushed to it.
    pub(super) credit: SignalRef,
    /// A relay's own tiles and its forwards have read the rows of a source.
    pub(super) freed: SignalRef,
    /// A relay's island has read what was sent to it.
    pub(super) returned: SignalRef,
    /// A neighbour's A may be read.
    pub(super) ready: SignalRef,
    /// A neighbour has read A.
    pub(super) read: SignalRef,
    /// Unfused: all rows have arrived; all tiles have read them.
    pub(super) gathered: SignalRef,
    pub(super) consumed: SignalRef,
    pub(super) labels: Labels,
    /// Most row blocks that one rank pushes to a neighbour.
    most_pushed: u64,
    slices: u64,
    plan: Plan,
}

/// Words of each signal on each rank; a signal that a plan does not use has none.
struct Words {
    arrival: u64,
    landed: u64,
    credit: u64,
    freed: u64,
    returned: u64,
    ready: u64,
    read: u64,
    gathered: u64,
    consumed: u64,
    /// Most row blocks that one rank pushes to a neighbour.
    most_pushed: u64,
}

impl Words {
    fn of(layout: &Layout, settings: &Settings, slices: Slices) -> Words {
        let most = |of: &dyn Fn(u32) -> u64| (0..layout.world).map(of).max().unwrap_or(0);
        let most_pushed = most(&|r| layout.pushed_blocks(r, settings.gather));
        let [slices, largest, world] =
            [slices.count.into(), layout.islands.largest(), u64::from(layout.world)];
        let (fused, pulls) = (settings.plan == Plan::Fused, settings.gather == Gather::Pull && largest > 1);
        let if_ = |used: bool, words: u64| if used { words } else { 0 };
        Words {
            arrival: if fused { layout.row_block_count().saturating_mul(slices) } else { world },
            landed: most(&|r| layout.relayed_blocks(r)).saturating_mul(slices),
            credit: if_(most_pushed > 0, largest.saturating_mul(if fused { most_pushed } else { 1 })),
            freed: most(&|r| layout.relayed(r).len() as u64),
            returned: if_(layout.crosses(), layout.islands.count().into()),
            ready: if_(pulls, largest),
            read: if_(pulls, largest - 1),
            gathered: if_(!fused, 1),
            consumed: if_(!fused, 1),
            most_pushed,
        }
    }

    fn sum(&self) -> u128 {
        let Words { arrival, landed, credit, freed, returned, ready, read, gathered, consumed, .. } = *self;
        [arrival, landed, credit, freed, returned, ready, read, gathered, consumed]
            .iter()
            .map(|&w| u128::from(w))
            .sum()
    }
}

/// Signal words of all ranks together.
pub(in crate::operators::all_gather_gemm) fn words(
    layout: &Layout,
    settings: &Settings,
    slices: Slices,
) -> u128 {
    match layout.exchanges() {
        true => Words::of(layout, settings, slices).sum() * u128::from(layout.world),
        false => 0,
    }
}

impl Exchange {
    pub(super) fn new(
        op: &AllGatherGemm,
        layout: &Layout,
        settings: &Settings,
        slices: Slices,
        b: &mut ProgramBuilder,
    ) -> Result<Exchange> {
        let gather = b.region(Region::heap(AllGatherGemm::GATHER, op.dtype, Shape::Uniform([op.m, op.k])))?;
        let (words, sent, add) =
            (Words::of(layout, settings, slices), sent_kind(layout, b.registry())?, SignalKind::Add);
        Ok(Exchange {
            gather,
            arrival: b.signal("arrival", add, words.arrival)?,
            landed: b.signal("landed", sent, words.landed)?,
            credit: b.signal("credit", add, words.credit)?,
            freed: b.signal("freed", add, words.freed)?,
            returned: b.signal("returned", sent, words.returned)?,
            ready: b.signal("ready", add, words.ready)?,
            read: b.signal("read", add, words.read)?,
            gathered: b.signal("gathered", add, words.gathered)?,
            consumed: b.signal("consumed", add, words.consumed)?,
            labels: Labels::new(layout, b),
            most_pushed: words.most_pushed,
            slices: slices.count.into(),
            plan: settings.plan,
        })
    }

    /// The first word of `arrival` for a row block (fused), one more for each further slice; or the word of its source.
    pub(super) fn arrival(&self, source: u32, block: &RowBlock) -> u64 {
        match self.plan {
            Plan::Fused => block.number * self.slices,
            Plan::Unfused => source.into(),
        }
    }

    /// The first word of `landed`, at the relay, for a row block that it takes in after `first` others of other sources.
    pub(super) fn landed(&self, first: u64, block: &RowBlock) -> u64 {
        (first + block.index) * self.slices
    }

    /// The word of `credit`, at the rank that pushes, for a neighbour at this place; fused, for the row block that is the
    /// pusher's `number`th.
    pub(super) fn credit(&self, place: u32, number: u64) -> u64 {
        match self.plan {
            Plan::Fused => u64::from(place) * self.most_pushed + number,
            Plan::Unfused => place.into(),
        }
    }
}

/// How a word is raised that a transport's own handlers raise in another island.
fn sent_kind(layout: &Layout, registry: &Registry) -> Result<SignalKind> {
    let Some(pair) = layout.sends().next() else { return Ok(SignalKind::Set) };
    let route = registry.route(layout.rank(pair[0]), layout.rank(pair[1]), super::super::islands::SEND)?;
    let (_, handler) = registry.handler(route.handler(CommOp::PutSignal)?)?;
    Ok(match handler.carrier() {
        Carrier::Frame => SignalKind::Add,
        Carrier::Transport => SignalKind::Set,
    })
}

impl Labels {
    fn new(layout: &Layout, b: &mut ProgramBuilder) -> Labels {
        let mut each =
            |text: &str| layout.places().map(|(rank, _)| b.label(format!("{text} {rank}"))).collect();
        let [send, push, pull, forward, credit, tile] =
            ["send to", "push to", "pull from", "forward to", "credit to", "tile from"].map(&mut each);
        Labels {
            ready: b.label("own rows ready"),
            join: b.label("all rows gathered"),
            read: b.label("own rows read"),
            gathered: b.label("tile gathered"),
            send,
            push,
            pull,
            forward,
            credit,
            tile,
        }
    }
}
