//! What the programs of all compute handlers have in common.
//!
//! Each rank has a few tasks, each with rectangles of its own: NaN lies around what they read, canaries around what they
//! write. A task's operands are simply there, or take part in one of the [`Flow`]s.

use super::elementwise;
use crate::board::Board;
use crate::case::{Case, Epoch};
use crate::config::Config;
use crate::context::Context;
use crate::expect::Results;
use crate::memory::Memory;
use mk_core::{
    Bindings, CopyArgs, DType, DeviceAbi, Error, Io, Label, Lane, Op, PostTo, Program, ProgramBuilder, Queue,
    Rank, Rect, Region, RegionId, RegionKind, Registry, Shape, SignalKind, SyncArgs, TaskRef, Tensor,
    WaitFor, Walk,
};

/// One compute handler, for the suite: its legal arguments, and what it must compute.
pub(crate) trait Compute {
    /// What else a task needs.
    type Params: Copy;
    /// The handler's arguments.
    type Args: DeviceAbi;
    /// The handler.
    const HANDLER: &'static str;

    /// Types of the inputs and of the output.
    fn types(c: &mut Context) -> (Vec<DType>, DType);
    /// One more task: places its rectangles. With `in_place`, the first input's board is the output's, too.
    fn job(c: &mut Context, types: &(Vec<DType>, DType), boards: &mut Boards) -> Job<Self::Params>;
    /// Its arguments.
    fn args(inputs: &[RegionId], output: RegionId, job: &Job<Self::Params>) -> Self::Args;
    /// Data for one of the inputs.
    fn draw(c: &mut Context, dtype: DType, size: [u64; 2]) -> Tensor;
    /// What it must compute.
    fn want(config: Config, params: Self::Params, inputs: &[Tensor], output: DType) -> Results;
    /// How it loads its first input; elementwise handlers take whole rows.
    fn walk(job: &Job<Self::Params>, types: &(Vec<DType>, DType)) -> Walk {
        elementwise::walk(job, types)
    }
    /// Whether its output may be its first input; elementwise handlers need no more than one type for both.
    fn in_place((inputs, output): &(Vec<DType>, DType)) -> bool {
        inputs[0] == *output
    }
}

/// The regions of one rank: inputs, and the output unless it is the first input.
#[derive(Clone, Debug)]
pub(crate) struct Boards {
    pub(crate) inputs: Vec<Board>,
    pub(crate) output: Board,
    pub(crate) in_place: bool,
}

/// What happens around a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Its operands are there.
    Plain,
    /// Its first input arrives block by block, and it waits for each.
    Staged,
    /// Its first input is overwritten as soon as it has loaded.
    Overwritten,
    /// What its output held is copied away, and it may load and compute but not store until then.
    Gated,
}

/// The branches of [`program`], which all compute handlers share.
pub(crate) const BRANCHES: [&str; 8] = [
    "an operand that arrives block by block",
    "an operand that is overwritten once it is loaded",
    "an output that is needed until it is stored",
    "several tasks of a rank",
    "several ranks",
    "a ticket queue",
    "rotating regions",
    "NaN in the data",
];

/// One task.
#[derive(Clone, Debug)]
pub(crate) struct Job<P> {
    pub(crate) inputs: Vec<Rect>,
    pub(crate) output: Rect,
    pub(crate) params: P,
}

struct Placed<P> {
    rank: Rank,
    job: Job<P>,
    flow: Flow,
    queue: Queue,
}

/// Regions of a program; those of flows only if they are needed.
struct Regions {
    inputs: Vec<RegionId>,
    output: RegionId,
    stage: Option<RegionId>,
    /// What overwrites the first input.
    next: Option<RegionId>,
    /// What the output held.
    old: Option<RegionId>,
}

const INPUTS: [&str; 2] = ["x", "y"];
const OUTPUT: &str = "out";

/// Generates a case of this handler.
pub(crate) fn generate<H: Compute>(c: &mut Context) -> Result<Case, String> {
    let registry = c.network.registry(1, c.random.pick(&[1, 1, 2, 3]), 0).map_err(|e| e.to_string())?;
    c.note("several ranks", registry.world().size() > 1);
    let plan = Plan::<H>::draw(c, &registry);
    let program = plan.program(c, &registry).map_err(|e| format!("{}: {e}", plan.name()))?;
    let epochs = (0..c.random.range(2, 3)).map(|_| plan.epoch(c, &program)).collect();
    Case::new(plan.name(), &registry, program, epochs)
}

struct Plan<H: Compute> {
    types: (Vec<DType>, DType),
    in_place: bool,
    jobs: Vec<Placed<H::Params>>,
    /// Extents of the inputs and of the output, by rank.
    extents: (Vec<Vec<[u64; 2]>>, Vec<[u64; 2]>),
    depths: [u32; 3],
    lanes: Option<u16>,
}

impl<H: Compute> Plan<H> {
    fn draw(c: &mut Context, registry: &Registry) -> Plan<H> {
        let types = H::types(c);
        let in_place = c.random.one_in(4) && H::in_place(&types);
        let tickets = c.choose("a ticket queue", true, 5);
        let (mut jobs, mut extents) = (Vec::new(), (vec![Vec::new(); types.0.len()], Vec::new()));
        for rank in registry.topology().ranks() {
            let board = |dtype: &DType| Board::new(c.config, *dtype);
            let (inputs, output) = (types.0.iter().map(board).collect(), board(&types.1));
            let mut boards = Boards { inputs, output, in_place };
            let count = c.random.pick(&[1, 1, 2, 3]) - u64::from(rank.0 > 0 && c.random.one_in(3));
            c.note("several tasks of a rank", count > 1);
            for _ in 0..count {
                let job = H::job(c, &types, &mut boards);
                let flow = draw_flow(c, &job, in_place);
                let lane = Queue::Lane(Lane(c.random.below(2) as u16));
                jobs.push(Placed { rank, job, flow, queue: if tickets { Queue::Ticket } else { lane } });
            }
            let odd = c.random.one_in(2);
            for (board, of) in boards.inputs.iter().zip(&mut extents.0) {
                of.push(board.finish(&mut c.random, odd));
            }
            extents.1.push(boards.output.finish(&mut c.random, odd));
        }
        let depths = [(); 3].map(|()| c.random.pick(&[1, 1, 2, 3]));
        c.note("rotating regions", depths.iter().any(|d| *d > 1));
        Plan { types, in_place, jobs, extents, depths, lanes: tickets.then_some(2) }
    }

    fn name(&self) -> String {
        let jobs: Vec<String> = self
            .jobs
            .iter()
            .map(|p| format!("{:?} {} to {} on {}", p.flow, p.job.inputs[0], p.job.output, p.rank))
            .collect();
        let in_place = if self.in_place { " in place" } else { "" };
        format!("{} of {:?}{in_place}: {}", H::HANDLER, self.types, jobs.join("; "))
    }

    fn has(&self, flow: Flow) -> bool {
        self.jobs.iter().any(|p| p.flow == flow)
    }

    fn regions(&self, b: &mut ProgramBuilder) -> Result<Regions, Error> {
        let (inputs, output) = &self.extents;
        let mut add = |name: &str, io, dtype, extents: &[[u64; 2]], depth: usize| {
            let shape = Shape::PerRank(extents.to_vec());
            b.region(Region::new(name, RegionKind::Bound, io, dtype, shape).rotating(self.depths[depth]))
        };
        let written = self.in_place || self.has(Flow::Overwritten);
        let mut ids = Vec::new();
        for (i, extents) in inputs.iter().enumerate() {
            let io = if i == 0 && written { Io::InOut } else { Io::Input };
            ids.push(add(INPUTS[i], io, self.types.0[i], extents, i)?);
        }
        let (dtype, first) = (self.types.0[0], ids[0]);
        let output_extents = if self.in_place { &inputs[0] } else { output };
        Ok(Regions {
            output: match self.in_place {
                true => first,
                false => add(OUTPUT, Io::InOut, self.types.1, output, 2)?,
            },
            stage: match self.has(Flow::Staged) {
                true => Some(add("stage", Io::Scratch, dtype, &inputs[0], 1)?),
                false => None,
            },
            next: match self.has(Flow::Overwritten) {
                true => Some(add("next", Io::Input, dtype, &inputs[0], 2)?),
                false => None,
            },
            old: match self.has(Flow::Gated) {
                true => Some(add("old", Io::InOut, self.types.1, output_extents, 0)?),
                false => None,
            },
            inputs: ids,
        })
    }

    fn program(&self, c: &mut Context, registry: &Registry) -> Result<Program, Error> {
        let mut b = ProgramBuilder::new(H::HANDLER, registry);
        let regions = self.regions(&mut b)?;
        if let Some(lanes) = self.lanes {
            registry.topology().ranks().for_each(|r| b.lanes(r, lanes));
        }
        let op = b.op(H::HANDLER)?;
        for (i, placed) in self.jobs.iter().enumerate() {
            let label = b.label(format!("task {i}"));
            let on = (placed.rank, placed.queue, op, label);
            self.add(c, &mut b, &regions, placed, on, i)?;
        }
        b.finish()
    }

    fn add(
        &self,
        c: &mut Context,
        b: &mut ProgramBuilder,
        regions: &Regions,
        p: &Placed<H::Params>,
        (rank, queue, op, label): (Rank, Queue, Op, Label),
        i: usize,
    ) -> Result<(), Error> {
        let (x, output) = (regions.inputs[0], regions.output);
        let task = |inputs: &[RegionId], b: &mut ProgramBuilder| {
            b.task(rank, queue, op, label, &H::args(inputs, output, &p.job))
        };
        let (source, target) = (p.job.inputs[0], p.job.output);
        match (p.flow, regions) {
            (Flow::Staged, Regions { stage: Some(stage), .. }) => {
                let blocks = blocks(source, H::walk(&p.job, &self.types));
                let arrived = b.signal(&format!("arrived {i}"), SignalKind::Add, blocks.len() as u64)?;
                for (j, block) in blocks.iter().enumerate() {
                    // The last of several comes late: a task that does not wait for it is seen.
                    let late = match j > 0 && j + 1 == blocks.len() {
                        true => Some(detour(b, p, i, WaitFor::all(arrived, j as u64 - 1))?),
                        false => None,
                    };
                    let arrive = local_copy(c, b, p, [x, *stage], *block)?;
                    b.post(arrive, PostTo::done(p.rank, arrived, j as u64))?;
                    if let Some(late) = late {
                        b.wait(arrive, late)?;
                    }
                }
                let inputs: Vec<RegionId> =
                    std::iter::once(*stage).chain(regions.inputs[1..].iter().copied()).collect();
                let task = task(&inputs, b)?;
                b.wait(task, WaitFor::all(arrived, 0).count(blocks.len() as u64).each_block(1))
            }
            (Flow::Overwritten, Regions { next: Some(next), .. }) => {
                let loaded = b.signal(&format!("loaded {i}"), SignalKind::Add, 1)?;
                let task = task(&regions.inputs, b)?;
                b.post(task, PostTo::loaded(p.rank, loaded, 0))?;
                let overwrite = local_copy(c, b, p, [*next, x], source)?;
                b.wait(overwrite, WaitFor::all(loaded, 0))
            }
            (Flow::Gated, Regions { old: Some(old), .. }) => {
                let saved = b.signal(&format!("saved {i}"), SignalKind::Add, 1)?;
                let save = local_copy(c, b, p, [output, *old], target)?;
                b.post(save, PostTo::done(p.rank, saved, 0))?;
                let task = task(&regions.inputs, b)?;
                b.wait(task, WaitFor::all(saved, 0).before_store())
            }
            _ => task(&regions.inputs, b).map(|_| ()),
        }
    }

    /// Fresh data, and what must come of it.
    fn epoch(&self, c: &mut Context, program: &Program) -> Epoch {
        let mut epoch = Epoch { given: Bindings::new(), want: Default::default() };
        for rank in 0..program.ranks {
            self.rank_epoch(c, program, Rank(rank as u16), &mut epoch);
        }
        epoch
    }

    fn rank_epoch(&self, c: &mut Context, program: &Program, rank: Rank, epoch: &mut Epoch) {
        let mut memory = Memory::new(&mut c.random, program, rank);
        let jobs = || self.jobs.iter().filter(|p| p.rank == rank);
        for p in jobs() {
            self.fill(c, &p.job, p.flow, &mut memory);
        }
        for p in jobs() {
            self.expect(c.config, &p.job, p.flow, &mut memory);
        }
        memory.finish(epoch);
    }

    fn fill(&self, c: &mut Context, job: &Job<H::Params>, flow: Flow, memory: &mut Memory) {
        for (i, rect) in job.inputs.iter().enumerate() {
            let mut data = H::draw(c, self.types.0[i], [rect.rows, rect.cols]);
            c.plant_nan(&mut data);
            memory.fill(INPUTS[i], *rect, &data);
        }
        if flow == Flow::Overwritten {
            let source = job.inputs[0];
            let data = H::draw(c, self.types.0[0], [source.rows, source.cols]);
            memory.fill("next", source, &data);
        }
    }

    fn expect(&self, config: Config, job: &Job<H::Params>, flow: Flow, memory: &mut Memory) {
        let output = if self.in_place { INPUTS[0] } else { OUTPUT };
        let inputs: Vec<Tensor> =
            job.inputs.iter().zip(INPUTS).map(|(rect, region)| memory.given(region, *rect)).collect();
        if flow == Flow::Gated {
            let old = memory.given(output, job.output);
            memory.want("old").bytes(job.output, &old);
        }
        let results = H::want(config, job.params, &inputs, self.types.1);
        memory.want(output).write(job.output, &results);
        if flow == Flow::Overwritten {
            let next = memory.given("next", job.inputs[0]);
            memory.want(INPUTS[0]).bytes(job.inputs[0], &next);
        }
    }
}

fn draw_flow<P>(c: &mut Context, job: &Job<P>, in_place: bool) -> Flow {
    let reads = !job.inputs[0].is_empty();
    if c.choose(BRANCHES[0], reads && !in_place, 4) {
        Flow::Staged
    } else if c.choose(BRANCHES[1], reads && !in_place, 4) {
        Flow::Overwritten
    } else if c.choose(BRANCHES[2], !job.output.is_empty(), 4) {
        Flow::Gated
    } else {
        Flow::Plain
    }
}

/// What each block of a walk touches.
fn blocks(whole: Rect, walk: Walk) -> Vec<Rect> {
    let Rect { row, col, rows, cols } = whole;
    let starts =
        |all: u64, size: u64| (0..all.div_ceil(size)).map(move |i| (i * size, size.min(all - i * size)));
    match walk {
        Walk::Whole => vec![whole],
        Walk::Rows(n) => starts(rows, n).map(|(at, n)| Rect::new(row + at, col, n, cols)).collect(),
        Walk::Cols(n) => starts(cols, n).map(|(at, n)| Rect::new(row, col + at, rows, n)).collect(),
    }
}

/// Tasks in a row that only wait: as long as it takes to load what a small task loads.
const HOPS: u64 = 5;

/// What is met long after `from` is.
fn detour<P>(b: &mut ProgramBuilder, p: &Placed<P>, i: usize, from: WaitFor) -> Result<WaitFor, Error> {
    let hops = b.signal(&format!("detour {i}"), SignalKind::Add, HOPS)?;
    let (op, label) = (b.op("nvlink.wait")?, b.label("detour"));
    for hop in 0..HOPS {
        let task = b.task(p.rank, p.queue, op, label, &SyncArgs { peer: p.rank })?;
        b.wait(task, if hop == 0 { from } else { WaitFor::all(hops, hop - 1) })?;
        b.post(task, PostTo::done(p.rank, hops, hop))?;
    }
    Ok(WaitFor::all(hops, HOPS - 1))
}

/// Copies a rectangle to the same place in another region of the task's rank.
fn local_copy<P>(
    c: &mut Context,
    b: &mut ProgramBuilder,
    p: &Placed<P>,
    [src, dst]: [RegionId; 2],
    at: Rect,
) -> Result<TaskRef, Error> {
    let (op, label) = (b.op("nvlink.put")?, b.label("copy"));
    let args = CopyArgs {
        src,
        dst,
        peer: p.rank,
        units: c.random.range(1, 2) as u16,
        src_row: at.row,
        src_col: at.col,
        dst_row: at.row,
        dst_col: at.col,
        rows: at.rows as u32,
        cols: at.cols as u32,
    };
    b.task(p.rank, p.queue, op, label, &args)
}
