//! Handlers that misbehave: the session says so, and the process goes on.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use mk_core::*;
use mk_sim::Simulator;
use std::sync::atomic::{AtomicU32, Ordering};

device_args! {
    /// Arguments of [`Rogue`].
    pub struct RogueArgs {
        /// Region that is read.
        pub src: RegionId,
        /// Region that is written.
        pub dst: RegionId,
    }
}

/// What a [`Rogue`] does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Does {
    Copies,
    PanicsInModel,
    PanicsInSpecLater,
    FailsInSpecLater,
    ClearsAView,
    ResizesAView,
    AsksForAnotherView,
    StoresTooFew,
}

struct Rogue(Does, AtomicU32);

impl Handler for Rogue {
    type Args = RogueArgs;
    const NAME: &'static str = "rogue";
    const VERSION: u32 = 1;
    const STREAM: Stream = Stream::Compute;

    fn spec(&self, a: &RogueArgs, env: &Env<'_>) -> Result<Spec, ArgError> {
        // The builder, the verifier and the simulator ask once each before anything runs.
        let asked = self.1.fetch_add(1, Ordering::Relaxed);
        match self.0 {
            Does::PanicsInSpecLater if asked >= 3 => panic!("no more specs"),
            Does::FailsInSpecLater if asked >= 3 => return Err(ArgError::new("changed its mind")),
            _ => {}
        }
        let mut spec = Spec::new(1);
        for (region, mode, at) in [(a.src, Mode::Read, Phase::Load), (a.dst, Mode::Write, Phase::Store)] {
            let rect = env.region(region)?.whole(env.rank);
            let (rank, walk, proxy) = (env.rank, Walk::Whole, Proxy::Generic);
            spec.touch(env, Access { region, rank, rect, mode, at, walk, proxy })?;
        }
        Ok(spec)
    }

    fn model(&self, _: &RogueArgs, _: Step, views: &mut Views<'_>) {
        match self.0 {
            Does::PanicsInModel => panic!("on purpose"),
            Does::ClearsAView => views.get_mut(1).bytes.clear(),
            Does::ResizesAView => views.get_mut(1).rows += 1,
            Does::AsksForAnotherView => drop(views.load_f32(7)),
            Does::StoresTooFew => views.store_f32(1, &[1.0; 3]),
            _ => views.copy(0, 1),
        }
    }
}

fn run(does: Does) -> Result<Bindings, RunError> {
    let world = World::local(1).unwrap();
    let registry = Registry::builder().handler(Rogue(does, AtomicU32::new(0))).build(&world).unwrap();
    let mut b = ProgramBuilder::new("rogue", &registry);
    let square = || Shape::Uniform([4, 4]);
    let src = b.region(Region::input("x", DType::F32, square())).unwrap();
    let dst = b.region(Region::output("y", DType::F32, square())).unwrap();
    let (op, label) = (b.op("rogue").unwrap(), b.label("task"));
    b.task(Rank(0), Queue::Lane(Lane(0)), op, label, &RogueArgs { src, dst }).unwrap();
    let program = b.finish().unwrap().verify(&registry, &Hardware::h200()).unwrap();
    let mut bindings = Bindings::new();
    bindings.set(Rank(0), "x", Tensor::from_f32(DType::F32, 4, 4, &[1.5; 16]));
    Simulator::builder(&registry).build().run(&program, &bindings)
}

#[test]
fn a_handler_that_misbehaves_is_named() {
    let out = run(Does::Copies).unwrap();
    assert_eq!(out.get(Rank(0), "y").unwrap().to_f32(), [1.5; 16]);
    for (does, words) in [
        (Does::PanicsInModel, "model panicked: on purpose"),
        (Does::PanicsInSpecLater, "spec panicked: no more specs"),
        (Does::FailsInSpecLater, "changed its mind"),
        (Does::ClearsAView, "view 1 with another type or size"),
        (Does::ResizesAView, "view 1 with another type or size"),
        (Does::AsksForAnotherView, "model panicked"),
        (Does::StoresTooFew, "view 1 takes one value for each of its elements"),
    ] {
        let error = run(does).unwrap_err().to_string();
        assert!(error.contains("rogue") && error.contains(words), "{does:?}: {error}");
    }
}

#[test]
fn a_region_that_no_machine_can_hold_is_refused_at_load() {
    let world = World::local(1).unwrap();
    let registry = Registry::builder().build(&world).unwrap();
    let mut b = ProgramBuilder::new("large", &registry);
    b.region(Region::heap("huge", DType::F32, Shape::Uniform([1 << 20, 1 << 24]))).unwrap();
    let program = b.finish().unwrap().verify(&registry, &Hardware::h200()).unwrap();
    let mut sim = Simulator::builder(&registry).build();
    let error = sim.load(&program).unwrap_err().to_string();
    assert!(error.contains("'huge'") && error.contains("70368744177664 bytes"), "{error}");
    let mut timing = Simulator::builder(&registry).mode(mk_sim::Mode::Timing).build();
    timing.run(&program, &Bindings::new()).unwrap();
}
