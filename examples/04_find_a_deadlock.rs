//! Find a deadlock: two GPUs swap matrices, and each waits for the other to begin.
//!
//! Each rank (GPU) has a stream of communication tasks, done in order: *send* its matrix to the other rank, and *receive*,
//! which only waits until the other's matrix is there. Which of the two comes first? One order works, the other never
//! ends. The verifier says which, before anything runs.

use mk_compute::{Scale, ScaleArgs};
use mk_core::*;
use mk_sim::Simulator;

const SIDE: u32 = 64;
const RANKS: [Rank; 2] = [Rank(0), Rank(1)];

/// Both ranks send `x` to each other's `inbox`, and write twice what arrived to `y`.
fn swap(registry: &Registry, receive_first: bool) -> Result<Program, Error> {
    let mut b = ProgramBuilder::new("swap", registry);
    let shape = || Shape::Uniform([SIDE.into(), SIDE.into()]);
    let x = b.region(Region::input("x", DType::F32, shape()))?;
    let inbox = b.region(Region::heap("inbox", DType::F32, shape()))?;
    let y = b.region(Region::output("y", DType::F32, shape()))?;
    // Signals are counters, on every rank: a task *posts* to one, which raises it, and another *waits* until it is raised.
    let arrived = b.signal("arrived", SignalKind::Add, 1)?;
    let received = b.signal("received", SignalKind::Add, 1)?;
    let names = ["send", "receive", "double"].map(|name| b.label(name));
    let lane = Queue::Lane(Lane(0));

    let (mut sends, mut doubles) = (Vec::new(), Vec::new());
    for (me, peer) in [(RANKS[0], RANKS[1]), (RANKS[1], RANKS[0])] {
        let nvlink = registry.route(me, peer, Caps::PUT | Caps::SIGNAL)?;
        let [put, wait] = [nvlink.handler(CommOp::PutSignal)?, nvlink.handler(CommOp::Wait)?];
        let (put, wait, scale) = (b.op(put)?, b.op(wait)?, b.op(Scale::NAME)?);
        let (rows, cols) = (SIDE, SIDE);
        let [src_row, src_col, dst_row, dst_col] = [0; 4];
        #[rustfmt::skip]
        let copy = CopyArgs { src: x, dst: inbox, peer, units: 1, src_row, src_col, dst_row, dst_col, rows, cols };
        #[rustfmt::skip]
        let twice = ScaleArgs { src: inbox, dst: y, factor: 2.0, rows, cols, src_row, src_col, dst_row, dst_col };

        // A stream does its tasks in the order in which they are added to it.
        let (send, receive);
        if receive_first {
            receive = b.task(me, lane, wait, names[1], &SyncArgs { peer: me })?;
            send = b.task(me, lane, put, names[0], &copy)?;
        } else {
            send = b.task(me, lane, put, names[0], &copy)?;
            receive = b.task(me, lane, wait, names[1], &SyncArgs { peer: me })?;
        }
        let double = b.task(me, lane, scale, names[2], &twice)?;
        b.post(send, PostTo::done(peer, arrived, 0))?;
        b.wait(receive, WaitFor::all(arrived, 0))?;
        b.post(receive, PostTo::done(me, received, 0))?;
        b.wait(double, WaitFor::all(received, 0))?;
        sends.push(send);
        doubles.push(double);
    }
    // In the next run, a send waits until what it overwrites has been read: lesson 05 is about this.
    b.credit(&[doubles[1]], sends[0])?;
    b.credit(&[doubles[0]], sends[1])?;
    b.finish()
}

/// 1 everywhere on rank 0, 2 on rank 1.
fn tensors() -> Bindings {
    let mut bindings = Bindings::new();
    for (rank, value) in RANKS.into_iter().zip([1.0, 2.0]) {
        let x = Tensor::from_f32(DType::F32, SIDE.into(), SIDE.into(), &[value; (SIDE * SIDE) as usize]);
        bindings.set(rank, "x", x);
    }
    bindings
}

/// A chain of tasks that wait, a link at a time.
fn print_chain(chain: &str) {
    chain.split("; ").for_each(|link| println!("     {}", link.replace(", which ", ",\n       which ")));
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let world = World::local(2)?;
    let registry = Registry::builder()
        .transport(mk_nvlink::NvLink::new())
        .handlers(mk_compute::handlers())
        .build(&world)?;
    let hardware = Hardware::h200();

    println!("1. Both ranks receive first, then send. Nothing has run yet, and the verifier says:\n");
    let broken = swap(&registry, true)?;
    let findings = broken.findings(&registry, &hardware)?;
    let finding = findings.first().ok_or("a deadlock was proved to be none")?;
    print_chain(&finding.detail);
    println!("     what to do: {}", finding.hint());
    println!(
        "
   Line by line. A task is shown by its name and, in brackets, who does it: rank, lane, its place in the stream.
     - \"double\" waits for the signal \"received\", which \"receive\" raises. It only suffers: it is not the cause.
     - \"receive\" of rank 0 waits for \"arrived\". (0 of 1): it was raised 0 times, and 1 is needed. The \"send\" of
       rank 1 raises it; but that stands behind the \"receive\" of rank 1, in a stream that is done in order.
     - \"receive\" of rank 1 waits for the \"send\" of rank 0, which stands behind the \"receive\" of rank 0.
   The last line leads back to the second: a circle, in which nobody can ever go on.
"
    );

    println!("2. What if it ran all the same? `run_unproved` tries. The simulator stops, and says:\n");
    let run = Simulator::builder(&registry).build().run_unproved(&broken, &[tensors()]);
    let fault = run.err().ok_or("a deadlock ended")?.to_string();
    print_chain(&fault);
    println!(
        "\n   The same circle, now seen from inside. Most systems can only say that something took too long.\n"
    );

    println!("3. The hint: swap tasks in a stream. Send first, then receive:\n");
    let program = swap(&registry, false)?.verify(&registry, &hardware)?;
    println!("     proved: each of the {} waits is met, in every order of events", program.proof().waits);
    let out = Simulator::builder(&registry).build().run(&program, &tensors())?;
    for (rank, want) in RANKS.into_iter().zip([4.0, 2.0]) {
        let y = out.get(rank, "y").ok_or("every rank has an output")?.to_f32();
        if y.iter().any(|v| *v != want) {
            return Err(format!("{rank} should hold {want} everywhere").into());
        }
        println!("     {rank} holds twice what the other sent: {want}");
    }
    Ok(())
}
