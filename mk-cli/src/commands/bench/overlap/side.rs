//! One rank of a program that was planned for two.

use mk_compute::AllGatherGemm;
use mk_core::{CopyArgs, DeviceAbi as _, Io, Lane, Program, Queue, Rank, Shape, Stream, StreamTasks, Task};

/// All that rank 0 does for itself, and of rank 1, on one lane, what that needs of it: that its rows are there, and that they stay
/// until they are read.
pub(super) fn one_side(program: Program) -> Program {
    let signals = |p: &Program, t: &Task| {
        let name = &p.handlers[t.op.index()].name;
        name.ends_with(".signal") || name.ends_with(".wait")
    };
    let mut side = keep(program, |p, stream, task| (stream.rank == Rank(1)) == signals(p, task));
    side.lanes[1] = 1;
    for stream in side.streams.iter_mut().filter(|s| s.rank == Rank(1)) {
        stream.queue = Queue::Lane(Lane(0));
    }
    joined(&mut side);
    // Rank 1 multiplies nothing.
    for name in [AllGatherGemm::B, AllGatherGemm::C] {
        shrink(&mut side, name, 1);
    }
    side
}

/// With all rows there from the start: what moves them moves none, and posts at once. They are given by the caller.
pub(super) fn with_all_rows(mut program: Program) -> Program {
    let get = program.handlers.iter().position(|h| h.name.ends_with(".get"));
    for task in program.tasks.iter_mut().filter(|t| Some(t.op.index()) == get) {
        task.args = CopyArgs { rows: 0, ..CopyArgs::from_bytes(&task.args) }.to_bytes();
    }
    for region in program.regions.iter_mut().filter(|r| r.name == AllGatherGemm::GATHER) {
        region.io = Io::InOut;
        region.shape = Shape::PerRank(vec![region.extent(Rank(0)), [0, 0]]);
    }
    program
}

/// Without what multiplies.
pub(super) fn without_tiles(program: Program) -> Program {
    let mut comm = keep(program, |_, stream, _| stream.stream == Stream::Comm);
    for name in [AllGatherGemm::B, AllGatherGemm::C] {
        shrink(&mut comm, name, 0);
    }
    comm
}

/// Only these tasks.
fn keep(mut program: Program, which: impl Fn(&Program, &StreamTasks, &Task) -> bool) -> Program {
    let (mut streams, mut tasks) = (Vec::new(), Vec::new());
    for stream in &program.streams {
        let first = tasks.len() as u32;
        let kept = stream.tasks().map(|id| *program.task(id)).filter(|t| which(&program, stream, t));
        tasks.extend(kept);
        let len = tasks.len() as u32 - first;
        streams.extend((len > 0).then_some(StreamTasks { first, len, ..*stream }));
    }
    (program.streams, program.tasks) = (streams, tasks);
    program
}

/// Streams of the same lane that follow each other become one.
fn joined(program: &mut Program) {
    let mut streams: Vec<StreamTasks> = Vec::new();
    for stream in &program.streams {
        match streams.last_mut() {
            Some(last)
                if (last.rank, last.queue, last.stream) == (stream.rank, stream.queue, stream.stream) =>
            {
                last.len += stream.len;
            }
            _ => streams.push(*stream),
        }
    }
    program.streams = streams;
}

/// A rank has nothing of this region.
fn shrink(program: &mut Program, name: &str, rank: usize) {
    for region in program.regions.iter_mut().filter(|r| r.name == name) {
        if let Shape::PerRank(extents) = &mut region.shape {
            extents[rank] = [0, 0];
        }
    }
}
