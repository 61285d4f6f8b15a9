//! A handler and a transport that are known nowhere but here: the simulator knows none by name.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "common/ring.rs"]
mod ring;

use mk_core::*;
use mk_sim::{Faults, Mode as Simulate, Simulator};
use ring::{messages, shift, shifted};
use std::sync::Arc;

/// Triples a rectangle in place of `scale`, with the same arguments.
struct Triple;

impl Handler for Triple {
    type Args = mk_compute::ScaleArgs;
    const NAME: &'static str = "toy.triple";
    const VERSION: u32 = 7;
    const STREAM: Stream = Stream::Compute;
    fn spec(&self, a: &Self::Args, env: &Env<'_>) -> Result<Spec, ArgError> {
        let mut spec = Spec::new(1);
        let access = |region, row, mode, at| Access {
            region,
            rank: env.rank,
            rect: Rect::new(row, 0, a.rows.into(), a.cols.into()),
            mode,
            at,
            walk: Walk::Whole,
            proxy: Proxy::Generic,
        };
        spec.touch(env, access(a.src, a.src_row, Mode::Read, Phase::Load))?;
        spec.touch(env, access(a.dst, a.dst_row, Mode::Write, Phase::Store))?;
        Ok(spec)
    }
    fn model(&self, _: &Self::Args, _: Step, views: &mut Views<'_>) {
        let tripled: Vec<f32> = views.load_f32(0).iter().map(|x| 3.0 * x).collect();
        views.store_f32(1, &tripled);
    }
}

/// Sends by pigeon.
struct Send;

impl Handler for Send {
    type Args = CopyArgs;
    const NAME: &'static str = "pigeon.send";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Comm;
    const CARRIER: Carrier = Carrier::Transport;
    fn spec(&self, a: &CopyArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        copy_spec(a, env, Direction::Put)
    }
    fn model(&self, _: &CopyArgs, step: Step, views: &mut Views<'_>) {
        copy_model(Direction::Put, step, views);
    }
}

/// Sends a pigeon without a letter.
struct Tell;

impl Handler for Tell {
    type Args = SyncArgs;
    const NAME: &'static str = "pigeon.tell";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Comm;
    const CARRIER: Carrier = Carrier::Transport;
    fn spec(&self, a: &SyncArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        sync_spec(a, env)
    }
    fn model(&self, _: &SyncArgs, _: Step, _: &mut Views<'_>) {}
}

/// Pigeons: slow, and in no order. All of them leave by one window.
struct Pigeons {
    latency_ns: f64,
}

impl Transport for Pigeons {
    fn name(&self) -> &'static str {
        "pigeons"
    }
    fn probe(&self) -> Result<Caps, Error> {
        Ok(Caps::PUT | Caps::SIGNAL)
    }
    fn caps(&self, _: &Topology, _: Rank, _: Rank) -> Caps {
        Caps::PUT | Caps::SIGNAL
    }
    fn link(&self, _: &Topology, _: &Hardware, _: Rank, _: Rank) -> LinkModel {
        let window = Port { id: 0, gb_per_s: 0.001 };
        LinkModel { latency_ns: self.latency_ns, egress: window, ingress: window, ordered: false }
    }
    fn handlers(&self) -> Vec<(CommOp, HandlerRef)> {
        vec![(CommOp::PutSignal, Arc::new(Send)), (CommOp::Signal, Arc::new(Tell))]
    }
}

const NAMES: [&str; 3] = ["pigeon.send", "pigeon.tell", "toy.triple"];

fn registry(ranks: u64, latency_ns: f64) -> Registry {
    let world = World::local(ranks).unwrap();
    Registry::builder().transport(Pigeons { latency_ns }).handler(Triple).build(&world).unwrap()
}

#[test]
fn handlers_and_transports_of_a_test_run_as_well_as_any() {
    let registry = registry(3, 1e6);
    let program = shift(&registry, 3, NAMES).verify(&registry, &Hardware::h200()).unwrap();
    let inputs: Vec<Bindings> = (0..3).map(|e| messages(3, 3, e)).collect();
    for seed in 0..20 {
        let faults = Faults::from_toml("reorder = 0.5\nduplicate = 0.5").unwrap();
        let mut sim = Simulator::builder(&registry).schedule_seed(seed).faults(faults).build();
        let out = sim.run_epochs(&program, &inputs).unwrap();
        for (e, out) in out.iter().enumerate() {
            assert_eq!(*out, shifted(3, 3, e as u64, 3.0), "seed {seed}, epoch {e}");
        }
    }
}

#[test]
fn its_link_says_what_it_costs() {
    let time = |latency_ns| {
        let registry = registry(2, latency_ns);
        let program = shift(&registry, 3, NAMES).verify(&registry, &Hardware::h200()).unwrap();
        let mut sim = Simulator::builder(&registry).mode(Simulate::Timing).build();
        sim.run(&program, &Bindings::new()).unwrap();
        let links = sim.report().links.clone();
        assert!(
            links.iter().all(|l| l.transport == "pigeons" && l.bytes == 3 * 64 && l.signals == 4),
            "{links:?}"
        );
        // Both ranks' letters pass one window: 6 x 64 bytes at 1 byte/us.
        assert_eq!(links.iter().map(|l| l.busy_ns).sum::<u64>(), 6 * 64 * 1000);
        sim.report().time_ns
    };
    // On a link without order: data, its acknowledgement, its signal, and between two signals to one word an
    // acknowledgement. In the end the credit. So it is 1 + 1 + 1 + 2 x 2 + 1 latencies, less what the window hides.
    let (short, long) = (time(1e3), time(1e7));
    let latencies = (long - short) as f64 / 1e7;
    assert!((7.9..8.1).contains(&latencies), "{latencies} latencies");
    assert!(short >= 6 * 64 * 1000, "{short} ns");
}
