//! Find a race: a mailbox that is filled again before it has been read.
//!
//! Rank 0 (a GPU) sends a matrix into an inbox on rank 1, which doubles it. Rank 1 waits for the matrix; but rank 0 does
//! not wait until the last one has been read. One run (an *epoch*) alone is always right. When the next one follows at once,
//! the result depends on who is faster: a race, which passes many tests before it fails.

use mk_compute::{Scale, ScaleArgs};
use mk_core::*;
use mk_sim::{Checks, Simulator, SimulatorBuilder};

const SIDE: u32 = 304;
const SEEDS: std::ops::RangeInclusive<u64> = 1..=100;
const EPOCHS: usize = 2;

/// Rank 0 sends `x` to rank 1's `inbox`, rank 1 writes twice of it to `y`; with or without a credit.
fn program(registry: &Registry, credit: bool) -> Result<Program, Error> {
    let mut b = ProgramBuilder::new("send, then double", registry);
    let side = u64::from(SIDE);
    let on = |rank| Shape::PerRank((0..2).map(|r| if r == rank { [side, side] } else { [0, 0] }).collect());
    let x = b.region(Region::input("x", DType::F32, on(0)))?;
    let inbox = b.region(Region::heap("inbox", DType::F32, Shape::Uniform([side, side])))?;
    let y = b.region(Region::output("y", DType::F32, on(1)))?;

    let (from, to, lane) = (Rank(0), Rank(1), Queue::Lane(Lane(0)));
    let put = registry.route(from, to, Caps::PUT | Caps::SIGNAL)?.handler(CommOp::PutSignal)?;
    let (put, scale) = (b.op(put)?, b.op(Scale::NAME)?);
    let (rows, cols) = (SIDE, SIDE);
    let [src_row, src_col, dst_row, dst_col] = [0; 4];
    #[rustfmt::skip] // `units: 13`: it is sent in slices
    let copy = CopyArgs { src: x, dst: inbox, peer: to, units: 13, src_row, src_col, dst_row, dst_col, rows, cols };
    #[rustfmt::skip]
    let twice = ScaleArgs { src: inbox, dst: y, factor: 2.0, rows, cols, src_row, src_col, dst_row, dst_col };
    let names = ["send", "double"].map(|name| b.label(name));
    let send = b.task(from, lane, put, names[0], &copy)?;
    let double = b.task(to, lane, scale, names[1], &twice)?;

    b.edge(&[send], double)?; // what was sent is there before it is read
    if credit {
        b.credit(&[double], send)?; // what was read is overwritten only then, by the send of the next epoch
    }
    b.finish()
}

/// What rank 0 sends: 1 everywhere in the first epoch, 2 in the second.
fn tensors() -> Vec<Bindings> {
    let of = |epoch: usize| {
        let x = vec![epoch as f32; (SIDE * SIDE) as usize];
        let mut bindings = Bindings::new();
        bindings.set(Rank(0), "x", Tensor::from_f32(DType::F32, SIDE.into(), SIDE.into(), &x));
        bindings
    };
    (1..=EPOCHS).map(of).collect()
}

/// How many elements of rank 1's results are not twice what was sent.
fn wrong(results: &[Bindings]) -> usize {
    let of = |(i, out): (usize, &Bindings)| {
        let y = out.get(Rank(1), "y").map(Tensor::to_f32).unwrap_or_default();
        let right = y.iter().filter(|v| **v == 2.0 * (i + 1) as f32).count();
        (SIDE * SIDE) as usize - right
    };
    results.iter().enumerate().map(of).sum()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let world = World::local(2)?;
    let registry = Registry::builder()
        .transport(mk_nvlink::NvLink::new())
        .handlers(mk_compute::handlers())
        .build(&world)?;
    let hardware = Hardware::h200();
    let simulator = |seed| -> SimulatorBuilder { Simulator::builder(&registry).schedule_seed(seed) };
    let broken = program(&registry, false)?;

    println!("1. Nothing has run yet, and the verifier says:\n");
    let findings = broken.findings(&registry, &hardware)?;
    let finding = findings.first().ok_or("a race was proved to be none")?;
    println!("     {}", finding.to_string().replace(" both touch", "\n     both touch"));
    println!("     what to do: {}", finding.hint());
    println!(
        "
   Two tasks, by name; the memory in which they meet: all of 'inbox' on rank 1; and when. Rank 0 may be a run (an
   epoch) ahead: it sends the second matrix while rank 1 still reads the first. Nothing holds it back. What would, is
   a credit: a signal in the other direction, that says \"I have read it, you may overwrite it\".
"
    );

    println!("2. Would a test have found it? In 100 orders of events, without any detector:\n");
    let mut failed = Vec::new();
    for seed in SEEDS {
        let blind = simulator(seed).checks(Checks::none());
        let alone = blind.clone().build().run_unproved(&broken, &tensors()[..1])?;
        if wrong(&alone) > 0 {
            return Err(format!("one epoch alone is wrong, seed {seed}").into());
        }
        let both = blind.build().run_unproved(&broken, &tensors())?;
        failed.extend(Some((seed, wrong(&both))).filter(|f| f.1 > 0));
    }
    let (seed, elements) = *failed.first().ok_or("no order of events shows the race")?;
    println!("     one epoch alone: right in all");
    println!("     two, one right after the other: right in {}", SEEDS.count() - failed.len());
    println!("     wrong in {}; in the order of seed {seed}, in {elements} elements\n", failed.len());

    println!("3. The simulator's detector does not need the bad luck. Of the same orders:\n");
    let mut found = Vec::new();
    for seed in SEEDS {
        found.extend(simulator(seed).build().run_unproved(&broken, &tensors()).err());
    }
    println!("     it finds the race in {}, also where the result is right", found.len());
    let race = found.first().ok_or("the detector found nothing")?.to_string();
    println!("     {}\n", race.replace(" and send", "\n     and send"));

    println!("4. With the credit:\n");
    let program = program(&registry, true)?.verify(&registry, &hardware)?;
    println!("     proved: no send can overwrite what is still to be read, in any order of events");
    for seed in SEEDS {
        let results = simulator(seed).build().run_epochs(&program, &tensors())?;
        if wrong(&results) > 0 {
            return Err(format!("a proved program is wrong, seed {seed}").into());
        }
    }
    println!("     all 100 orders of events give the right result");
    Ok(())
}
