//! put, get, put_signal, reduce_put, signal and wait: programs of a few copies between ranks.
//!
//! ```text
//! peer   release: a signal that its memory may be touched
//! me     copy: waits for it, and tells the peer, by itself or through a signal of its own
//! peer   notice: waits, and copies what it was given into `seen`, at once or unit by unit
//! ```
//!
//! Regions are the caller's and hold NaN around what is read and canaries around what is written, on every rank.

use super::emit::Emitter;
use super::style::{Style, Tell};
use crate::board::Board;
use crate::case::{Case, Epoch};
use crate::config::Numerics;
use crate::context::Context;
use crate::expect::Want;
use crate::memory::Memory;
use crate::network::peers;
use crate::value::{any_bits, draw, format, values};
use mk_core::{
    Bindings, CommOp, DType, Error, Io, Program, ProgramBuilder, Rank, Rect, Region, RegionId, RegionKind,
    Registry, Shape, SignalKind, Tensor,
};

const SRC: &str = "src";
const DST: &str = "dst";
const SEEN: &str = "seen";
/// Most units of a copy.
pub(super) const UNITS: u64 = 7;

/// One copy.
pub(super) struct Copy {
    pub(super) me: Rank,
    pub(super) peer: Rank,
    pub(super) src: Rect,
    pub(super) dst: Rect,
    pub(super) units: u16,
    /// The copy before it to the same place.
    pub(super) after: Option<usize>,
    /// Another copy comes after it to the same place.
    pub(super) followed: bool,
    /// Where it is copied to in the end, and whether unit by unit.
    pub(super) seen: Option<(Rect, bool)>,
    /// Its first word of `arrived`.
    pub(super) first: u64,
}

/// All copies of a program.
pub(super) struct Plan {
    pub(super) style: Style,
    pub(super) dtype: DType,
    pub(super) copies: Vec<Copy>,
    /// Extents of `src`, `dst` and `seen` by rank.
    pub(super) extents: [Vec<[u64; 2]>; 3],
    pub(super) kinds: [RegionKind; 3],
    pub(super) depths: [u32; 3],
    /// How many words `arrived` has.
    pub(super) words: u64,
}

/// Generates a case of this style.
pub(super) fn generate(c: &mut Context, style: fn(&mut Context) -> Style) -> Result<Case, String> {
    let registry = c.network.draw(&mut c.random).map_err(|e| e.to_string())?;
    let style = style(c);
    let plan = Plan::draw(c, style, &registry).map_err(|e| e.to_string())?;
    let program = plan.program(c, &registry).map_err(|e| format!("{}: {e}", plan.name()))?;
    let epochs = (0..c.random.range(2, 3)).map(|_| plan.epoch(c, &program)).collect();
    Case::new(plan.name(), &registry, program, epochs)
}

impl Copy {
    pub(super) fn reads_peer(op: CommOp) -> bool {
        op == CommOp::Get
    }

    /// The ranks that hold its source and its destination.
    pub(super) fn ends(&self, op: CommOp) -> [Rank; 2] {
        if Copy::reads_peer(op) { [self.peer, self.me] } else { [self.me, self.peer] }
    }

    /// Columns of one unit.
    fn unit_cols(&self) -> u64 {
        self.src.cols.div_ceil(self.units.into()).next_multiple_of(8)
    }

    /// Words that tell of it.
    pub(super) fn words(&self, tell: Tell) -> u64 {
        match tell {
            Tell::Units(every) => u64::from(self.units).div_ceil(every),
            Tell::Done | Tell::Loaded => 1,
        }
    }
}

impl Plan {
    fn draw(c: &mut Context, style: Style, registry: &Registry) -> Result<Plan, Error> {
        let dtype = c.random.pick(&DType::ALL);
        let mut plan = Plan {
            kinds: kinds(c, style.op),
            depths: [(); 3].map(|()| c.random.pick(&[1, 1, 2, 3])),
            style,
            dtype,
            copies: Vec::new(),
            extents: Default::default(),
            words: 1,
        };
        if style.kind == SignalKind::Packet {
            plan.depths[1] = plan.depths[1].max(2);
        }
        c.note("rotating regions", plan.depths.iter().any(|d| *d > 1));
        c.note("staging memory", plan.kinds.contains(&RegionKind::Staging));
        let ranks = registry.world().size() as usize;
        let mut boards = vec![[(); 3].map(|()| Board::new(c.config, dtype)); ranks];
        let count = if style.prefix || style.gathers { 3 } else { c.random.range(1, 4) };
        for i in 0..count as usize {
            let copy = plan.copy(c, registry, &mut boards, i)?;
            plan.words = plan.words.max(copy.first + copy.words(style.tell));
            if let Some(before) = copy.after {
                plan.copies[before].followed = true;
                plan.copies[before].seen = None;
            }
            plan.copies.push(copy);
        }
        plan.note(c);
        for board in &boards {
            let odd = c.random.one_in(2);
            for (region, extents) in board.iter().zip(&mut plan.extents) {
                extents.push(region.finish(&mut c.random, odd));
            }
        }
        Ok(plan)
    }

    fn copy(
        &self,
        c: &mut Context,
        registry: &Registry,
        boards: &mut [[Board; 3]],
        i: usize,
    ) -> Result<Copy, Error> {
        let Style { op, .. } = self.style;
        let handler = self.style.handler();
        let ranks: Vec<Rank> = registry.topology().ranks().collect();
        let before = self.copies.last();
        let chained = c.random.one_in(2) && op == CommOp::ReducePut && before.is_some();
        let (me, peer) = match before {
            Some(before) if self.style.prefix => (before.me, before.peer),
            Some(before) if chained || (self.style.gathers && !c.random.one_in(4)) => {
                (c.random.pick(&peers(registry, handler, before.peer)?), before.peer)
            }
            // The same two the other way round.
            Some(before) if c.random.one_in(3) => (before.peer, before.me),
            _ => {
                let me = c.random.pick(&ranks);
                let peers = peers(registry, handler, me)?;
                // Mostly to others.
                let others: Vec<Rank> = peers.iter().copied().filter(|p| *p != me).collect();
                let any = others.is_empty() || c.random.one_in(5);
                (me, c.random.pick(if any { &peers } else { &others }))
            }
        };
        let grain = c.config.grain(&[self.dtype]);
        let size = match before {
            Some(before) if chained => [before.dst.rows, before.dst.cols],
            _ if c.choose("no elements", true, 12) => [0, c.random.range(1, 9).next_multiple_of(grain)],
            _ => [c.random.range(1, 12), c.random.range(1, 70).next_multiple_of(grain)],
        };
        let mut copy = Copy {
            me,
            peer,
            src: Rect::default(),
            dst: Rect::default(),
            units: c.random.pick(&[1, 1, 2, 3, 4, 7]),
            after: chained.then(|| i - 1),
            followed: false,
            seen: None,
            first: if self.style.prefix || i == 0 { 0 } else { self.words },
        };
        let [from, to] = copy.ends(op).map(Rank::index);
        copy.src = boards[from][0].below(&mut c.random, size, None);
        copy.dst = match before {
            Some(before) if chained => before.dst,
            _ => boards[to][1].below(&mut c.random, size, None),
        };
        if c.random.one_in(2) || self.style.by_unit() {
            let by_unit = self.style.by_unit() && c.random.one_in(2);
            copy.seen = Some((boards[to][2].below(&mut c.random, size, None), by_unit));
        }
        Ok(copy)
    }

    fn note(&self, c: &mut Context) {
        for copy in &self.copies {
            let (cols, unit) = (copy.src.cols, copy.unit_cols());
            c.note("several units", copy.units > 1 && cols > unit);
            c.note("a partial unit", cols > unit && cols % unit > 0);
            c.note("an empty unit", cols > 0 && u64::from(copy.units - 1) * unit >= cols);
            c.note("to a peer", copy.me != copy.peer);
            c.note("to itself", copy.me == copy.peer);
            let back = |other: &Copy| (other.me, other.peer) == (copy.peer, copy.me);
            c.note("both ways", copy.me != copy.peer && self.copies.iter().any(back));
            c.note("read when all has arrived", copy.seen.is_some_and(|(_, by_unit)| !by_unit));
            c.note("integers", self.dtype == DType::I32);
            c.note("read unit by unit", copy.seen.is_some_and(|(_, by_unit)| by_unit) && copy.units > 1);
            c.note("several adds to one place", copy.after.is_some());
        }
        c.note("several copies", self.copies.len() > 1);
        if self.style.gathers {
            // A task has two waits.
            let peer = self.copies[0].peer;
            c.note("several joins of a rank", self.copies.iter().filter(|x| x.peer == peer).count() > 2);
        }
    }

    fn name(&self) -> String {
        let copies: Vec<String> = self
            .copies
            .iter()
            .map(|x| format!("{} to {} in {} units, {} with {}", x.src, x.dst, x.units, x.me, x.peer))
            .collect();
        format!("{:?} of {}: {}", self.style, self.dtype, copies.join("; "))
    }

    fn program(&self, c: &mut Context, registry: &Registry) -> Result<Program, Error> {
        let mut b = ProgramBuilder::new("copies", registry);
        let io = [Io::Input, Io::InOut, Io::InOut];
        let mut regions = [RegionId(0); 3];
        for (i, name) in [SRC, DST, SEEN].into_iter().enumerate() {
            let shape = Shape::PerRank(self.extents[i].clone());
            let region = Region::new(name, self.kinds[i], io[i], self.dtype, shape).rotating(self.depths[i]);
            regions[i] = b.region(region)?;
        }
        if self.style.tickets {
            registry.topology().ranks().for_each(|r| b.lanes(r, 2));
        }
        Emitter::new(self, b, regions)?.emit(c)
    }

    fn epoch(&self, c: &mut Context, program: &Program) -> Epoch {
        let mut memory: Vec<Memory> =
            (0..program.ranks).map(|rank| Memory::new(&mut c.random, program, Rank(rank as u16))).collect();
        for copy in &self.copies {
            let [from, to] = copy.ends(self.style.op).map(Rank::index);
            let data = self.data(c, copy.src);
            memory[from].fill(SRC, copy.src, &data);
            if self.style.op == CommOp::ReducePut && copy.after.is_none() {
                let data = self.data(c, copy.dst);
                memory[to].fill(DST, copy.dst, &data);
            }
        }
        for copy in &self.copies {
            let [from, to] = copy.ends(self.style.op).map(Rank::index);
            let data = memory[from].given(SRC, copy.src);
            let dst = memory[to].want(DST);
            match self.style.op {
                CommOp::ReducePut => {
                    let sums = sums(c.config.numerics, &dst.wants(copy.dst), &data);
                    dst.results(copy.dst, &sums);
                }
                _ => dst.bytes(copy.dst, &data),
            }
            if let Some((seen, _)) = copy.seen {
                let dst = dst.clone();
                dst.copy_to(copy.dst, memory[to].want(SEEN), seen);
            }
        }
        let mut epoch = Epoch { given: Bindings::new(), want: Default::default() };
        memory.into_iter().for_each(|m| m.finish(&mut epoch));
        epoch
    }

    /// What is only moved may be anything; what is added up is small, so that four of them are exact in every type.
    fn data(&self, c: &mut Context, at: Rect) -> Tensor {
        let size = [at.rows, at.cols];
        if self.style.op != CommOp::ReducePut && c.random.one_in(2) {
            return any_bits(self.dtype, size, &mut c.random);
        }
        let mut data = draw(c.config.numerics, self.dtype, size, 50, &mut c.random);
        c.plant_nan(&mut data);
        data
    }
}

/// What is there, plus `added`, in f32, rounded once.
fn sums(numerics: Numerics, there: &[Want], added: &Tensor) -> Vec<Want> {
    let one = |(was, x): (&Want, f64)| {
        let sum = was.value + x;
        match format(added.dtype) {
            Some(format) if numerics == Numerics::Rounded => {
                // What was there may be off by its bound, and so may the ulp of the sum.
                Want::within(sum, was.bound + format.ulp(sum.abs() + was.bound))
            }
            _ => Want::exactly(sum),
        }
    };
    there.iter().zip(values(added)).map(one).collect()
}

fn kinds(c: &mut Context, op: CommOp) -> [RegionKind; 3] {
    let near = [RegionKind::Bound, RegionKind::Heap, RegionKind::Staging];
    let far = [RegionKind::Heap, RegionKind::Staging];
    let (near, far) = (c.random.pick(&near), c.random.pick(&far));
    if Copy::reads_peer(op) { [far, near, RegionKind::Bound] } else { [near, far, RegionKind::Bound] }
}
