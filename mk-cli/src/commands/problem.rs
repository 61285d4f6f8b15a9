//! From options and files to an operator and its plan.

use crate::args::{DataArgs, Problem, WorldArgs};
use crate::error::Failure;
use crate::memory::{self, human};
use crate::setup;
use crate::tensors::{self, Loaded};
use mk_compute::{AllGatherGemm, Gemm, Plan};
use mk_core::{DType, Error, Hardware, Program, Rank, Registry, Tensor, World};
use serde::Serialize;

/// Rows, columns and depth where neither option nor file gives them.
const DEFAULT_SIZE: u64 = 1024;
/// Memory of one task while it is planned, proved and simulated, estimated.
const TASK_BYTES: u128 = 512;
/// Memory of one signal word of one rank, at most: the verifier holds its posts, its writer, and while it follows the
/// program its state and its waiters.
const WORD_BYTES: u128 = 24;

/// C = A x B, sized and typed.
pub(crate) struct Product {
    pub(crate) m: u64,
    pub(crate) n: u64,
    pub(crate) k: u64,
    pub(crate) dtype: DType,
    kind: Plan,
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
        let mut operator =
            AllGatherGemm::new(m, n, k, dtype).plan_kind(problem.plan.into()).hardware(hardware.clone());
        if let Some(lanes) = problem.lanes {
            operator = operator.lanes(lanes_of(lanes, &hardware)?);
        }
        operator.check()?;
        Ok(Product { m, n, k, dtype, kind: problem.plan.into(), operator, hardware, registry })
    }

    /// A bf16 product of this size, fused, on an H200.
    pub(crate) fn sized([m, n, k]: [u64; 3], world: World) -> Result<Product, Failure> {
        let (dtype, hardware) = (DType::Bf16, Hardware::h200());
        let operator = AllGatherGemm::new(m, n, k, dtype).hardware(hardware.clone());
        operator.check()?;
        let (kind, registry) = (Plan::default(), setup::registry(&world)?);
        Ok(Product { m, n, k, dtype, kind, operator, hardware, registry })
    }

    /// Plans it, if the plan fits into memory.
    pub(crate) fn plan(&self) -> Result<Program, Failure> {
        let ranks = u128::from(self.registry.world().size());
        let [rows, units] = [self.m, self.n / AllGatherGemm::UNIT].map(u128::from);
        // Each rank's shard may end in a smaller block.
        let row_blocks = rows.div_ceil(u128::from(Gemm::ROWS)) + ranks.min(rows);
        let col_tiles = u128::from(self.n).div_ceil(u128::from(Gemm::COLS)) + ranks.min(units);
        let tasks = row_blocks * (col_tiles + ranks);
        let bytes = tasks * TASK_BYTES + self.words(row_blocks) * WORD_BYTES;
        memory::check("the plan", bytes, "use smaller matrices or fewer ranks")?;
        self.operator.plan(&self.registry).map_err(explain)
    }

    /// Signal words of all ranks: on each, one for every slice that arrives, or for every rank where it waits for all of
    /// them, and for every row block of every rank one that gives credit.
    fn words(&self, row_blocks: u128) -> u128 {
        let ranks = u128::from(self.registry.world().size());
        let blocks = u128::from(self.k.div_ceil(Gemm::BLOCK_K));
        // A slice is at least a block.
        let slices = blocks.clamp(1, u128::from(AllGatherGemm::SLICES));
        let arrivals = match self.kind {
            Plan::Fused => row_blocks * slices,
            Plan::Unfused => ranks,
        };
        let shard = u128::from(self.m).div_ceil(ranks).div_ceil(u128::from(Gemm::ROWS));
        ranks * (arrivals + ranks * shard)
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
        failure.says.hint = "ag-gemm runs inside one node so far, all ranks in one NVLink group: use --nodes 1, or one nvlink \
                             group of all ranks in the --topology file"
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
    pub(crate) tasks: usize,
    /// Lanes of the rank that uses most.
    pub(crate) lanes: u16,
    /// Bytes of each rank.
    pub(crate) memory: mk_core::program::Memory,
    /// Bytes that all ranks together write to or read from others in one run.
    pub(crate) moved_bytes: u64,
}

impl Planned {
    pub(crate) fn of(product: &Product, program: &Program) -> Result<Planned, Failure> {
        Ok(Planned {
            operator: product.operator.to_string(),
            ranks: program.ranks,
            nodes: product.registry.topology().nodes().len(),
            tasks: program.tasks.len(),
            lanes: program.lanes.iter().copied().max().unwrap_or(0),
            memory: program.memory()?,
            moved_bytes: moved_bytes(program, &product.registry)?,
        })
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let s = |n: usize| if n == 1 { "" } else { "s" };
        let Planned { operator, ranks, nodes, tasks, lanes, memory, moved_bytes } = self;
        let bytes = memory.heap + memory.bound + memory.staging + memory.signals + memory.tasks;
        format!(
            "{operator} on {ranks} rank{} of {nodes} node{}: {tasks} task{}, {lanes} lane{} a rank, {} a rank, {} moved",
            s(*ranks as usize),
            s(*nodes),
            s(*tasks),
            s(usize::from(*lanes)),
            human(bytes.into()),
            human((*moved_bytes).into()),
        )
    }
}

/// Bytes of accesses to other ranks' memory.
fn moved_bytes(program: &Program, registry: &Registry) -> Result<u64, Failure> {
    let opcodes = program.opcodes(registry)?;
    let mut bytes = 0u64;
    for stream in &program.streams {
        for id in stream.tasks() {
            let task = program.task(id);
            let spec = program.spec(registry, opcodes[task.op.index()], stream.rank, task)?;
            for a in spec.accesses.iter().filter(|a| a.rank != stream.rank) {
                let element = program.regions.get(a.region.index()).map_or(0, |r| r.dtype.bytes());
                bytes = bytes.saturating_add(a.rect.area().saturating_mul(element));
            }
        }
    }
    Ok(bytes)
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
