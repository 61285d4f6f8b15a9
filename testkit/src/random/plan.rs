//! The stages of a random program, as tasks.

use super::eval::{Eval, Expected, Made};
use super::{Params, Random, Rng};
use mk_compute::{AddArgs, CastArgs, GemmArgs, ScaleArgs, SwigluArgs};
use mk_core::{
    CopyArgs, DType, DeviceAbi, Error, Io, Lane, NodeSpec, ProgramBuilder, Queue, Rank, Region, RegionId,
    RegionKind, Registry, Shape, SyncArgs, TaskRef, Topology, World,
};

/// A task that reads a chunk.
#[derive(Clone, Copy)]
pub(super) struct Reader {
    pub(super) task: TaskRef,
    pub(super) rank: usize,
    /// It waits unit by unit.
    pub(super) by_unit: bool,
    /// Where it is not on the chunk's own rank: the task there that tells it of the arrival.
    pub(super) notice: Option<TaskRef>,
    /// The network carries its posts to other ranks.
    pub(super) far: bool,
}

/// A chunk of a tensor on one rank.
pub(super) struct Chunk {
    /// Its first writer, which waits for credits, and the rank that executes it.
    pub(super) first: TaskRef,
    pub(super) first_rank: usize,
    /// Its last writer, which posts the arrival.
    pub(super) last: TaskRef,
    /// Arrivals are posted unit by unit.
    pub(super) units: u16,
    pub(super) readers: Vec<Reader>,
}

/// A tensor.
pub(super) struct TensorPlan {
    pub(super) region: RegionId,
    pub(super) heap: bool,
    pub(super) depth: u8,
    pub(super) chunks: Vec<Vec<Chunk>>,
    /// Some of its writers' posts are carried by the network.
    pub(super) far: bool,
    /// Its writers have both wait slots taken already.
    pub(super) full: bool,
    /// Largest magnitude of its elements.
    bound: f64,
    /// All its writers on a rank are tasks of one lane's stream.
    pub(super) one_stream: bool,
    /// The next stage must read all of it on its own rank (unread sums would race with themselves).
    must_read: bool,
}

pub(super) struct Planner {
    pub(super) params: Params,
    pub(super) rng: Rng,
    pub(super) b: ProgramBuilder,
    pub(super) registry: Registry,
    pub(super) ranks: usize,
    pub(super) tensors: Vec<TensorPlan>,
    made: Vec<Made>,
    starts: Vec<u64>,
    cols: u64,
    gates: Option<(DType, RegionId)>,
    weights: Option<(DType, RegionId)>,
}

/// Largest integer up to which a type holds all integers.
fn exact(dtype: DType) -> f64 {
    match dtype {
        DType::Bf16 => 256.0,
        DType::F16 => 2048.0,
        DType::F32 | DType::I32 => 16_777_216.0,
    }
}

const FLOATS: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];

impl Planner {
    pub(super) fn new(params: &Params) -> Result<Planner, Error> {
        let nodes: Vec<NodeSpec> = params
            .nodes
            .iter()
            .filter(|&&n| n > 0)
            .map(|&ranks| NodeSpec {
                name: String::new(),
                ranks,
                nvlink: None,
                nics: 1,
                fabric: String::new(),
            })
            .collect();
        let topology = if nodes.is_empty() { Topology::single_node(1)? } else { Topology::new(nodes)? };
        let ranks = topology.size() as usize;
        let network = if params.ordered { mk_rdma::Rdma::ordered() } else { mk_rdma::Rdma::unordered() };
        let registry = Registry::builder()
            .transport(mk_nvlink::NvLink::new())
            .transport(network)
            .handlers(mk_compute::handlers())
            .build(&World::of(topology))?;
        let mut starts = vec![0];
        for rows in &params.chunks {
            starts.push(starts[starts.len() - 1] + u64::from(*rows));
        }
        Ok(Planner {
            rng: Rng::new(params.seed),
            b: ProgramBuilder::new("random", &registry),
            registry,
            ranks,
            tensors: Vec::new(),
            made: Vec::new(),
            starts,
            cols: 8 * u64::from(params.units.max(1)),
            gates: None,
            weights: None,
            params: params.clone(),
        })
    }

    pub(super) fn plan(mut self) -> Result<Random, Error> {
        self.input()?;
        for _ in 0..self.params.stages {
            self.stage()?;
        }
        let output = self.output()?;
        self.connect()?;
        let expected = Expected {
            seed: self.params.seed,
            ranks: self.ranks,
            starts: self.starts,
            cols: self.cols,
            tensors: self.made,
            output,
            gates: self.gates.map(|g| g.0),
            weights: self.weights.map(|w| w.0),
        };
        Ok(Random { params: self.params, program: self.b.finish()?, registry: self.registry, expected })
    }

    fn rows(&self) -> u64 {
        self.starts[self.starts.len() - 1]
    }

    pub(super) fn chunks(&self) -> usize {
        self.starts.len() - 1
    }

    fn chunk_rows(&self, c: usize) -> u64 {
        self.starts[c + 1] - self.starts[c]
    }

    pub(super) fn mapped(&self, a: usize, b: usize) -> bool {
        self.registry.topology().mapped(Rank(a as u16), Rank(b as u16))
    }

    fn input(&mut self) -> Result<(), Error> {
        let dtype = FLOATS[self.rng.below(3) as usize];
        let region = self.b.region(Region::input("x", dtype, Shape::Uniform([self.rows(), self.cols])))?;
        self.tensors.push(TensorPlan {
            region,
            heap: false,
            depth: 1,
            chunks: Vec::new(),
            far: false,
            full: false,
            bound: 1.0,
            one_stream: false,
            must_read: false,
        });
        self.made.push(Made { dtype, eval: None });
        Ok(())
    }

    /// A tensor to be filled; `heap`: peers reach it.
    fn tensor(&mut self, dtype: DType, heap: bool, bound: f64, eval: Eval) -> Result<usize, Error> {
        let (rows, cols, n) = (self.rows(), self.cols, self.tensors.len());
        // Some ranks have rows to spare, which nobody touches.
        let spare: Vec<u64> = (0..self.ranks).map(|_| self.rng.below(3)).collect();
        let shape = if self.rng.chance(30) {
            Shape::PerRank(spare.iter().map(|s| [rows + s, cols]).collect())
        } else {
            Shape::Uniform([rows, cols])
        };
        let depth = 1 + self.rng.below(u64::from(self.params.depth.clamp(1, 8))) as u32;
        let kind = if heap { RegionKind::Heap } else { RegionKind::Bound };
        let region = Region::new(&format!("t{n}"), kind, Io::Scratch, dtype, shape).rotating(depth);
        let region = self.b.region(region)?;
        self.push(region, heap, depth as u8, bound, dtype, eval);
        Ok(n)
    }

    fn push(&mut self, region: RegionId, heap: bool, depth: u8, bound: f64, dtype: DType, eval: Eval) {
        self.tensors.push(TensorPlan {
            region,
            heap,
            depth,
            chunks: (0..self.ranks).map(|_| Vec::new()).collect(),
            far: false,
            full: false,
            bound,
            one_stream: false,
            must_read: false,
        });
        self.made.push(Made { dtype, eval: Some(eval) });
    }

    /// A lane for compute work of a chunk.
    fn compute_queue(&mut self, rank: usize, c: usize, one: bool) -> Queue {
        let lanes = self.params.lanes.max(1);
        self.b.lanes(Rank(rank as u16), lanes);
        if self.params.ticket {
            return Queue::Ticket;
        }
        let lane = if one { 0 } else { (c as u64 + self.rng.below(2)) as u16 % lanes };
        Queue::Lane(Lane(lane))
    }

    pub(super) fn comm_queue(&mut self, rank: usize) -> Queue {
        let lanes = self.params.lanes.max(1);
        self.b.lanes(Rank(rank as u16), lanes);
        Queue::Lane(Lane(self.rng.below(lanes.into()) as u16))
    }

    fn task(
        &mut self,
        rank: usize,
        queue: Queue,
        op: &str,
        label: String,
        args: &impl DeviceAbi,
    ) -> Result<TaskRef, Error> {
        let (op, label) = (self.b.op(op)?, self.b.label(label));
        self.b.task(Rank(rank as u16), queue, op, label, args)
    }

    pub(super) fn sync(
        &mut self,
        rank: usize,
        op: &str,
        label: String,
        peer: usize,
    ) -> Result<TaskRef, Error> {
        let queue = self.comm_queue(rank);
        self.task(rank, queue, op, label, &SyncArgs { peer: Rank(peer as u16) })
    }

    /// Notes that `task` reads a chunk. The input needs no note: it is there from the start, and nobody writes it.
    fn reads(&mut self, tensor: usize, rank: usize, c: usize, reader: Reader) {
        if let Some(chunk) = self.tensors[tensor].chunks.get_mut(rank) {
            chunk[c].readers.push(reader);
        }
    }

    fn stage(&mut self) -> Result<(), Error> {
        let src = self.tensors.len() - 1;
        match self.rng.below(10) {
            _ if self.tensors[src].must_read => self.elementwise(src, None),
            0..=1 => self.elementwise(src, None),
            2 => self.add(src),
            3 => self.product(src),
            4..=5 if self.ranks > 1 => self.sum(src),
            _ => self.exchange(src),
        }
    }

    fn output(&mut self) -> Result<usize, Error> {
        let src = self.tensors.len() - 1;
        let dtype = self.made[src].dtype;
        // A gate multiplies by 128: only where the type still holds that exactly.
        if self.rng.chance(30) && self.tensors[src].bound * 128.0 <= exact(dtype) {
            return self.gate(src);
        }
        let region = self.b.region(Region::output("y", dtype, Shape::Uniform([self.rows(), self.cols])))?;
        self.elementwise(src, Some(region))?;
        Ok(self.tensors.len() - 1)
    }

    /// A scale or a cast, chunk by chunk.
    fn elementwise(&mut self, src: usize, to: Option<RegionId>) -> Result<(), Error> {
        let (from, bound) = (self.made[src].dtype, self.tensors[src].bound);
        let mut factor = [1.0, -1.0, 2.0, 3.0][self.rng.below(4) as usize];
        let cast = to.is_none() && self.rng.chance(40);
        let mut dtype = from;
        if cast {
            factor = 1.0;
            let other = FLOATS[self.rng.below(3) as usize];
            dtype = if bound <= exact(other) { other } else { from };
        } else if bound * f64::abs(factor) > exact(from) {
            factor = -1.0;
        }
        let (bound, eval) = (bound * f64::abs(factor), Eval::Scale { src, factor });
        let dst = match to {
            Some(region) => {
                self.push(region, false, 1, bound, dtype, eval);
                self.tensors.len() - 1
            }
            None => {
                let heap = self.rng.chance(70);
                self.tensor(dtype, heap, bound, eval)?
            }
        };
        let (x, y) = (self.tensors[src].region, self.tensors[dst].region);
        let one = self.rng.chance(30);
        self.tensors[dst].one_stream = (one || self.params.lanes <= 1) && !self.params.ticket;
        for rank in 0..self.ranks {
            for c in 0..self.chunks() {
                let (row, rows, cols) = (self.starts[c], self.chunk_rows(c) as u32, self.cols as u32);
                let queue = self.compute_queue(rank, c, one);
                let label = format!("t{dst}.{c}");
                let task = if cast {
                    let args = CastArgs {
                        src: x,
                        dst: y,
                        rows,
                        cols,
                        src_row: row,
                        src_col: 0,
                        dst_row: row,
                        dst_col: 0,
                    };
                    self.task(rank, queue, "cast", label, &args)?
                } else {
                    let args = ScaleArgs {
                        src: x,
                        dst: y,
                        factor: factor as f32,
                        rows,
                        cols,
                        src_row: row,
                        src_col: 0,
                        dst_row: row,
                        dst_col: 0,
                    };
                    self.task(rank, queue, "scale", label, &args)?
                };
                self.local(src, dst, rank, c, task);
            }
        }
        Ok(())
    }

    /// Notes a task that reads a chunk and writes the same one of the next tensor, on one rank.
    fn local(&mut self, src: usize, dst: usize, rank: usize, c: usize, task: TaskRef) {
        self.reads(src, rank, c, Reader { task, rank, by_unit: false, notice: None, far: false });
        let chunk = Chunk { first: task, first_rank: rank, last: task, units: 1, readers: Vec::new() };
        self.tensors[dst].chunks[rank].push(chunk);
    }

    /// The sum of the last tensor and an earlier one of its type.
    fn add(&mut self, a: usize) -> Result<(), Error> {
        let dtype = self.made[a].dtype;
        let bound = |p: &Planner, b: usize| p.tensors[a].bound + p.tensors[b].bound;
        let fits: Vec<usize> =
            (0..a).filter(|&b| self.made[b].dtype == dtype && bound(self, b) <= exact(dtype)).collect();
        if fits.is_empty() {
            return self.elementwise(a, None);
        }
        let b = fits[self.rng.below(fits.len() as u64) as usize];
        let bound = bound(self, b);
        let dst = self.tensor(dtype, true, bound, Eval::Add { a, b })?;
        self.tensors[dst].full = true;
        let (x, y, out) = (self.tensors[a].region, self.tensors[b].region, self.tensors[dst].region);
        for rank in 0..self.ranks {
            for c in 0..self.chunks() {
                let (row, rows, cols) = (self.starts[c], self.chunk_rows(c) as u32, self.cols as u32);
                let queue = self.compute_queue(rank, c, false);
                let args = AddArgs {
                    x,
                    y,
                    dst: out,
                    rows,
                    cols,
                    src_row: row,
                    src_col: 0,
                    dst_row: row,
                    dst_col: 0,
                };
                let task = self.task(rank, queue, "add", format!("t{dst}.{c}"), &args)?;
                self.local(a, dst, rank, c, task);
                self.reads(b, rank, c, Reader { task, rank, by_unit: false, notice: None, far: false });
            }
        }
        Ok(())
    }

    /// The product with the caller's weights.
    fn product(&mut self, src: usize) -> Result<(), Error> {
        let (dtype, cols) = (self.made[src].dtype, self.cols);
        let bound = self.tensors[src].bound * cols as f64;
        let fits = matches!(dtype, DType::Bf16 | DType::F16) && bound <= exact(dtype);
        if !fits || self.weights.is_some_and(|w| w.0 != dtype) {
            return self.elementwise(src, None);
        }
        let weights = match self.weights {
            Some(w) => w.1,
            None => self.b.region(Region::input("weights", dtype, Shape::Uniform([cols, cols])))?,
        };
        self.weights = Some((dtype, weights));
        let dst = self.tensor(dtype, true, bound, Eval::Product { src })?;
        let (a, y) = (self.tensors[src].region, self.tensors[dst].region);
        for rank in 0..self.ranks {
            for c in 0..self.chunks() {
                let (row, rows) = (self.starts[c], self.chunk_rows(c) as u16);
                let queue = self.compute_queue(rank, c, false);
                let args = GemmArgs {
                    a,
                    b: weights,
                    c: y,
                    rows,
                    cols: cols as u16,
                    a_row: row,
                    c_row: row,
                    col: 0,
                    k: cols,
                };
                let task = self.task(rank, queue, "gemm", format!("t{dst}.{c}"), &args)?;
                self.local(src, dst, rank, c, task);
            }
        }
        Ok(())
    }

    /// The output through the caller's gates.
    fn gate(&mut self, src: usize) -> Result<usize, Error> {
        let (dtype, shape) = (self.made[src].dtype, Shape::Uniform([self.rows(), self.cols]));
        let gates = self.b.region(Region::input("gates", dtype, shape.clone()))?;
        self.gates = Some((dtype, gates));
        let region = self.b.region(Region::output("y", dtype, shape))?;
        self.push(region, false, 1, 0.0, dtype, Eval::Gate { src });
        let (dst, up) = (self.tensors.len() - 1, self.tensors[src].region);
        for rank in 0..self.ranks {
            for c in 0..self.chunks() {
                let (row, rows, cols) = (self.starts[c], self.chunk_rows(c) as u32, self.cols as u32);
                let queue = self.compute_queue(rank, c, false);
                let args = SwigluArgs {
                    gate: gates,
                    up,
                    dst: region,
                    rows,
                    cols,
                    src_row: row,
                    src_col: 0,
                    dst_row: row,
                    dst_col: 0,
                };
                let task = self.task(rank, queue, "swiglu", format!("y.{c}"), &args)?;
                self.local(src, dst, rank, c, task);
            }
        }
        Ok(dst)
    }

    /// Where each chunk of each rank comes from.
    fn pattern(&mut self) -> Vec<Vec<(usize, usize)>> {
        let (ranks, chunks) = (self.ranks, self.chunks());
        let (kind, by) = (self.rng.below(5), 1 + self.rng.below(ranks as u64) as usize);
        // Chunks of other rows do not fit: only chunks of the same height change places.
        let alike: Vec<Vec<usize>> = (0..chunks)
            .map(|c| (0..chunks).filter(|&o| self.chunk_rows(o) == self.chunk_rows(c)).collect())
            .collect();
        let mut from = Vec::new();
        for r in 0..ranks {
            let mut row = Vec::new();
            for (c, alike) in alike.iter().enumerate() {
                let other = alike[self.rng.below(alike.len() as u64) as usize];
                row.push(match kind {
                    // A ring.
                    0 => ((r + by) % ranks, c),
                    // One rank to all.
                    1 => (by % ranks, c),
                    // Halo: chunks come from the left and the right in turn.
                    2 => ((r + if c % 2 == 0 { 1 } else { ranks - 1 }) % ranks, c),
                    // All to all.
                    3 => (
                        (r + c) % ranks,
                        alike[(alike.iter().position(|&o| o == c).unwrap_or(0) + r) % alike.len()],
                    ),
                    // Anything.
                    _ => (self.rng.below(ranks as u64) as usize, other),
                });
            }
            from.push(row);
        }
        from
    }

    /// Chunks move between ranks.
    fn exchange(&mut self, src: usize) -> Result<(), Error> {
        let from = self.pattern();
        let (dtype, bound) = (self.made[src].dtype, self.tensors[src].bound);
        let dst = self.tensor(dtype, true, bound, Eval::Exchange { src, from: from.clone() })?;
        let units = 1 + self.rng.below(u64::from(self.params.units.max(1))) as u16;
        // Units are multiples of 8 columns: all of them have some.
        let units = (1..=units).rev().find(|&u| (self.cols / 8).is_multiple_of(u.into())).unwrap_or(1);
        let gets = self.tensors[src].heap && !self.tensors[src].full && self.rng.chance(40);
        for (r, row) in from.iter().enumerate() {
            for (c, &(q, other)) in row.iter().enumerate() {
                let task = self.copy(src, dst, (q, other), (r, c), units, gets)?;
                let first_rank = if gets { r } else { q };
                self.tensors[dst].far |= !gets && !self.mapped(q, r);
                let chunk = Chunk { first: task, first_rank, last: task, units, readers: Vec::new() };
                self.tensors[dst].chunks[r].push(chunk);
            }
        }
        Ok(())
    }

    fn copy(
        &mut self,
        src: usize,
        dst: usize,
        (q, other): (usize, usize),
        (r, c): (usize, usize),
        units: u16,
        get: bool,
    ) -> Result<TaskRef, Error> {
        let near = self.mapped(q, r);
        let (rank, peer) = if get { (r, q) } else { (q, r) };
        let signal = self.rng.chance(50);
        let op = match (near, get) {
            (true, true) => "nvlink.get",
            (false, true) => "rdma.get",
            (true, false) if signal => "nvlink.put_signal",
            (true, false) => "nvlink.put",
            (false, false) => "rdma.put_signal",
        };
        let args = CopyArgs {
            src: self.tensors[src].region,
            dst: self.tensors[dst].region,
            peer: Rank(peer as u16),
            units,
            src_row: self.starts[other],
            src_col: 0,
            dst_row: self.starts[c],
            dst_col: 0,
            rows: self.chunk_rows(c) as u32,
            cols: self.cols as u32,
        };
        // The rank that holds the source tells one that gets. It does so from a place before the get, for all tasks are
        // added in an order in which they can run one after the other.
        let notice = if get && q != r && !self.tensors[src].chunks.is_empty() {
            let op = if near { "nvlink.signal" } else { "rdma.signal" };
            Some(self.sync(q, op, format!("notice t{src}.{other} to {r}"), r)?)
        } else {
            None
        };
        let queue = self.comm_queue(rank);
        let task = self.task(rank, queue, op, format!("t{dst}.{c} from {q}"), &args)?;
        let far = !near && !get;
        let same = self.tensors[src].chunks.get(q).is_some_and(|x| x[other].units == units);
        self.reads(
            src,
            q,
            other,
            Reader { task, rank, by_unit: notice.is_none() && same && units > 1, notice, far },
        );
        Ok(task)
    }

    /// Chunks are summed in rank order, inside groups of ranks that are mapped into each other.
    fn sum(&mut self, src: usize) -> Result<(), Error> {
        let mut of: Vec<Vec<usize>> = Vec::new();
        for r in 0..self.ranks {
            let mut group: Vec<usize> = (0..self.ranks).filter(|&q| self.mapped(q, r)).collect();
            while group.len() > 1 && self.rng.chance(20) {
                let out = self.rng.below(group.len() as u64) as usize;
                group.remove(out);
            }
            of.push(group);
        }
        let most = of.iter().map(Vec::len).max().unwrap_or(1) as f64;
        let (dtype, bound) = (self.made[src].dtype, self.tensors[src].bound * most);
        if bound > exact(dtype) {
            return self.exchange(src);
        }
        let dst = self.tensor(dtype, true, bound, Eval::Sum { src, of: of.clone() })?;
        self.tensors[dst].must_read = true;
        let (x, y) = (self.tensors[src].region, self.tensors[dst].region);
        for (r, group) in of.iter().enumerate() {
            for c in 0..self.chunks() {
                let mut chain: Vec<(TaskRef, usize)> = Vec::new();
                for (i, &q) in group.iter().enumerate() {
                    let args = CopyArgs {
                        src: x,
                        dst: y,
                        peer: Rank(r as u16),
                        units: 1,
                        src_row: self.starts[c],
                        src_col: 0,
                        dst_row: self.starts[c],
                        dst_col: 0,
                        rows: self.chunk_rows(c) as u32,
                        cols: self.cols as u32,
                    };
                    let op = if i == 0 { "nvlink.put" } else { "nvlink.reduce_put" };
                    let queue = self.comm_queue(q);
                    let task = self.task(q, queue, op, format!("t{dst}.{c} add {q} to {r}"), &args)?;
                    self.reads(src, q, c, Reader { task, rank: q, by_unit: false, notice: None, far: false });
                    if let Some(&(before, _)) = chain.last() {
                        self.b.edge(&[before], task)?;
                    }
                    chain.push((task, q));
                }
                let ((first, first_rank), (last, _)) = (chain[0], chain[chain.len() - 1]);
                let chunk = Chunk { first, first_rank, last, units: 1, readers: Vec::new() };
                self.tensors[dst].chunks[r].push(chunk);
            }
        }
        Ok(())
    }
}
