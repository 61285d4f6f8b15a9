//! What it costs that the next task is another handler's: lanes that take two handlers in turn, against lanes that take the
//! same tasks one handler after the other.

use super::super::Measurement;
use super::super::record::Case;
use super::super::rig::machine::{Machine, registry};
use super::super::rig::workload::Workload;
use super::difference::{alternate, per_step};
use crate::error::Failure;
use mk_compute::{AddArgs, CopyRectArgs, GemmArgs};
use mk_core::{
    DType, Error, Lane, Program, ProgramBuilder, Queue, Rank, Region, RegionId, Registry, Shape, TaskRef,
};
use serde_json::json;

/// Tasks of each of the two handlers on a lane.
const EACH: u64 = 64;
/// Nanoseconds a change.
const BAR_NS: f64 = 300.0;
/// Handlers that differ in what they ask of a lane: pages of shared memory, math or none, stores by row or by tile.
const PAIRS: [[Kind; 2]; 2] = [[Kind::Copy, Kind::Add], [Kind::Copy, Kind::Gemm]];

const RANK: Rank = Rank(0);
/// Elements of a row that is copied or added: a kibibyte.
const ROW: u64 = 512;
/// A tile: rows and depth, and columns.
const SIDE: u64 = 64;
const TILE_COLS: u64 = 32;

/// A handler, on small rectangles. Each lane reads its own inputs, each task writes its own output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Copy,
    Add,
    Gemm,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Copy => "copy",
            Kind::Add => "add",
            Kind::Gemm => "gemm",
        }
    }

    /// Its regions, for so many lanes with `each` of its tasks.
    fn declare(self, b: &mut ProgramBuilder, lanes: u64, each: u64) -> Result<Placed, Error> {
        let mut region = |make: fn(&str, DType, Shape) -> Region, what: &str, shape| {
            b.region(make(&format!("{} {what}", self.name()), DType::Bf16, Shape::Uniform(shape)))
        };
        let (of_lanes, of_tasks) = ([lanes, ROW], [lanes * each, ROW]);
        Ok(match self {
            Kind::Copy => Placed::Copy {
                src: region(Region::input, "x", of_lanes)?,
                dst: region(Region::output, "out", of_tasks)?,
            },
            Kind::Add => Placed::Add {
                x: region(Region::input, "x", of_lanes)?,
                y: region(Region::input, "y", of_lanes)?,
                dst: region(Region::output, "out", of_tasks)?,
            },
            Kind::Gemm => Placed::Gemm {
                a: region(Region::input, "a", [lanes * SIDE, SIDE])?,
                b: region(Region::input, "b", [SIDE, TILE_COLS])?,
                c: region(Region::output, "out", [lanes * each * SIDE, TILE_COLS])?,
            },
        })
    }
}

/// A handler and its regions.
enum Placed {
    Copy { src: RegionId, dst: RegionId },
    Add { x: RegionId, y: RegionId, dst: RegionId },
    Gemm { a: RegionId, b: RegionId, c: RegionId },
}

impl Placed {
    fn kind(&self) -> Kind {
        match self {
            Placed::Copy { .. } => Kind::Copy,
            Placed::Add { .. } => Kind::Add,
            Placed::Gemm { .. } => Kind::Gemm,
        }
    }

    /// Adds a task of a lane that writes output number `place`.
    fn task(&self, builder: &mut ProgramBuilder, lane: u16, place: u64) -> Result<TaskRef, Error> {
        let name = self.kind().name();
        let (op, label) = (builder.op(name)?, builder.label(name));
        let (queue, row) = (Queue::Lane(Lane(lane)), u64::from(lane));
        let (rows, cols, src_row, src_col, dst_row, dst_col) = (1, ROW as u32, row, 0, place, 0);
        match *self {
            Placed::Copy { src, dst } => {
                let args = CopyRectArgs { src, dst, rows, cols, src_row, src_col, dst_row, dst_col };
                builder.task(RANK, queue, op, label, &args)
            }
            Placed::Add { x, y, dst } => {
                let args = AddArgs { x, y, dst, rows, cols, src_row, src_col, dst_row, dst_col };
                builder.task(RANK, queue, op, label, &args)
            }
            Placed::Gemm { a, b, c } => {
                let (rows, cols) = (SIDE as u16, TILE_COLS as u16);
                let (a_row, c_row) = (row * SIDE, place * SIDE);
                let args = GemmArgs { a, b, c, rows, cols, a_row, c_row, col: 0, k: SIDE };
                builder.task(RANK, queue, op, label, &args)
            }
        }
    }
}

/// The order of a lane's tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    InTurn,
    Sorted,
}

impl Order {
    /// Which of two kinds task `i` of `2 * each` is, and its number among those.
    fn place(self, i: u64, each: u64) -> (usize, u64) {
        match self {
            Order::InTurn => ((i % 2) as usize, i / 2),
            Order::Sorted => ((i / each) as usize, i % each),
        }
    }

    fn program(self, pair: [Kind; 2], registry: &Registry, lanes: u16, each: u64) -> Result<Program, Error> {
        let mut b = ProgramBuilder::new("two handlers", registry);
        let [one, other] = pair;
        let placed = [one.declare(&mut b, lanes.into(), each)?, other.declare(&mut b, lanes.into(), each)?];
        for lane in 0..lanes {
            for i in 0..2 * each {
                let (which, number) = self.place(i, each);
                placed[which].task(&mut b, lane, u64::from(lane) * each + number)?;
            }
        }
        b.finish()
    }
}

/// How many changes of handler tasks in turn have more than sorted ones.
fn changes(each: u64) -> u64 {
    2 * each - 2
}

/// Measures all pairs.
pub(super) fn measure(m: &mut Measurement<'_, '_>, machine: &Machine) -> Result<(), Failure> {
    let (registry, lanes) = (registry(1)?, machine.lanes());
    for pair in PAIRS {
        let workload = |order: Order| -> Result<Workload, Failure> {
            let program = order.program(pair, &registry, lanes, EACH)?;
            Workload::simulated(program, &registry, &machine.hardware)
        };
        let names = pair.map(Kind::name).join(" and ");
        let [in_turn, sorted] = {
            let _step = m.step(format!("change of handler, {names}"));
            let workloads = [workload(Order::InTurn)?, workload(Order::Sorted)?];
            alternate(m.many_samples(), machine, &registry, &workloads)?
        };
        let params = json!({ "lanes": lanes, "tasks_a_lane": 2 * EACH, "changes": changes(EACH) });
        let each = per_step(&sorted, &in_turn, changes(EACH)).into_iter().map(|us| us * 1e3).collect();
        let name = format!("run of {} tasks a lane, {names} in turn", 2 * EACH);
        m.keep(Case::new(name, params.clone(), "us", in_turn).against("sorted by handler", sorted));
        m.keep(Case::new(format!("change of handler, {names}"), params, "ns", each).at_most(BAR_NS));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mk_core::Hardware;

    /// How often a lane's next task is of another handler.
    fn changes_of(program: &Program) -> Vec<u64> {
        let of_stream = |s: &mk_core::StreamTasks| {
            let tasks = &program.tasks[s.first as usize..(s.first + s.len) as usize];
            tasks.windows(2).filter(|two| two[0].op != two[1].op).count() as u64
        };
        program.streams.iter().map(of_stream).collect()
    }

    #[test]
    fn both_orders_have_the_same_tasks_but_for_the_changes_and_the_same_results() {
        let registry = registry(1).unwrap();
        for pair in PAIRS {
            let programs = [Order::InTurn, Order::Sorted].map(|o| o.program(pair, &registry, 3, 4).unwrap());
            assert_eq!(changes_of(&programs[0]), [7; 3], "{pair:?}");
            assert_eq!(changes_of(&programs[1]), [1; 3], "{pair:?}");
            assert_eq!(changes(4), 6);
            let mut args = programs.each_ref().map(|p| p.tasks.iter().map(|t| t.args).collect::<Vec<_>>());
            args.iter_mut().for_each(|a| a.sort_unstable());
            assert_eq!(args[0], args[1]);
            let [one, other] =
                programs.map(|p| Workload::simulated(p, &registry, &Hardware::h200()).unwrap());
            assert!(one.want == other.want && one.want.iter().count() == 2);
        }
    }

    /// The sums are exact, so f64 gives the simulator's bits.
    #[test]
    fn a_tile_of_a_lane_is_its_rows_times_the_columns() {
        let registry = registry(1).unwrap();
        let program = Order::InTurn.program([Kind::Copy, Kind::Gemm], &registry, 2, 2).unwrap();
        let w = Workload::simulated(program, &registry, &Hardware::h200()).unwrap();
        let get = |from: &mk_core::Bindings, name| from.get(RANK, name).unwrap().to_f32();
        let (a, b) = (get(&w.tensors, "gemm a"), get(&w.tensors, "gemm b"));
        let c = get(&w.want, "gemm out");
        let (side, cols) = (SIDE as usize, TILE_COLS as usize);
        for (row, col) in [(0, 0), (side, 1), (2 * side, 5), (4 * side - 1, cols - 1)] {
            let lane_row = row / (2 * side) * side + row % side;
            let sum: f64 =
                (0..side).map(|k| f64::from(a[lane_row * side + k]) * f64::from(b[k * cols + col])).sum();
            assert_eq!(c[row * cols + col], half::bf16::from_f64(sum).to_f32(), "{row}, {col}");
        }
        let (x, copied) = (get(&w.tensors, "copy x"), get(&w.want, "copy out"));
        assert_eq!(copied[3 * ROW as usize..], x[ROW as usize..], "the last task of lane 1");
    }
}
