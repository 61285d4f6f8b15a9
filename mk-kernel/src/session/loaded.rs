//! A program on the device: its memory, its tables, its runs.

use super::refused;
use super::tables::{Tables, copy_bytes, first_blocks, pitch_bytes};
use crate::abi::{
    Bounds, CLOCKS, FaultReason, Geometry, Launch, Params, RegionInfo, Role, STREAMS, TensorMap,
};
use crate::driver::{
    self, Context, DeviceMemory, Kernel, Matrix, Memory as _, Plain, Stream, bytes_of, encode,
};
use crate::layout::{ConstPtr, MutPtr};
use mk_core::{Bindings, Fault, Io, Program, Rank, Reason, Region, RunError, Tensor, Verified};

/// Rows of the boxes that tensor maps are made for: MAP_ROWS64, MAP_ROWS128, MAP_STORE.
const BOX_ROWS: [u32; 3] = [64, 128, 16];
/// Bytes of a fault record.
const FAULT_BYTES: u64 = size_of::<crate::abi::Fault>() as u64;

type Result<T> = std::result::Result<T, driver::Error>;

/// What one rank has for itself.
struct OfRank {
    /// By region.
    regions: Vec<DeviceMemory>,
    signals: DeviceMemory,
    fault: DeviceMemory,
}

/// See the module.
pub(super) struct Loaded {
    verified: Verified,
    launch: Launch,
    blocks: u32,
    bounds: Bounds,
    /// Of the next run, from 1.
    epoch: u64,
    ranks: Vec<OfRank>,
    /// Tables of all ranks.
    shared: Vec<DeviceMemory>,
}

/// Puts tables on the device.
struct Uploads<'a> {
    context: &'a Context,
    stream: &'a Stream,
    kept: Vec<DeviceMemory>,
}

impl Uploads<'_> {
    fn table<T: Plain>(&mut self, table: &[T]) -> Result<u64> {
        let bytes = bytes_of(table);
        let memory = DeviceMemory::new(self.context, bytes.len() as u64)?;
        self.stream.upload(&memory, 0, bytes)?;
        let address = memory.address();
        self.kept.push(memory);
        Ok(address)
    }
}

impl Loaded {
    /// Takes memory for a program that was checked, and fills in its tables.
    pub(super) fn new(
        verified: &Verified,
        context: &Context,
        stream: &Stream,
        bounds: Bounds,
        generation: u64,
    ) -> Result<Loaded> {
        let program = verified.program();
        let ranks =
            all_ranks(program).map(|_| memory_of(program, context, stream)).collect::<Result<Vec<_>>>()?;
        let mut up = Uploads { context, stream, kept: Vec::new() };
        let bases: Vec<u64> = ranks.iter().flat_map(|r| r.regions.iter().map(|m| m.address())).collect();
        let bases = ConstPtr::new(up.table(&bases)?);
        let signals: Vec<u64> = ranks.iter().map(|r| r.signals.address()).collect();
        let signals = ConstPtr::new(up.table(&signals)?);
        // The abort word is the record's first.
        let aborts: Vec<u64> = ranks.iter().map(|r| r.fault.address()).collect();
        let aborts = ConstPtr::new(up.table(&aborts)?);
        let mut launch = Launch { count: program.ranks, ..Launch::default() };
        let first = first_blocks(program);
        for rank in all_ranks(program) {
            let tables = Tables::of(verified, rank);
            let maps = maps(program, &ranks[rank.index()], &tables.regions, rank, context)?;
            let clock = up.table(&[1u64])?;
            let mut clocks = [0u64; CLOCKS];
            clocks[0] = clock;
            launch.params[rank.index()] = Params {
                tasks: ConstPtr::new(up.table(&tables.tasks)?),
                streams: ConstPtr::new(up.table(&tables.streams)?),
                queues: tables.queues,
                tickets: MutPtr::new(up.table(&[0u64; STREAMS])?),
                regions: ConstPtr::new(up.table(&tables.regions)?),
                bases,
                signals,
                clocks: ConstPtr::new(up.table(&clocks)?),
                maps: ConstPtr::new(up.table(&maps)?),
                fault: MutPtr::new(ranks[rank.index()].fault.address()),
                aborts,
                left: MutPtr::new(up.table(&[0u32])?),
                trace: MutPtr::new(0),
                trace_counts: MutPtr::new(0),
                bounds,
                generation,
                rank: rank.0.into(),
                ranks: program.ranks,
                region_count: program.regions.len() as u32,
                first_block: first[rank.index()],
                lanes: program.lanes[rank.index()].into(),
                trace_events: 0,
            };
        }
        let blocks = program.lanes.iter().map(|&l| u32::from(l)).sum();
        let (verified, shared) = (verified.clone(), up.kept);
        Ok(Loaded { verified, launch, blocks, bounds, epoch: 1, ranks, shared })
    }

    pub(super) fn program(&self) -> &Program {
        self.verified.program()
    }

    /// Gives the other ranks signal words for `rank` that nobody looks at.
    pub(super) fn lose_posts_to(&mut self, rank: Rank, context: &Context, stream: &Stream) -> Result<()> {
        let mut up = Uploads { context, stream, kept: Vec::new() };
        let nowhere = up.table(&vec![0u64; self.program().words() as usize])?;
        let mut signals: Vec<u64> = self.ranks.iter().map(|r| r.signals.address()).collect();
        signals[rank.index()] = nowhere;
        let table = ConstPtr::new(up.table(&signals)?);
        for other in all_ranks(self.program()).filter(|r| *r != rank) {
            self.launch.params[other.index()].signals = table;
        }
        self.shared.append(&mut up.kept);
        Ok(())
    }

    /// Runs one epoch.
    pub(super) fn run(
        &mut self,
        kernel: &Kernel,
        stream: &Stream,
        shared_bytes: u32,
        bindings: &Bindings,
    ) -> std::result::Result<Bindings, RunError> {
        self.bind(stream, bindings).map_err(refused)?;
        self.launch(kernel, stream, shared_bytes).map_err(refused)?;
        if let Some(fault) = self.fault(stream).map_err(refused)? {
            return Err(fault.into());
        }
        self.epoch += 1;
        self.outputs(stream).map_err(refused)
    }

    #[allow(unsafe_code, reason = "a launch is what its parameters say")]
    fn launch(&self, kernel: &Kernel, stream: &Stream, shared_bytes: u32) -> Result<()> {
        if self.blocks > 0 {
            let size = driver::Launch { blocks: self.blocks, threads: Geometry::THREADS, shared_bytes };
            // SAFETY: the parameters point at memory that `self` owns until the run has been waited for, below, and the program
            // was proved to stay inside of it.
            unsafe { kernel.launch(stream, size, &self.launch) }?;
        }
        stream.synchronize()
    }

    /// Where the copy of a region begins that this epoch uses.
    fn rotation(&self, region: &Region) -> u64 {
        self.epoch % u64::from(region.depth) * copy_bytes(region)
    }

    fn bind(&self, stream: &Stream, bindings: &Bindings) -> Result<()> {
        for (rank, name, tensor) in bindings.iter() {
            let found = self.program().regions.iter().position(|r| r.name == name);
            let Some((i, memory)) =
                found.and_then(|i| Some((i, self.ranks.get(rank.index())?.regions.get(i)?)))
            else {
                continue;
            };
            let region = &self.program().regions[i];
            stream.upload(memory, self.rotation(region), &pitched(tensor, pitch_bytes(region)))?;
        }
        Ok(())
    }

    fn outputs(&self, stream: &Stream) -> Result<Bindings> {
        let mut outputs = Bindings::new();
        for (rank, of) in all_ranks(self.program()).zip(&self.ranks) {
            let regions = self.program().regions.iter().zip(&of.regions);
            for (region, memory) in regions.filter(|(r, _)| matches!(r.io, Io::Output | Io::InOut)) {
                let ([rows, cols], pitch) = (region.extent(rank), pitch_bytes(region));
                let mut bytes = vec![0; (rows * pitch) as usize];
                stream.download(memory, self.rotation(region), &mut bytes)?;
                outputs.set(rank, &region.name, packed(region, [rows, cols], &bytes, pitch));
            }
        }
        Ok(outputs)
    }

    /// The fault of this run, of the rank that saw it.
    fn fault(&self, stream: &Stream) -> Result<Option<Fault>> {
        let mut told = false;
        for of in &self.ranks {
            let mut bytes = [0u8; FAULT_BYTES as usize];
            stream.download(&of.fault, 0, &mut bytes)?;
            let word = |i: usize| {
                u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
            };
            let long = |i: usize| u64::from(word(i)) | u64::from(word(i + 1)) << 32;
            match word(0) {
                0 => {}
                1 => {
                    let rank = Rank(word(2) as u16);
                    return Ok(Some(self.explain(
                        rank,
                        [word(1), word(3), word(4), word(5), word(7)],
                        [long(8), long(10), long(12)],
                    )));
                }
                _ => told = true,
            }
        }
        // Somebody raised the abort words and wrote no record.
        Ok(told.then(|| {
            self.explain(Rank(0), [FaultReason::Host as u32, 0, 0, u32::MAX, 0], [0, 0, self.epoch])
        }))
    }

    /// In words, from a record: reason, lane, role, task, word; expected, seen, epoch.
    fn explain(
        &self,
        rank: Rank,
        [reason, lane, role, task, word]: [u32; 5],
        [expected, seen, epoch]: [u64; 3],
    ) -> Fault {
        let program = self.program();
        let of_rank = program.streams.iter().filter(|s| s.rank == rank);
        // Records lie on the device stream by stream, as they do in the program.
        let mut left = task;
        let mut name = format!("lane {lane} of {rank}");
        for s in of_rank {
            if left < s.len && (role == Role::Comm as u32) == (s.stream == mk_core::Stream::Comm) {
                name = program.task_name(mk_core::TaskId(s.first + left));
            }
            match left.checked_sub(s.len) {
                Some(rest) => left = rest,
                None => break,
            }
        }
        let reason = FaultReason::from_code(reason);
        let timeout = reason == Some(FaultReason::Signal);
        let signal = if timeout { program.word_name(rank, word) } else { String::new() };
        let us = self.bounds.run_clocks / super::CLOCKS_PER_US;
        let what = match reason {
            Some(FaultReason::Signal) => Reason::Timeout(us),
            Some(FaultReason::Barrier) => Reason::Kernel("a barrier between roles was not reached".into()),
            Some(FaultReason::Opcode) => Reason::Kernel(format!("it has no handler with opcode {word}")),
            Some(FaultReason::Unreachable) => {
                Reason::Kernel("a region or the signals of a rank are out of reach".into())
            }
            Some(FaultReason::Alignment) => {
                Reason::Kernel("a rectangle does not consist of 16-byte rows: on a GPU, rows and their starts are multiples of 16 bytes".into())
            }
            Some(FaultReason::Arguments) => Reason::Kernel("its arguments are too large for a GPU".into()),
            _ => Reason::Kernel("it was told to leave".into()),
        };
        Fault { rank, task: name, signal, expected, seen, epoch, reason: what }
    }
}

fn all_ranks(program: &Program) -> impl Iterator<Item = Rank> + use<> {
    (0..program.ranks).map(|r| Rank(r as u16))
}

fn memory_of(program: &Program, context: &Context, stream: &Stream) -> Result<OfRank> {
    let zeroed = |bytes: u64| {
        let memory = DeviceMemory::new(context, bytes)?;
        stream.fill(&memory, 0)?;
        Ok(memory)
    };
    let regions = program.regions.iter().map(|r| {
        let memory = DeviceMemory::new(context, copy_bytes(r).saturating_mul(r.depth.into()))?;
        // NaN in all types of numbers: what is read and was never written is seen.
        stream.fill(&memory, if r.io == Io::InOut { 0 } else { 0xff })?;
        Ok(memory)
    });
    let regions = regions.collect::<Result<Vec<_>>>()?;
    Ok(OfRank { regions, signals: zeroed(program.words() * 8)?, fault: zeroed(FAULT_BYTES)? })
}

/// By region and kind of box.
fn maps(
    program: &Program,
    of: &OfRank,
    infos: &[RegionInfo],
    rank: Rank,
    context: &Context,
) -> Result<Vec<TensorMap>> {
    let mut maps = Vec::new();
    for ((region, memory), info) in program.regions.iter().zip(&of.regions).zip(infos) {
        let [rows, cols] = region.extent(rank);
        let matrix = Matrix {
            address: memory.address(),
            dtype: region.dtype,
            rows,
            cols,
            copies: region.depth,
            pitch_bytes: info.pitch_bytes,
            copy_bytes: info.copy_bytes,
        };
        for rows in BOX_ROWS {
            maps.push(encode(context, &matrix, rows)?.into());
        }
    }
    Ok(maps)
}

/// A tensor's rows, each from a multiple of the pitch on.
fn pitched(tensor: &Tensor, pitch: u64) -> Vec<u8> {
    let row = (tensor.cols * tensor.dtype.bytes()) as usize;
    if row as u64 == pitch || row == 0 {
        return tensor.bytes.clone();
    }
    let mut bytes = vec![0; tensor.rows as usize * pitch as usize];
    for (to, from) in bytes.chunks_exact_mut(pitch as usize).zip(tensor.bytes.chunks_exact(row)) {
        to[..row].copy_from_slice(from);
    }
    bytes
}

/// The reverse.
fn packed(region: &Region, [rows, cols]: [u64; 2], bytes: &[u8], pitch: u64) -> Tensor {
    let row = (cols * region.dtype.bytes()) as usize;
    let mut packed = Vec::with_capacity(row * rows as usize);
    if row > 0 {
        bytes.chunks_exact(pitch as usize).for_each(|r| packed.extend_from_slice(&r[..row]));
    }
    Tensor { dtype: region.dtype, rows, cols, bytes: packed }
}
