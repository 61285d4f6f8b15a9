//! A transport of your own: one file, and one `transport` call.
//!
//! `Courier` connects servers by a slow network that loses the order of what it carries. It says which pairs it
//! serves, with which capabilities, at what cost, and names two comm handlers. Planners find it by what it can do;
//! the verifier and the simulator take the rest from the handlers' specs. Here a ring passes a matrix on, through a
//! network that delays, reorders and duplicates.

use mk_core::*;
use mk_sim::{Faults, Simulator};
use std::sync::Arc;

/// Between servers; between the ranks of one server it does nothing.
struct Courier;

impl Transport for Courier {
    fn name(&self) -> &'static str {
        "courier"
    }

    /// What this process finds; all ranks together can do what each of them can.
    fn probe(&self) -> Result<Caps, Error> {
        Ok(Caps::PUT | Caps::SIGNAL)
    }

    fn caps(&self, topology: &Topology, from: Rank, to: Rank) -> Caps {
        let apart = topology.node_of(from) != topology.node_of(to);
        if apart { Caps::PUT | Caps::SIGNAL } else { Caps::empty() }
    }

    /// 30 us one way, 3 GB/s for each server in each direction, no order.
    fn link(&self, topology: &Topology, _: &Hardware, from: Rank, to: Rank) -> LinkModel {
        let port = |id| Port { id, gb_per_s: 3.0 };
        LinkModel {
            latency_ns: 30_000.0,
            egress: port(2 * u32::from(topology.node_of(from).0)),
            ingress: port(2 * u32::from(topology.node_of(to).0) + 1),
            ordered: false,
        }
    }

    fn handlers(&self) -> Vec<(CommOp, HandlerRef)> {
        vec![(CommOp::PutSignal, Arc::new(Deliver)), (CommOp::Signal, Arc::new(Ring))]
    }
}

/// Carries a rectangle, then raises a word: `copy_spec` and `copy_model` say all of it.
struct Deliver;

impl Handler for Deliver {
    type Args = CopyArgs;
    const NAME: &'static str = "courier.put_signal";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Comm;
    /// The transport raises the words, after the data; so they are `Set` words.
    const CARRIER: Carrier = Carrier::Transport;

    fn spec(&self, a: &CopyArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        copy_spec(a, env, Direction::Put)
    }

    fn model(&self, _: &CopyArgs, step: Step, views: &mut Views<'_>) {
        copy_model(Direction::Put, step, views);
    }
}

/// Raises a word and carries nothing.
struct Ring;

impl Handler for Ring {
    type Args = SyncArgs;
    const NAME: &'static str = "courier.signal";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Comm;
    const CARRIER: Carrier = Carrier::Transport;

    fn spec(&self, a: &SyncArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        sync_spec(a, env)
    }

    fn model(&self, _: &SyncArgs, _: Step, _: &mut Views<'_>) {}
}

const SIDE: u64 = 32;

/// Each of `n` servers passes its matrix to the next, which doubles it.
fn ring(registry: &Registry) -> Result<Program, Error> {
    let mut b = ProgramBuilder::new("ring", registry);
    let shape = || Shape::Uniform([SIDE, SIDE]);
    let x = b.region(Region::input("x", DType::F32, shape()))?;
    let inbox = b.region(Region::heap("inbox", DType::F32, shape()))?;
    let y = b.region(Region::output("y", DType::F32, shape()))?;
    let n = registry.world().size();
    let scale = b.op(mk_compute::Scale::NAME)?;
    let labels = [b.label("pass on"), b.label("double"), b.label("give credit")];
    let lane = Queue::Lane(Lane(0));
    let (rows, cols) = (SIDE as u32, SIDE as u32);
    let (mut puts, mut doubles) = (Vec::new(), Vec::new());
    for r in 0..n {
        let (me, next) = (Rank(r as u16), Rank(((r + 1) % n) as u16));
        // A planner asks for what it needs; it does not know who offers it.
        let put = b.op(registry.route(me, next, Caps::PUT | Caps::SIGNAL)?.handler(CommOp::PutSignal)?)?;
        let zero = CopyArgs {
            src: x,
            dst: inbox,
            peer: next,
            units: 1,
            src_row: 0,
            src_col: 0,
            dst_row: 0,
            dst_col: 0,
            rows,
            cols,
        };
        puts.push(b.task(me, lane, put, labels[0], &zero)?);
        let args = mk_compute::ScaleArgs {
            src: inbox,
            dst: y,
            factor: 2.0,
            rows,
            cols,
            src_row: 0,
            src_col: 0,
            dst_row: 0,
            dst_col: 0,
        };
        doubles.push(b.task(me, lane, scale, labels[1], &args)?);
    }
    for r in 0..n {
        let before = (r + n - 1) % n;
        let (me, from) = (Rank(r as u16), Rank(before as u16));
        b.edge(&[puts[before as usize]], doubles[r as usize])?;
        // The credit goes back through the network, too: a signal task raises it when the matrix has been read.
        let signal = b.op(registry.route(me, from, Caps::SIGNAL)?.handler(CommOp::Signal)?)?;
        let credit = b.task(me, Queue::Lane(Lane(1)), signal, labels[2], &SyncArgs { peer: from })?;
        b.edge(&[doubles[r as usize]], credit)?;
        b.credit(&[credit], puts[before as usize])?;
    }
    b.finish()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const SERVERS: u64 = 3;
    let world = World::of(Topology::uniform(SERVERS, SERVERS, 1)?);
    let registry = Registry::builder().transport(Courier).handlers(mk_compute::handlers()).build(&world)?;
    let program = ring(&registry)?.verify(&registry, &Hardware::h200())?;
    println!("a ring of {SERVERS} servers over '{}': proved", registry.transports().next().unwrap_or("?"));

    let faults =
        Faults::from_toml("reorder = 0.5\nduplicate = 0.5\n[delay]\nprobability = 0.5\nmax_us = 200.0\n")?;
    for seed in 1..=5 {
        let mut gpus = Simulator::builder(&registry).schedule_seed(seed).faults(faults.clone()).build();
        for epoch in 0..3 {
            let value = |r: u16| f32::from(r) + 10.0 * epoch as f32;
            let mut bindings = Bindings::new();
            for r in world.topology.ranks() {
                let x = vec![value(r.0); (SIDE * SIDE) as usize];
                bindings.set(r, "x", Tensor::from_f32(DType::F32, SIDE, SIDE, &x));
            }
            let out = gpus.run(&program, &bindings)?;
            for r in world.topology.ranks() {
                let from = (r.0 + SERVERS as u16 - 1) % SERVERS as u16;
                let y = out.get(r, "y").ok_or("every server has an output")?.to_f32();
                if y.iter().any(|y| *y != 2.0 * value(from)) {
                    return Err(format!("{r} should hold twice what rank {from} sent").into());
                }
            }
        }
        println!(
            "seed {seed}: three epochs, all right, {:.0} us the last",
            gpus.report().time_ns as f64 / 1000.0
        );
    }
    Ok(())
}
