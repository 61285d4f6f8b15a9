//! From options and files to an operator and its plan.

use crate::args::{DataArgs, Problem, WorldArgs};
use crate::console::count;
use crate::error::Failure;
use crate::memory::{self, human};
use crate::setup;
use crate::tensors::{self, Loaded};
use mk_compute::{AllGatherGemm, Choice, Prediction, Settings};
use mk_core::{DType, Error, Hardware, Mode, Program, Rank, Registry, Tensor, World};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// Rows, columns and depth where neither option nor file gives them.
const DEFAULT_SIZE: u64 = 1024;
/// Memory of one task while it is planned, proved and simulated, estimated.
const TASK_BYTES: u128 = 1024;
/// Memory of one signal word of one rank, at most: the verifier holds its posts, its writer, and while it follows the
/// program its state and its waiters.
const WORD_BYTES: u128 = 24;

/// C = A x B, sized and typed.
pub(crate) struct Product {
    pub(crate) m: u64,
    pub(crate) n: u64,
    pub(crate) k: u64,
    pub(crate) dtype: DType,
    pub(crate) operator: AllGatherGemm,
    pub(crate) hardware: Hardware,
    pub(crate) registry: Registry,
}

/// A and B as files hold them, where files are given.
#[derive(Default)]
pub(crate) struct Files {
    pub(crate) a: Option<Loaded>,
    pub(crate) b: Option<Loaded>,
}

impl Files {
    pub(crate) fn read(args: &DataArgs) -> Result<Files, Failure> {
        let read = |path: &Option<_>, name| path.as_ref().map(|p| tensors::read(p, name)).transpose();
        Ok(Files { a: read(&args.a, "a")?, b: read(&args.b, "b")? })
    }

    /// Rounds what is f32 to `dtype`, and says which of A and B that is.
    pub(crate) fn round(&mut self, dtype: DType) -> Result<Vec<&'static str>, Failure> {
        let mut rounded = Vec::new();
        for (name, slot) in [("A", &mut self.a), ("B", &mut self.b)] {
            if let Some(loaded) = slot.as_mut().filter(|l| l.tensor.dtype != dtype) {
                loaded.round(name, dtype)?;
                rounded.push(name);
            }
        }
        Ok(rounded)
    }
}

impl Product {
    pub(crate) fn new(problem: &Problem, world: &WorldArgs, files: &Files) -> Result<Product, Failure> {
        let [m, n, k] = sizes(problem, files)?;
        let dtype = dtype(problem, files)?;
        let hardware = setup::hardware(&world.hardware)?;
        let registry = setup::registry(&setup::world(world)?)?;
        let mut operator = AllGatherGemm::new(m, n, k, dtype).hardware(hardware.clone());
        if let Some(plan) = problem.plan {
            operator = operator.plan_kind(plan.into());
        }
        if let Some(gather) = problem.gather {
            operator = operator.gather(gather.into());
        }
        if let Some(lanes) = problem.lanes {
            operator = operator.lanes(lanes_of(lanes, &hardware)?);
        }
        operator.check()?;
        Ok(Product { m, n, k, dtype, operator, hardware, registry })
    }

    /// The same for ranks that share a GPU of so many multiprocessors; `lanes` is what `--lanes` says.
    pub(crate) fn sharing(self, multiprocessors: u32, lanes: Option<u64>) -> Product {
        let share = multiprocessors.min(self.hardware.lanes()) / self.registry.world().size();
        let lanes = lanes.unwrap_or(u64::MAX).min(share.into()).max(1);
        Product { operator: self.operator.lanes(lanes as u16), ..self }
    }

    /// A bf16 product of this size on H200s.
    pub(crate) fn sized([m, n, k]: [u64; 3], world: World) -> Result<Product, Failure> {
        let (dtype, hardware) = (DType::Bf16, Hardware::h200());
        let operator = AllGatherGemm::new(m, n, k, dtype).hardware(hardware.clone());
        operator.check()?;
        let registry = setup::registry(&world)?;
        Ok(Product { m, n, k, dtype, operator, hardware, registry })
    }

    /// Decides how it is planned, and refuses a plan that would not fit into memory.
    pub(crate) fn choose(&self) -> Result<Choice, Failure> {
        let check = |bytes| memory::check("the plan", bytes, "use smaller matrices or fewer ranks");
        check(self.operator.size(&self.registry).map_err(explain)? * TASK_BYTES)?;
        let choice = self.operator.choose(&self.registry).map_err(explain)?;
        check(choice.tasks * TASK_BYTES + choice.words * WORD_BYTES)?;
        Ok(choice)
    }

    /// Plans it as was decided.
    pub(crate) fn plan_chosen(&self, choice: &Choice) -> Result<Program, Failure> {
        self.operator.plan_chosen(choice, &self.registry).map_err(explain)
    }

    /// Decides and plans.
    pub(crate) fn plan(&self) -> Result<Program, Failure> {
        self.operator.plan(&self.registry).map_err(explain)
    }

    /// Bytes of A, B and C.
    pub(crate) fn bytes(&self) -> u128 {
        let [m, n, k] = [self.m, self.n, self.k].map(u128::from);
        (m * k + k * n + m * n) * u128::from(self.dtype.bytes())
    }

    /// Multiplications and additions.
    pub(crate) fn flops(&self) -> u128 {
        2 * u128::from(self.m) * u128::from(self.n) * u128::from(self.k)
    }

    /// A and B: from the files, which have the right type, or random.
    pub(crate) fn operands(&self, files: Files, seed: u64) -> [Tensor; 2] {
        let get = |loaded: Option<Loaded>, number, rows, cols| match loaded {
            Some(l) => l.tensor,
            None => {
                let values = reference::uniform_block(seed, number, [0, 0], [rows, cols]);
                Tensor::from_f32(self.dtype, rows, cols, &values)
            }
        };
        [get(files.a, 0, self.m, self.k), get(files.b, 1, self.k, self.n)]
    }
}

/// What `--lanes` gives, if the hardware has as many.
fn lanes_of(lanes: u64, hardware: &Hardware) -> Result<u16, Failure> {
    let most = hardware.lanes();
    let fits = u16::try_from(lanes).ok().filter(|&l| l > 0 && u32::from(l) <= most);
    fits.ok_or_else(|| {
        Error::input(
            format!("--lanes is out of range: {} has {most} lanes for a program", hardware.name),
            format!("--lanes {lanes}"),
            format!("1 to {most}"),
            "leave it out to use as many as there is work for",
        )
        .into()
    })
}

/// The operator's error; what a missing capability means for somebody who has only options to change.
fn explain(e: Error) -> Failure {
    let missing = matches!(e, Error::MissingCapability { .. });
    let mut failure = Failure::from(e);
    if missing {
        failure.says.hint = "give every node a NIC on one fabric in the --topology file, and put the ranks of a node into one \
                             nvlink group"
            .into();
    }
    failure
}

/// M, N and K from files and options, which must agree.
fn sizes(problem: &Problem, files: &Files) -> Result<[u64; 3], Failure> {
    let [a_rows, a_cols] = extent(&files.a);
    let [b_rows, b_cols] = extent(&files.b);
    if let (Some(a), Some(b)) = (a_cols, b_rows)
        && a != b
    {
        let shape = |[rows, cols]: [Option<u64>; 2]| format!("{} x {}", rows.unwrap_or(0), cols.unwrap_or(0));
        return Err(Error::input(
            "A has not as many columns as B has rows",
            format!("A is {}, B is {}", shape([a_rows, a_cols]), shape([b_rows, b_cols])),
            "A [M, K] and B [K, N], row-major",
            "transpose one of them, or give them the other way round",
        )
        .into());
    }
    let m = agree("m", "A's rows", problem.m, a_rows)?;
    let n = agree("n", "B's columns", problem.n, b_cols)?;
    let k = match a_cols {
        Some(_) => agree("k", "A's columns", problem.k, a_cols)?,
        None => agree("k", "B's rows", problem.k, b_rows)?,
    };
    Ok([m, n, k])
}

fn extent(loaded: &Option<Loaded>) -> [Option<u64>; 2] {
    loaded.as_ref().map_or([None; 2], |l| [Some(l.tensor.rows), Some(l.tensor.cols)])
}

fn agree(option: &str, what: &str, given: Option<u64>, file: Option<u64>) -> Result<u64, Failure> {
    match (given, file) {
        (Some(given), Some(file)) if given != file => Err(Error::input(
            format!("--{option} does not fit the file"),
            format!("--{option} {given}, but {what} are {file}"),
            format!("--{option} {file}, or without --{option}"),
            "sizes are taken from the files",
        )
        .into()),
        (given, file) => Ok(file.or(given).unwrap_or(DEFAULT_SIZE)),
    }
}

/// The type of all three matrices.
fn dtype(problem: &Problem, files: &Files) -> Result<DType, Failure> {
    let of = |loaded: &Option<Loaded>| loaded.as_ref().and_then(Loaded::dtype);
    let said = [("A", of(&files.a)), ("B", of(&files.b)), ("--dtype", problem.dtype.map(DType::from))];
    let mut said = said.into_iter().filter_map(|(what, dtype)| Some((what, dtype?)));
    let Some((first, dtype)) = said.next() else { return Ok(DType::Bf16) };
    match said.find(|(_, other)| *other != dtype) {
        Some((second, other)) => Err(Error::input(
            "A, B and --dtype have different types",
            format!("{first} is {dtype}, {second} is {other}"),
            "one type for both matrices; .npy files of 4-byte floats take any",
            format!("convert one of the files, or leave out --dtype ({first} is {dtype})"),
        )
        .into()),
        None => Ok(dtype),
    }
}

/// What a plan is and needs, in numbers.
#[derive(Serialize)]
pub(crate) struct Planned {
    /// What was planned, in words.
    pub(crate) operator: String,
    pub(crate) ranks: u32,
    pub(crate) nodes: usize,
    /// How: fused or not, push or pull, lanes, slices.
    pub(crate) settings: PlannedSettings,
    /// What it is likely to take.
    pub(crate) predicted: Predicted,
    pub(crate) tasks: usize,
    /// Lanes of the rank that uses most.
    pub(crate) lanes: u16,
    /// Bytes of each rank.
    pub(crate) memory: mk_core::program::Memory,
    /// Bytes that all ranks together write to or read from others in one run.
    pub(crate) moved_bytes: u64,
    /// The same by transport.
    pub(crate) links: Vec<Traffic>,
}

/// What the planner decided.
#[derive(Serialize)]
pub(crate) struct PlannedSettings {
    pub(crate) plan: String,
    pub(crate) gather: String,
    pub(crate) lanes: u16,
    pub(crate) comm_lanes: u16,
    pub(crate) network_lanes: u16,
    pub(crate) slices: u16,
}

impl PlannedSettings {
    pub(crate) fn of(s: &Settings) -> PlannedSettings {
        let Settings { plan, gather, lanes, comm_lanes, network_lanes, slices } = *s;
        let (plan, gather) = (plan.to_string(), gather.to_string());
        PlannedSettings { plan, gather, lanes, comm_lanes, network_lanes, slices }
    }
}

/// What a plan is likely to take, in microseconds.
#[derive(Serialize)]
pub(crate) struct Predicted {
    pub(crate) us: f64,
    /// Tiles alone; rows alone; and for how long the busiest port inside a node and out of it is held.
    pub(crate) compute_us: f64,
    pub(crate) gathered_us: f64,
    pub(crate) nvlink_us: f64,
    pub(crate) network_us: f64,
    /// What most of the time goes to.
    pub(crate) limit: String,
}

impl Predicted {
    pub(crate) fn of(p: &Prediction) -> Predicted {
        let us = |ns: f64| ns / 1000.0;
        Predicted {
            us: us(p.time_ns),
            compute_us: us(p.compute_ns),
            gathered_us: us(p.gathered_ns),
            nvlink_us: us(p.nvlink_ns),
            network_us: us(p.network_ns),
            limit: p.limit().0.to_string(),
        }
    }
}

impl Planned {
    pub(crate) fn of(product: &Product, choice: &Choice, program: &Program) -> Result<Planned, Failure> {
        let links = traffic(program, &product.registry)?;
        Ok(Planned {
            operator: product.operator.to_string(),
            ranks: program.ranks,
            nodes: product.registry.topology().nodes().len(),
            settings: PlannedSettings::of(&choice.settings),
            predicted: Predicted::of(&choice.prediction),
            tasks: program.tasks.len(),
            lanes: program.lanes.iter().copied().max().unwrap_or(0),
            memory: program.memory()?,
            moved_bytes: links.iter().map(|l| l.bytes).sum(),
            links,
        })
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let Planned { operator, ranks, nodes, settings, tasks, lanes, memory, moved_bytes, .. } = self;
        let bytes = memory.heap + memory.bound + memory.staging + memory.signals + memory.tasks;
        format!(
            "{operator} ({}) on {} of {}: {}, {} a rank, {} a rank, {} moved",
            settings.plan,
            count(u64::from(*ranks), "rank"),
            count(*nodes as u64, "node"),
            count(*tasks as u64, "task"),
            count(u64::from(*lanes), "lane"),
            human(bytes.into()),
            human((*moved_bytes).into()),
        )
    }
}

/// What goes through one transport in one run.
#[derive(Serialize)]
pub(crate) struct Traffic {
    pub(crate) transport: &'static str,
    /// Of all ranks.
    pub(crate) bytes: u64,
    /// Pairs of ranks, each direction by itself.
    pub(crate) links: usize,
    /// Out of the rank that sends most through it.
    pub(crate) most_out_bytes: u64,
}

/// Bytes of accesses to other ranks' memory, by transport.
fn traffic(program: &Program, registry: &Registry) -> Result<Vec<Traffic>, Failure> {
    let opcodes = program.opcodes(registry)?;
    let mut by_link: BTreeMap<&'static str, HashMap<(Rank, Rank), u64>> = BTreeMap::new();
    for stream in &program.streams {
        for id in stream.tasks() {
            let task = program.task(id);
            let opcode = opcodes[task.op.index()];
            let spec = program.spec(registry, opcode, stream.rank, task)?;
            for a in spec.accesses.iter().filter(|a| a.rank != stream.rank) {
                let Some(route) = registry.route_of(opcode, stream.rank, a.rank) else { continue };
                let element = program.regions.get(a.region.index()).map_or(0, |r| r.dtype.bytes());
                // What is read travels the other way.
                let way = if a.mode == Mode::Read { (a.rank, stream.rank) } else { (stream.rank, a.rank) };
                let bytes = by_link.entry(route.transport()).or_default().entry(way).or_insert(0);
                *bytes = bytes.saturating_add(a.rect.area().saturating_mul(element));
            }
        }
    }
    Ok(by_link.into_iter().map(|(transport, links)| Traffic::of(transport, &links)).collect())
}

impl Traffic {
    fn of(transport: &'static str, links: &HashMap<(Rank, Rank), u64>) -> Traffic {
        let mut out: HashMap<Rank, u64> = HashMap::new();
        for ((from, _), bytes) in links {
            *out.entry(*from).or_insert(0) += bytes;
        }
        Traffic {
            transport,
            bytes: links.values().sum(),
            links: links.len(),
            most_out_bytes: out.values().copied().max().unwrap_or(0),
        }
    }
}

/// The parts of A and B that each rank starts with.
pub(crate) fn shards(product: &Product, a: &Tensor, b: &Tensor) -> mk_core::Bindings {
    let world = product.registry.world().size();
    let mut bindings = mk_core::Bindings::new();
    for r in 0..world {
        let (rows, cols) = (product.operator.rows(world, r), product.operator.cols(world, r));
        let rank = Rank(r as u16);
        bindings.set(rank, AllGatherGemm::A, a.slice(rows.start, rows.end - rows.start, 0, a.cols));
        bindings.set(rank, AllGatherGemm::B, b.slice(0, b.rows, cols.start, cols.end - cols.start));
    }
    bindings
}

/// C, from the columns that each rank has. `None` where a rank gave back none, or of another shape.
pub(crate) fn gather(product: &Product, outputs: &mk_core::Bindings) -> Option<Tensor> {
    let world = product.registry.world().size();
    let mut c = Tensor::zeros(product.dtype, product.m, product.n);
    for r in 0..world {
        let cols = product.operator.cols(world, r);
        let part = outputs.get(Rank(r as u16), AllGatherGemm::C)?;
        let fits = part.dtype == c.dtype && part.rows == c.rows && part.cols == cols.end - cols.start;
        if !fits {
            return None;
        }
        c.paste(0, cols.start, part);
    }
    Some(c)
}
