//! The suite can fail: whatever is a little wrong with a handler, a frame or a session is found.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "wrong/handlers.rs"]
mod handlers;
#[path = "wrong/programs.rs"]
mod programs;
#[path = "wrong/sessions.rs"]
mod sessions;

use conformance::{Config, Network};
use handlers::{How as WrongHandler, WrongTransport, wrong};
use mk_core::{HandlerRef, Hardware, Program, Registry, RunError, Session};
use mk_nvlink::NvLink;
use mk_rdma::Rdma;
use mk_sim::{Checks, Delay, Faults, Simulator};
use programs::Frame;
use sessions::{How, Spoilt};

const COMPUTE: [&str; 6] = ["add", "cast", "copy", "gemm", "scale", "swiglu"];
/// Touches nothing, so there is nothing that it could touch wrongly.
const NOP: &str = "nop";
const COPIES: [&str; 4] = ["put", "get", "put_signal", "reduce_put"];

/// A registry like this one, in which one handler is wrong.
fn spoilt(like: &Registry, handler: &'static str, how: WrongHandler) -> Registry {
    let compute = |h: HandlerRef| if h.name() == handler { wrong(h, how) } else { h };
    let builder = Registry::builder()
        .handlers(mk_compute::handlers().into_iter().map(compute))
        .transport(WrongTransport { right: NvLink::new(), handler, how });
    let builder = match like.transports().count() {
        1 => builder,
        _ => builder.transport(WrongTransport { right: Rdma::unordered(), handler, how }),
    };
    builder.build(like.world()).unwrap()
}

/// No detector of the simulator's own helps.
fn blind(registry: &Registry, seed: u64) -> Simulator {
    Simulator::builder(registry).schedule_seed(seed).checks(Checks::none()).build()
}

fn check_handler(network: Network, handler: &'static str, how: WrongHandler) {
    let open = |registry: &Registry, _: &Hardware, seed: u64| -> Box<dyn Session> {
        Box::new(blind(&spoilt(registry, handler, how), seed))
    };
    let Err(found) = conformance::handler(Config::exact(), network, handler, &open) else {
        panic!("{handler} that is wrong ({how:?}) passes")
    };
    assert!(found.contains("elements are wrong"), "{handler}, {how:?}: {found}");
}

#[test]
fn a_wrong_compute_handler_is_caught() {
    for handler in COMPUTE {
        for how in WrongHandler::ALL {
            // An exponential has no lowest bit that is certain.
            if (handler, how) != ("swiglu", WrongHandler::LowBit) {
                check_handler(Network::Mapped, handler, how);
            }
        }
    }
}

#[test]
fn a_wrong_copy_is_caught() {
    for how in WrongHandler::ALL {
        for (nvlink, rdma) in [
            ("nvlink.put", "rdma.put"),
            ("nvlink.get", "rdma.get"),
            ("nvlink.put_signal", "rdma.put_signal"),
            ("nvlink.reduce_put", "rdma.reduce_put"),
        ] {
            check_handler(Network::Mapped, nvlink, how);
            check_handler(Network::Unordered, rdma, how);
        }
    }
}

#[test]
fn an_operator_with_a_wrong_handler_is_caught() {
    for (handler, how) in [
        ("gemm", WrongHandler::Sign),
        ("gemm", WrongHandler::LowBit),
        ("gemm", WrongHandler::DropsRow),
        ("gemm", WrongHandler::ReadsRowTooFar),
        ("nvlink.put_signal", WrongHandler::Sign),
        ("nvlink.put_signal", WrongHandler::DropsRow),
    ] {
        let open = |registry: &Registry, _: &Hardware, seed: u64| -> Box<dyn Session> {
            Box::new(blind(&spoilt(registry, handler, how), seed))
        };
        for result in [
            conformance::operator(Config::exact(), "all-gather-gemm", &open),
            conformance::operator_shapes(Config::exact(), "all-gather-gemm", &open),
        ] {
            assert!(result.unwrap_err().contains("elements are wrong"), "{handler}, {how:?}");
        }
    }
}

/// Bounds are no licence.
#[test]
fn rounding_has_a_bound() {
    for how in [WrongHandler::Sign, WrongHandler::DropsRow, WrongHandler::ReadsColumnTooFar] {
        for handler in COMPUTE {
            let open = |registry: &Registry, _: &Hardware, seed: u64| -> Box<dyn Session> {
                Box::new(blind(&spoilt(registry, handler, how), seed))
            };
            assert!(conformance::handler(Config::rounded(), Network::Mapped, handler, &open).is_err());
        }
    }
}

fn check_frame(network: Network, handler: &str, change: fn(&mut Program)) -> Result<(), String> {
    let open = |registry: &Registry, _: &Hardware, seed: u64| -> Box<dyn Session> {
        Box::new(Frame::new(registry, seed, change))
    };
    conformance::handler(Config::exact(), network, handler, &open)
}

#[test]
fn a_frame_that_does_not_wait_is_caught_by_every_handler() {
    for handler in COMPUTE.iter().chain(&[NOP]) {
        assert!(check_frame(Network::Mapped, handler, programs::never_waits).is_err(), "{handler}");
    }
    for (network, transport) in [(Network::Mapped, "nvlink"), (Network::Unordered, "rdma")] {
        for op in COPIES.iter().chain(&["signal", "wait"]) {
            let handler = format!("{transport}.{op}");
            assert!(check_frame(network, &handler, programs::never_waits).is_err(), "{handler}");
            assert!(check_frame(network, &handler, programs::waits_for_the_last_epoch).is_err(), "{handler}");
        }
    }
}

#[test]
fn a_frame_that_is_a_little_too_early_is_caught() {
    use programs::*;
    for (handler, change) in [
        ("gemm", waits_for_the_first_block_only as fn(&mut Program)),
        ("add", waits_for_the_first_block_only),
        ("gemm", stores_at_once),
        ("cast", stores_at_once),
        ("copy", waits_for_the_first_block_only),
        ("copy", stores_at_once),
        ("nop", posts_too_early),
        ("nop", stores_at_once),
        ("nop", nops_never_wait),
        ("nop", waits_for_the_last_epoch),
        ("nvlink.put_signal", waits_for_the_first_block_only),
        ("nvlink.put", posts_too_early),
        ("nvlink.put_signal", posts_too_early),
        ("nvlink.wait", waits_for_one_post),
    ] {
        let found = check_frame(Network::Mapped, handler, change);
        assert!(found.as_ref().is_err_and(|e| e.contains("elements are wrong")), "{handler}: {found:?}");
    }
}

/// So the frames above are caught for what is wrong with them.
#[test]
fn a_frame_that_is_right_passes() {
    assert_eq!(check_frame(Network::Mapped, "nvlink.get", |_| {}), Ok(()));
    assert_eq!(check_frame(Network::Mapped, "gemm", |_| {}), Ok(()));
}

/// A network whose transport breaks a promise.
fn check_network(handler: &str, faults: Faults) -> Result<(), String> {
    let open = |registry: &Registry, _: &Hardware, seed: u64| -> Box<dyn Session> {
        let sim = Simulator::builder(registry).schedule_seed(seed).checks(Checks::none());
        Box::new(sim.run_bound_us(100_000).faults(faults.clone()).build())
    };
    conformance::handler(Config::exact(), Network::Unordered, handler, &open)
}

#[test]
fn a_network_that_breaks_a_promise_is_caught() {
    let late = Delay { probability: 0.5, max_us: 50.0 };
    let overtaken = Faults { flag_overtakes_data: true, reorder: 0.5, delay: late, ..Faults::default() };
    for handler in ["rdma.put_signal", "rdma.reduce_put"] {
        let found = check_network(handler, overtaken.clone()).unwrap_err();
        assert!(found.contains("elements are wrong"), "{handler}: {found}");
    }
    for handler in ["rdma.put", "rdma.get", "rdma.put_signal", "rdma.reduce_put", "rdma.signal", "rdma.wait"]
    {
        let lost = Faults { lose_post: Some(2), ..Faults::default() };
        let found = check_network(handler, lost).unwrap_err();
        assert!(found.contains("waited 100000 us"), "{handler}: {found}");
    }
}

fn spoilt_session(how: How) -> impl Fn(&Registry, &Hardware, u64) -> Box<dyn Session> {
    move |registry, _, seed| Box::new(Spoilt::new(registry, seed, how))
}

#[test]
fn a_session_that_spoils_results_is_caught_by_every_handler_and_operator() {
    for how in [
        How::FlipsABit,
        How::LosesARow,
        How::RepeatsARow,
        How::SkipsARow,
        How::LosesATensor,
        How::GivesTooMuch,
        How::GivesLess,
        How::GivesTheLastRun,
    ] {
        let open = spoilt_session(how);
        for handler in COMPUTE.iter().chain(&[NOP]) {
            let result = conformance::handler(Config::exact(), Network::Mapped, handler, &open);
            assert!(result.is_err(), "{handler}, {how:?}");
        }
        for handler in COPIES.iter().chain(&["signal", "wait"]).map(|op| format!("nvlink.{op}")) {
            let result = conformance::handler(Config::exact(), Network::Mapped, &handler, &open);
            assert!(result.is_err(), "{handler}, {how:?}");
        }
        assert!(conformance::operator(Config::exact(), "all-gather-gemm", &open).is_err(), "{how:?}");
    }
}

#[test]
fn what_only_the_sessions_own_tests_see_is_caught() {
    let exact = Config::exact();
    let fails = |how, check: &dyn Fn(conformance::Open<'_>) -> Result<(), String>| {
        let open = spoilt_session(how);
        assert!(check(&open).is_err(), "{how:?} passes");
    };
    for how in [How::AcceptsAnyTensor, How::NeverRecovers, How::CallsInputAFault] {
        fails(how, &|open| conformance::refuses_wrong_tensors(exact, open));
    }
    for how in [How::AcceptsAnyProgram, How::NeverRecovers, How::CallsInputAFault] {
        fails(how, &|open| conformance::refuses_foreign_programs(exact, open));
    }
    for how in [How::RunsOneProgram, How::GivesTheLastRun, How::LosesARow] {
        fails(how, &|open| conformance::alternates(exact, open));
    }
    for how in [How::HidesNan, How::SpreadsNan] {
        fails(how, &|open| conformance::spreads_nan(exact, open));
    }
    fails(How::ChangesBitsByChance, &|open| conformance::gives_the_same_bits(exact, open));
}

#[test]
fn a_run_that_fails_says_why() {
    let open =
        |registry: &Registry, _: &Hardware, _: u64| -> Box<dyn Session> { Box::new(Busy(registry.clone())) };
    let found = conformance::handler(Config::exact(), Network::Mapped, "add", &open).unwrap_err();
    assert!(found.starts_with("add, seed 0: ") && found.contains("another run has not ended"), "{found}");
}

/// A session that never runs anything.
struct Busy(Registry);

impl Session for Busy {
    fn registry(&self) -> &Registry {
        &self.0
    }
    fn load(&mut self, _: &mk_core::Verified) -> Result<(), RunError> {
        Err(RunError::Busy)
    }
    fn run(&mut self, _: &mk_core::Verified, _: &mk_core::Bindings) -> Result<mk_core::Bindings, RunError> {
        Err(RunError::Busy)
    }
}

#[test]
fn a_handler_without_a_generator_or_a_test_is_named() {
    struct New;
    mk_core::device_args! {
        struct NewArgs { rank: mk_core::Rank }
    }
    impl mk_core::Handler for New {
        type Args = NewArgs;
        const NAME: &'static str = "softmax";
        const VERSION: u32 = 1;
        const STREAM: mk_core::Stream = mk_core::Stream::Compute;
        fn spec(&self, _: &NewArgs, _: &mk_core::Env<'_>) -> Result<mk_core::Spec, mk_core::ArgError> {
            Ok(mk_core::Spec::new(1))
        }
        fn model(&self, _: &NewArgs, _: mk_core::Step, _: &mut mk_core::Views<'_>) {}
    }
    let world = mk_core::World::local(2).unwrap();
    let registry = Registry::builder().handlers(mk_compute::handlers());
    let more = registry.handler(New).build(&world).unwrap();
    let found = conformance::covered(&more, &[&COMPUTE[..], &[NOP, "softmax"]].concat()).unwrap_err();
    assert!(found.contains("'softmax' has no generator"), "{found}");
    assert!(conformance::handler(Config::exact(), Network::Mapped, "softmax", &|_, _, _| panic!()).is_err());

    let registry = Registry::builder().handlers(mk_compute::handlers()).build(&world).unwrap();
    assert_eq!(conformance::covered(&registry, &[&COMPUTE[..], &[NOP]].concat()), Ok(()));
    let found = conformance::covered(&registry, &[&COMPUTE[..5], &[NOP]].concat()).unwrap_err();
    assert!(found.contains("'swiglu'") && found.contains("no test"), "{found}");
}
