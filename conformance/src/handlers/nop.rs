//! `nop`: programs in which nothing but nops orders those who write and those who read.
//!
//! ```text
//! write       x into mid, one rectangle or two
//! nops        the first waits for all that is written; several in a row, on any ranks
//! read        mid into out, when the last nop says so
//! overwrite   x into mid once more, when the last nop has heard that it was read
//! ```
//!
//! `mid` holds canaries at first, so who reads too early is seen, and it comes back, so who overwrites too early is
//! seen as well.

use crate::board::Board;
use crate::case::{Case, Epoch};
use crate::context::Context;
use crate::memory::Memory;
use crate::value::any_bits;
use mk_compute::{CopyRectArgs, NopArgs};
use mk_core::{
    Bindings, CopyArgs, DType, Error, Io, Lane, PostTo, Program, ProgramBuilder, Queue, Rank, Rect, Region,
    RegionId, RegionKind, Registry, Shape, SignalKind, SignalRef, TaskRef, WaitAt, WaitFor,
};

/// The branches that programs must take.
pub(super) const BRANCHES: [&str; 12] = [
    "several ranks",
    "several writers and readers",
    "a nop that joins two and tells two",
    "nops in a row",
    "a nop on another rank",
    "a wait by block",
    "a wait before the store",
    "a post before the store's wait",
    "copied by a comm task",
    "a ticket queue",
    "rotating regions",
    "set words",
];

const NAMES: [&str; 3] = ["x", "mid", "out"];
/// Most nops in a row.
const NOPS: u64 = 3;

/// One rectangle on its way.
struct Part {
    x: Rect,
    mid: Rect,
    out: Rect,
    /// What `mid` is overwritten with, in `x`.
    next: Option<Rect>,
}

/// What goes through one row of nops.
struct Relay {
    rank: Rank,
    parts: Vec<Part>,
    /// Where the nops run.
    via: Vec<Rank>,
    /// When they wait.
    at: WaitAt,
}

struct Plan {
    dtype: DType,
    relays: Vec<Relay>,
    extents: [Vec<[u64; 2]>; 3],
    depths: [u32; 3],
    tickets: bool,
    kind: SignalKind,
}

/// Generates a case.
pub(super) fn generate(c: &mut Context) -> Result<Case, String> {
    let registry = c.network.registry(1, c.random.range(1, 3), 0).map_err(|e| e.to_string())?;
    c.note(BRANCHES[0], registry.world().size() > 1);
    let plan = Plan::draw(c, &registry);
    let program = plan.program(c, &registry).map_err(|e| format!("{}: {e}", plan.name()))?;
    let epochs = (0..c.random.range(2, 3)).map(|_| plan.epoch(c, &program)).collect();
    Case::new(plan.name(), &registry, program, epochs)
}

impl Relay {
    fn draw(c: &mut Context, ranks: &[Rank], dtype: DType, boards: &mut [[Board; 3]]) -> Relay {
        let grain = c.config.grain(&[dtype]);
        let rank = c.random.pick(ranks);
        let again = c.choose("a post before the store's wait", true, 4);
        let two = c.choose("a nop that joins two and tells two", !again, 2);
        let [x, mid, out] = &mut boards[rank.index()];
        let mut part = || {
            let size = [c.random.range(1, 20), c.random.range(1, 70).next_multiple_of(grain)];
            let mut below = |board: &mut Board| board.below(&mut c.random, size, None);
            Part { x: below(x), mid: below(mid), out: below(out), next: again.then(|| below(x)) }
        };
        let parts = (0..1 + u64::from(two)).map(|_| part()).collect();
        let via: Vec<Rank> = (0..c.random.range(1, NOPS)).map(|_| c.random.pick(ranks)).collect();
        c.note("nops in a row", via.len() > 1);
        c.note("a nop on another rank", via.iter().any(|at| *at != rank));
        let at = match again {
            true => c.random.pick(&[WaitAt::Start, WaitAt::Block]),
            false => c.random.pick(&[WaitAt::Start, WaitAt::Block, WaitAt::Store]),
        };
        c.note("a wait by block", at == WaitAt::Block);
        c.note("a wait before the store", at == WaitAt::Store);
        Relay { rank, parts, via, at }
    }
}

impl Plan {
    fn draw(c: &mut Context, registry: &Registry) -> Plan {
        let ranks: Vec<Rank> = registry.topology().ranks().collect();
        let dtype = c.random.pick(&DType::ALL);
        let mut boards = vec![[(); 3].map(|()| Board::new(c.config, dtype)); ranks.len()];
        let relays: Vec<Relay> =
            (0..c.random.range(1, 3)).map(|_| Relay::draw(c, &ranks, dtype, &mut boards)).collect();
        c.note("several writers and readers", relays.len() > 1);
        let mut extents: [Vec<[u64; 2]>; 3] = Default::default();
        for board in &boards {
            let odd = c.random.one_in(2);
            for (region, extents) in board.iter().zip(&mut extents) {
                extents.push(region.finish(&mut c.random, odd));
            }
        }
        let depths = [(); 3].map(|()| c.random.pick(&[1, 1, 2, 3]));
        c.note("rotating regions", depths.iter().any(|d| *d > 1));
        let tickets = c.choose("a ticket queue", true, 3);
        let set = c.choose("set words", !tickets, 3);
        let kind = if set { SignalKind::Set } else { SignalKind::Add };
        Plan { dtype, relays, extents, depths, tickets, kind }
    }

    fn name(&self) -> String {
        let relay = |r: &Relay| {
            let parts: Vec<String> = r.parts.iter().map(|p| format!("{} to {}", p.x, p.mid)).collect();
            format!("{} on {} through {:?}, {:?}", parts.join(" and "), r.rank, r.via, r.at)
        };
        let relays: Vec<String> = self.relays.iter().map(relay).collect();
        let tickets = if self.tickets { " by ticket" } else { "" };
        format!("nops of {:?} words{tickets}, {}: {}", self.kind, self.dtype, relays.join("; "))
    }

    fn program(&self, c: &mut Context, registry: &Registry) -> Result<Program, Error> {
        let mut b = ProgramBuilder::new("nops", registry);
        let mut regions = [RegionId(0); 3];
        for (i, io) in [Io::Input, Io::InOut, Io::InOut].into_iter().enumerate() {
            let shape = Shape::PerRank(self.extents[i].clone());
            let region = Region::new(NAMES[i], RegionKind::Bound, io, self.dtype, shape);
            regions[i] = b.region(region.rotating(self.depths[i]))?;
        }
        if self.tickets {
            registry.topology().ranks().for_each(|r| b.lanes(r, 3));
        }
        let mut emitter = Emitter { plan: self, b, regions };
        for (i, relay) in self.relays.iter().enumerate() {
            emitter.relay(c, relay, i)?;
        }
        emitter.b.finish()
    }

    fn epoch(&self, c: &mut Context, program: &Program) -> Epoch {
        let mut epoch = Epoch { given: Bindings::new(), want: Default::default() };
        for rank in (0..program.ranks).map(|r| Rank(r as u16)) {
            let mut memory = Memory::new(&mut c.random, program, rank);
            for part in self.relays.iter().filter(|r| r.rank == rank).flat_map(|r| &r.parts) {
                let mut fill = |at: Rect| {
                    let data = any_bits(self.dtype, [at.rows, at.cols], &mut c.random);
                    memory.fill(NAMES[0], at, &data);
                    data
                };
                let (data, next) = (fill(part.x), part.next.map(&mut fill));
                memory.want(NAMES[1]).bytes(part.mid, next.as_ref().unwrap_or(&data));
                memory.want(NAMES[2]).bytes(part.out, &data);
            }
            memory.finish(&mut epoch);
        }
        epoch
    }
}

/// A program under construction. Tasks are added in an order in which they could run one after the other.
struct Emitter<'a> {
    plan: &'a Plan,
    b: ProgramBuilder,
    regions: [RegionId; 3],
}

impl Emitter<'_> {
    fn relay(&mut self, c: &mut Context, r: &Relay, i: usize) -> Result<(), Error> {
        let [x, mid, out] = self.regions;
        let written = self.signal("written", i, 2)?;
        let told = self.signal("told", i, 2)?;
        for (j, part) in r.parts.iter().enumerate() {
            let comm = self.by_comm(c);
            let write = self.copy(c, (r.rank, comm), [x, mid], [part.x, part.mid])?;
            self.b.post(write, PostTo::done(r.via[0], written, j as u64))?;
        }
        let last = self.nops(c, r, i, written)?;
        let again = r.parts.iter().any(|p| p.next.is_some());
        for (j, part) in r.parts.iter().enumerate() {
            let tell = if again { PostTo::loaded } else { PostTo::done };
            self.b.post(last, tell(r.rank, told, j as u64))?;
            // A task that the nop waits for cannot be behind it in its stream.
            let comm = again || self.by_comm(c);
            let read = self.copy(c, (r.rank, comm), [mid, out], [part.mid, part.out])?;
            self.b.wait(read, WaitFor::all(told, j as u64))?;
            if let Some(next) = part.next {
                let heard = self.signal("heard", i, 1)?;
                let free = self.signal("free", i, 1)?;
                self.b.post(read, PostTo::done(r.via[r.via.len() - 1], heard, 0))?;
                self.b.wait(last, WaitFor::all(heard, 0).before_store())?;
                self.b.post(last, PostTo::done(r.rank, free, 0))?;
                let comm = self.by_comm(c);
                let overwrite = self.copy(c, (r.rank, comm), [x, mid], [next, part.mid])?;
                self.b.wait(overwrite, WaitFor::all(free, 0))?;
            }
        }
        Ok(())
    }

    /// The nops, of which each waits for the one before; gives the last.
    fn nops(&mut self, c: &mut Context, r: &Relay, i: usize, written: SignalRef) -> Result<TaskRef, Error> {
        let passed = self.signal("passed", i, NOPS)?;
        let when = |wait: WaitFor| match r.at {
            WaitAt::Block => wait.each_block(1),
            WaitAt::Store => wait.before_store(),
            _ => wait,
        };
        let mut last = self.nop(c, r.via[0])?;
        for j in 0..r.parts.len() as u64 {
            self.b.wait(last, when(WaitFor::all(written, j)))?;
        }
        for (j, at) in (0..).zip(&r.via[1..]) {
            self.b.post(last, PostTo::done(*at, passed, j))?;
            last = self.nop(c, *at)?;
            self.b.wait(last, when(WaitFor::all(passed, j)))?;
        }
        Ok(last)
    }

    fn signal(&mut self, name: &str, i: usize, words: u64) -> Result<SignalRef, Error> {
        self.b.signal(&format!("{name} {i}"), self.plan.kind, words)
    }

    fn queue(&self, c: &mut Context) -> Queue {
        if self.plan.tickets { Queue::Ticket } else { Queue::Lane(Lane(c.random.below(3) as u16)) }
    }

    fn nop(&mut self, c: &mut Context, at: Rank) -> Result<TaskRef, Error> {
        let (op, label, queue) = (self.b.op("nop")?, self.b.label("nop"), self.queue(c));
        self.b.task(at, queue, op, label, &NopArgs { tag: c.random.next() as u32 })
    }

    fn by_comm(&self, c: &mut Context) -> bool {
        c.choose("copied by a comm task", true, 2)
    }

    /// Copies inside a rank, in a compute or in a comm stream.
    fn copy(
        &mut self,
        c: &mut Context,
        (rank, comm): (Rank, bool),
        [src, dst]: [RegionId; 2],
        [from, to]: [Rect; 2],
    ) -> Result<TaskRef, Error> {
        let (label, queue) = (self.b.label("copy"), self.queue(c));
        let (src_row, src_col, dst_row, dst_col) = (from.row, from.col, to.row, to.col);
        let (rows, cols) = (from.rows as u32, from.cols as u32);
        if comm {
            let op = self.b.op("nvlink.put")?;
            let (peer, units) = (rank, 1);
            let args = CopyArgs { src, dst, peer, units, src_row, src_col, dst_row, dst_col, rows, cols };
            return self.b.task(rank, queue, op, label, &args);
        }
        let op = self.b.op("copy")?;
        let args = CopyRectArgs { src, dst, rows, cols, src_row, src_col, dst_row, dst_col };
        self.b.task(rank, queue, op, label, &args)
    }
}
