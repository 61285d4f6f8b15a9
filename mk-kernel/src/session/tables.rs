//! What the kernel reads of a program: records, streams and regions of one rank, as tables.

use super::bound::DeviceTensor;
use crate::abi::{RegionInfo, STREAMS, StreamRange, TaskFlags};
use crate::layout::MutPtr;
use mk_core::{OpId, Program, Queue, Rank, Region, Registry, Stream, StreamTasks, Task, TaskId, Verified};

/// Rows begin at multiples of this: what TMA and bulk copies want.
pub(super) const ROW_BYTES: u64 = 16;

/// Tables of one rank.
pub(super) struct Tables {
    pub(super) tasks: Vec<Task>,
    /// By lane and stream.
    pub(super) streams: Vec<StreamRange>,
    pub(super) queues: [StreamRange; STREAMS],
    /// Whether any two lanes share what they load.
    pub(super) shares: bool,
}

impl Tables {
    /// `pairs`: lanes 0 and 1, 2 and 3, ... reach each other's shared memory.
    pub(super) fn of(verified: &Verified, rank: Rank, pairs: bool) -> Tables {
        let program = verified.program();
        let mut tasks = Vec::new();
        let mut streams = vec![StreamRange::default(); usize::from(program.lanes[rank.index()]) * STREAMS];
        let mut queues = [StreamRange::default(); STREAMS];
        for s in streams_of(program, rank) {
            let range = StreamRange { first: tasks.len() as u32, count: s.len };
            let stream = s.stream as usize;
            match s.queue {
                Queue::Lane(lane) => streams[usize::from(lane.0) * STREAMS + stream] = range,
                Queue::Ticket => queues[stream] = range,
            }
            tasks.extend(s.tasks().map(|id| resolved(program.task(id), verified.opcodes())));
        }
        let mut shares = false;
        let lanes = streams.as_chunks::<{ 2 * STREAMS }>().0.iter().filter(|_| pairs);
        for [a, b] in lanes.map(|lanes| [lanes[0], lanes[STREAMS]]) {
            shares |= share(&mut tasks, verified.registry(), [a, b]);
        }
        Tables { tasks, streams, queues, shares }
    }
}

/// Marks the tasks of two lanes that load an operand once for both: the first ones, as long as they wait for nothing. So both lanes
/// come to each of them, whatever happens elsewhere: what the proof says of lanes that do not know each other still holds.
/// Whether there are any.
fn share(tasks: &mut [Task], registry: &Registry, lanes: [StreamRange; 2]) -> bool {
    let count = lanes[0].count.min(lanes[1].count) as usize;
    for i in 0..count {
        let places = lanes.map(|lane| lane.first as usize + i);
        let [a, b] = places.map(|place| &tasks[place]);
        let waits = (a.flags | b.flags) & (TaskFlags::GUARDS | TaskFlags::STORE_WAITS) != 0;
        let handler = registry.handlers().get(a.op.index()).filter(|_| a.op == b.op && !waits);
        let operand = handler.and_then(|h| h.shares(&a.args, &b.args)).filter(|o| *o < 2);
        let Some(operand) = operand else { return i > 0 };
        for place in places {
            tasks[place].flags |= (u16::from(operand) + 1) * TaskFlags::SHARES;
        }
    }
    count > 0
}

/// The streams of a rank, whose records lie one after the other.
fn streams_of(program: &Program, rank: Rank) -> impl Iterator<Item = &StreamTasks> {
    program.streams.iter().filter(move |s| s.rank == rank)
}

/// The tasks of a rank, in the order of their records.
pub(super) fn tasks_of(program: &Program, rank: Rank) -> impl Iterator<Item = (TaskId, Stream)> {
    streams_of(program, rank).flat_map(|s| s.tasks().map(|id| (id, s.stream)))
}

/// A record with the opcode of its handler, and its flags.
fn resolved(task: &Task, opcodes: &[u16]) -> Task {
    Task { op: OpId(opcodes[task.op.index()]), flags: TaskFlags::of(task), ..*task }
}

/// From one row of a region to the next, on every rank.
pub(super) fn pitch_bytes(region: &Region) -> u64 {
    (region.allocated()[1] * region.dtype.bytes()).next_multiple_of(ROW_BYTES)
}

/// Bytes of one copy of a region, on every rank.
pub(super) fn copy_bytes(region: &Region) -> u64 {
    region.allocated()[0] * pitch_bytes(region)
}

/// A region on the symmetric heap.
pub(super) fn region_info(region: &Region, rank: Rank, own: u64) -> RegionInfo {
    let [rows, cols] = region.extent(rank);
    RegionInfo {
        own: MutPtr::new(own),
        copy_bytes: copy_bytes(region),
        pitch_bytes: pitch_bytes(region),
        depth: region.depth,
        dtype: region.dtype as u16,
        element_bytes: region.dtype.bytes() as u16,
        rows,
        cols,
    }
}

/// The caller's own tensor. It is the same in every epoch: only its own rank reaches it, and runs of a rank are in order.
pub(super) fn bound_info(region: &Region, rank: Rank, tensor: &DeviceTensor) -> RegionInfo {
    let pitch_bytes = tensor.pitch_bytes;
    let copy_bytes = region.extent(rank)[0].max(1) * pitch_bytes;
    RegionInfo { pitch_bytes, copy_bytes, depth: 1, ..region_info(region, rank, tensor.address) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mk_compute::AllGatherGemm;
    use mk_core::{DType, Hardware, World};

    /// What each lane of rank 0 shares, task by task.
    fn shared(ranks: u64, [m, n, k]: [u64; 3], lanes: u16, pairs: bool) -> Vec<Vec<u16>> {
        let registry = Registry::builder()
            .transport(mk_nvlink::NvLink::new())
            .handlers(mk_compute::handlers())
            .build(&World::local(ranks).unwrap())
            .unwrap();
        let program = AllGatherGemm::new(m, n, k, DType::Bf16).lanes(lanes).plan(&registry).unwrap();
        let verified = program.verify(&registry, &Hardware::h200()).unwrap();
        let tables = Tables::of(&verified, Rank(0), pairs);
        let of = |range: &StreamRange| {
            let tasks = &tables.tasks[range.first as usize..][..range.count as usize];
            tasks.iter().map(|t| t.flags / TaskFlags::SHARES).collect::<Vec<_>>()
        };
        let shared: Vec<_> = tables.streams.iter().step_by(STREAMS).map(of).collect();
        assert_eq!(tables.shares, shared.iter().flatten().any(|s| *s > 0));
        shared
    }

    const A: u16 = 1;
    const B: u16 = 2;

    #[test]
    fn lanes_of_a_pair_share_b_and_in_the_last_row_a() {
        // Three row blocks of four wide tiles: two rows of pairs, and one row.
        assert_eq!(shared(1, [384, 1024, 128], 4, true), vec![vec![B, B, A]; 4]);
        assert_eq!(shared(1, [384, 1024, 128], 4, false), vec![vec![0; 3]; 4]);
        // The last lane has no other. What is shared ends where the two lanes of a pair have nothing in common.
        let odd = shared(1, [384, 1024, 128], 3, true);
        assert_eq!(odd, [[B, 0, 0, 0], [B, 0, 0, 0], [0; 4]]);
    }

    #[test]
    fn what_waits_is_not_shared_nor_what_follows_it() {
        let lanes = shared(2, [1024, 2048, 128], 4, true);
        for pair in lanes.chunks(2) {
            let [a, b] = pair else { unreachable!() };
            assert_eq!(a, b);
            let own = a.iter().take_while(|s| **s > 0).count();
            assert!(own > 0 && own < a.len() && a[own..].iter().all(|s| *s == 0), "{lanes:?}");
        }
    }

    #[test]
    fn narrow_tiles_are_each_lanes_own() {
        assert!(shared(1, [128, 1024, 128], 16, true).iter().flatten().all(|s| *s == 0));
    }
}
