//! Small all-reduces inside the kernel, of two ranks on one GPU, by the means that every operator has: bulk copies into the
//! peer's inbox, flags, and adds. Each reduces what the one before has left, so that they cannot overlap.
//!
//! ```text
//! put     step s    sums, row s % 2    to the peer's inbox, row s % 2     when all of step s - 1 has been added here
//! add     step s    inbox + sums       to sums, row (s + 1) % 2           when the peer's part has arrived
//! ```
//!
//! Two rows are enough: a put of step s + 2 follows, through the peer, the add of step s that reads the row which it overwrites.
//! Only the first put of a run has nothing to follow, so it waits for a credit of the run before.

use super::super::Measurement;
use super::super::rig::machine::{Machine, registry};
use super::super::rig::workload::{Workload, numbers};
use super::difference::{Difference, Unit, point};
use crate::error::Failure;
use mk_compute::AddArgs;
use mk_core::{
    Bindings, CopyArgs, DType, Error, Hardware, Lane, Op, PostTo, Program, ProgramBuilder, Queue, Rank,
    Region, RegionId, Registry, Shape, SignalKind, SignalRef, TaskRef, Tensor, WaitFor,
};
use serde_json::{Value, json};

/// What is reduced. Bulk copies move multiples of 16 bytes, so there are none of 8.
const BYTES: [u64; 5] = [16, 256, 4 << 10, 16 << 10, 64 << 10];
/// All-reduces of a run. Each doubles the numbers, which stay far below the largest of bf16; a longer chain of many lanes is
/// beyond what the verifier searches.
const LENGTHS: [u64; 2] = [8, 40];
/// What one lane puts and adds.
const PART_BYTES: u64 = 4 << 10;
/// What the picture calls it.
pub(super) const PANEL: &str = "all-reduce of two ranks on one GPU";

const RANKS: [Rank; 2] = [Rank(0), Rank(1)];

/// All-reduces of so many bytes, one after the other.
struct Chain {
    bytes: u64,
    steps: u64,
}

impl Chain {
    fn elements(&self) -> u64 {
        self.bytes / DType::Bf16.bytes()
    }

    fn lanes(&self) -> u64 {
        self.bytes.div_ceil(PART_BYTES)
    }

    fn program(&self, registry: &Registry) -> Result<Program, Error> {
        let mut emitter = Emitter::new(self, registry)?;
        for step in 0..self.steps {
            for rank in RANKS {
                for lane in 0..self.lanes() {
                    let part = Part { step, rank, lane };
                    emitter.put(&part)?;
                    emitter.add(&part)?;
                }
            }
        }
        emitter.b.finish()
    }

    fn workload(&self, registry: &Registry, hardware: &Hardware) -> Result<Workload, Failure> {
        let program = self.program(registry)?;
        let tensors = numbers(&program);
        let want = self.want(&tensors);
        Workload::new(program, registry, hardware, tensors, want)
    }

    /// The sum of both inputs, doubled in every step but the first: exact in bf16.
    fn want(&self, tensors: &Bindings) -> Bindings {
        let inputs: Vec<Vec<f32>> =
            RANKS.iter().filter_map(|&r| tensors.get(r, "x")).map(Tensor::to_f32).collect();
        let doubled = 2f32.powi(self.steps as i32 - 1);
        let sum = |i: usize| inputs.iter().map(|x| x[i]).sum::<f32>() * doubled;
        let sums: Vec<f32> = (0..self.elements() as usize).map(sum).collect();
        let mut want = Bindings::new();
        for rank in RANKS {
            want.set(rank, "out", Tensor::from_f32(DType::Bf16, 1, self.elements(), &sums));
        }
        want
    }
}

/// What a lane does in a step.
struct Part {
    step: u64,
    rank: Rank,
    lane: u64,
}

impl Part {
    fn peer(&self) -> Rank {
        RANKS[1 - self.rank.index()]
    }

    fn queue(&self) -> Queue {
        Queue::Lane(Lane(self.lane as u16))
    }
}

/// A program under construction.
struct Emitter<'a> {
    chain: &'a Chain,
    b: ProgramBuilder,
    put: Op,
    add: Op,
    x: RegionId,
    inbox: RegionId,
    sums: RegionId,
    out: RegionId,
    /// A part of the peer is here; a word a step and lane.
    arrived: SignalRef,
    /// A part has been added here; a word a step and lane.
    added: SignalRef,
    /// The peer has read the first row of its inbox for the last time; a word a lane.
    free: SignalRef,
}

impl Emitter<'_> {
    fn new<'a>(chain: &'a Chain, registry: &Registry) -> Result<Emitter<'a>, Error> {
        let mut b = ProgramBuilder::new("all-reduce", registry);
        let rows = |rows| Shape::Uniform([rows, chain.elements()]);
        let words = chain.steps * chain.lanes();
        Ok(Emitter {
            chain,
            put: b.op("nvlink.put_signal")?,
            add: b.op("add")?,
            x: b.region(Region::input("x", DType::Bf16, rows(1)))?,
            inbox: b.region(Region::heap("inbox", DType::Bf16, rows(2)))?,
            sums: b.region(Region::heap("sums", DType::Bf16, rows(2)))?,
            out: b.region(Region::output("out", DType::Bf16, rows(1)))?,
            arrived: b.signal("arrived", SignalKind::Add, words)?,
            added: b.signal("added", SignalKind::Add, words)?,
            free: b.signal("free", SignalKind::Add, chain.lanes())?,
            b,
        })
    }

    fn word(&self, part: &Part) -> u64 {
        part.step * self.chain.lanes() + part.lane
    }

    /// First column and columns of a lane's part.
    fn columns(&self, lane: u64) -> (u64, u32) {
        let each = self.chain.elements() / self.chain.lanes();
        (lane * each, each as u32)
    }

    /// What a step reduces.
    fn operand(&self, step: u64) -> RegionId {
        if step == 0 { self.x } else { self.sums }
    }

    /// Everything that a rank added in the step before.
    fn all_added(&self, step: u64) -> WaitFor {
        WaitFor::all(self.added, (step - 1) * self.chain.lanes()).count(self.chain.lanes())
    }

    fn put(&mut self, part: &Part) -> Result<TaskRef, Error> {
        let ((col, cols), row) = (self.columns(part.lane), part.step % 2);
        let args = CopyArgs {
            src: self.operand(part.step),
            dst: self.inbox,
            peer: part.peer(),
            units: 1,
            src_row: row,
            src_col: col,
            dst_row: row,
            dst_col: col,
            rows: 1,
            cols,
        };
        let label = self.b.label(format!("put of step {}", part.step));
        let task = self.b.task(part.rank, part.queue(), self.put, label, &args)?;
        let wait = match part.step {
            0 => WaitFor::all(self.free, part.lane).lag(1),
            step => self.all_added(step),
        };
        self.b.wait(task, wait)?;
        self.b.post(task, PostTo::done(part.peer(), self.arrived, self.word(part)))?;
        Ok(task)
    }

    fn add(&mut self, part: &Part) -> Result<TaskRef, Error> {
        let ((col, cols), last) = (self.columns(part.lane), self.chain.steps - 1);
        let (dst, dst_row) = if part.step == last { (self.out, 0) } else { (self.sums, (part.step + 1) % 2) };
        let args = AddArgs {
            x: self.operand(part.step),
            y: self.inbox,
            dst,
            rows: 1,
            cols,
            src_row: part.step % 2,
            src_col: col,
            dst_row,
            dst_col: col,
        };
        let label = self.b.label(format!("add of step {}", part.step));
        let task = self.b.task(part.rank, part.queue(), self.add, label, &args)?;
        self.b.wait(task, WaitFor::all(self.arrived, self.word(part)))?;
        if part.step > 0 {
            let own = WaitFor::all(self.added, self.word(part) - self.chain.lanes());
            self.b.wait(task, own)?;
        }
        if part.step < last {
            self.b.post(task, PostTo::done(part.rank, self.added, self.word(part)))?;
        }
        // The last step that reads the first row.
        if part.step == last - last % 2 {
            self.b.post(task, PostTo::loaded(part.peer(), self.free, part.lane))?;
        }
        Ok(task)
    }
}

/// Bytes as people say them.
fn size(bytes: u64) -> String {
    if bytes < 1 << 10 { format!("{bytes} B") } else { format!("{} KB", bytes >> 10) }
}

/// Measures all sizes.
pub(super) fn measure(m: &mut Measurement<'_, '_>, machine: &Machine) -> Result<(), Failure> {
    let registry = registry(2)?;
    for bytes in BYTES {
        let [short, long] = LENGTHS.map(|steps| Chain { bytes, steps });
        let workloads =
            [short.workload(&registry, &machine.hardware)?, long.workload(&registry, &machine.hardware)?];
        let name = format!("all-reduce of {} by bulk copies and flags, 2 ranks on the GPU", size(bytes));
        let run = |steps: u64| format!("run of {steps}: {name}");
        let difference = Difference {
            names: [run(LENGTHS[0]), run(LENGTHS[1]), name.clone()],
            params: [Value::Null, Value::Null, drawn(&short)],
            lengths: LENGTHS,
            unit: Unit::Microseconds,
            bar: None,
        };
        difference.measure(m, machine, &registry, &workloads)?;
    }
    Ok(())
}

fn drawn(chain: &Chain) -> Value {
    let mut params = point(PANEL, "bulk copies and flags", chain.bytes);
    params["lanes_a_rank"] = json!(chain.lanes());
    params["all_reduces"] = json!(LENGTHS);
    params
}

#[cfg(test)]
mod tests {
    use super::*;
    use mk_core::Session as _;
    use mk_sim::Simulator;

    /// The sum is worked out apart from the simulator, whose schedules vary with the seed.
    #[test]
    fn chains_are_proved_and_give_the_sum_of_both_ranks_doubled_by_every_further_step() {
        let registry = registry(2).unwrap();
        for bytes in [16, 4 << 10, 16 << 10] {
            for steps in [1, 2, 3, 10] {
                let workload = Chain { bytes, steps }.workload(&registry, &Hardware::h200()).unwrap();
                for seed in 0..4 {
                    let mut simulator = Simulator::builder(&registry).schedule_seed(seed).build();
                    for epoch in 0..3 {
                        let got = simulator.run(&workload.program, &workload.tensors).unwrap();
                        assert!(got == workload.want, "{bytes} bytes, {steps} steps, epoch {epoch}");
                    }
                }
            }
        }
    }

    #[test]
    fn chains_of_full_length_are_proved() {
        let registry = registry(2).unwrap();
        for bytes in BYTES {
            let chain = Chain { bytes, steps: LENGTHS[1] };
            assert_eq!(chain.lanes(), (bytes / PART_BYTES).max(1));
            let workload = chain.workload(&registry, &Hardware::h200()).unwrap();
            let out = workload.want.get(Rank(0), "out").unwrap().to_f32();
            assert!(out.iter().all(|x| x.is_finite()) && out.iter().any(|x| *x != 0.0));
        }
    }

    /// Without the credit, a rank that is an epoch ahead overwrites what the other has not read.
    #[test]
    fn the_credit_is_needed() {
        let registry = registry(2).unwrap();
        let mut program = Chain { bytes: 16, steps: 3 }.program(&registry).unwrap();
        let credits = program.tasks.iter_mut().flat_map(|t| &mut t.waits).filter(|w| w.lag() > 0);
        let dropped = credits.map(|w| *w = Default::default()).count();
        assert_eq!(dropped, 2);
        assert!(program.verify(&registry, &Hardware::h200()).is_err());
    }

    #[test]
    fn sizes_are_said_in_bytes_and_kilobytes() {
        assert_eq!([16, 256, 4 << 10, 64 << 10].map(size), ["16 B", "256 B", "4 KB", "64 KB"]);
    }
}
