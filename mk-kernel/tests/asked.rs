//! What an aligned conformance suite asks is what a GPU can run: every rectangle of every task, and every block of it, begins
//! and ends at a multiple of 16 bytes, as rows do; all ranks and lanes fit on one GPU; programs share nothing; and the kernel
//! has their handlers.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use conformance::{Check, Config, Network};
use mk_core::{Access, Bindings, Hardware, Registry, RunError, Session, Verified};
use mk_kernel::Source;
use mk_kernel::abi::LAUNCH_RANKS;
use mk_sim::Simulator;
use std::cell::Cell;

/// Bytes.
const ALIGNED: u64 = 16;
/// SMs of an H200.
const LANES: u32 = 132;

thread_local! {
    /// Programs, and those of them that a GPU cannot run.
    static SEEN: Cell<[u32; 2]> = const { Cell::new([0, 0]) };
}

/// A simulator that looks at every program.
struct Watched(Simulator);

impl Session for Watched {
    fn registry(&self) -> &Registry {
        self.0.registry()
    }

    fn load(&mut self, program: &Verified) -> Result<(), RunError> {
        self.0.load(program)
    }

    fn run(&mut self, program: &Verified, bindings: &Bindings) -> Result<Bindings, RunError> {
        let [all, wrong] = SEEN.get();
        let fits = aligned(program) && fits(program);
        SEEN.set([all + 1, wrong + u32::from(!fits)]);
        self.0.run(program, bindings)
    }
}

fn fits(verified: &Verified) -> bool {
    let p = verified.program();
    let lanes: u32 = p.lanes.iter().map(|&l| u32::from(l)).sum();
    let shared = p.regions.iter().any(|r| r.shared) || p.shared_signals().next().is_some();
    let known = Source::of(verified.registry()).unwrap().check(verified).is_ok();
    p.ranks as usize <= LAUNCH_RANKS && lanes <= LANES && !shared && known
}

fn aligned(verified: &Verified) -> bool {
    let p = verified.program();
    let whole = |access: &Access| {
        let region = &p.regions[access.region.index()];
        let [_, pitch] = region.extent(access.rank);
        move |cols: [u64; 2]| {
            cols.iter().chain([&pitch]).all(|c| (c * region.dtype.bytes()).is_multiple_of(ALIGNED))
        }
    };
    p.streams.iter().flat_map(|s| s.tasks().map(move |id| (s.rank, id))).all(|(rank, id)| {
        let task = p.task(id);
        let opcode = verified.opcodes()[task.op.index()];
        let spec = p.spec(verified.registry(), opcode, rank, task).unwrap();
        spec.accesses.iter().filter(|a| !a.rect.is_empty()).all(|access| {
            let blocks = (0..spec.blocks).map(|b| access.block_rect(b)).filter(|r| !r.is_empty());
            [access.rect].into_iter().chain(blocks).all(|r| whole(access)([r.col, r.cols]))
        })
    })
}

/// Programs of all checks of this configuration, and how many of them a GPU cannot run.
fn programs(config: Config) -> [u32; 2] {
    SEEN.set([0, 0]);
    let open = |registry: &Registry, _: &Hardware, seed: u64| -> Box<dyn Session> {
        Box::new(Watched(Simulator::builder(registry).schedule_seed(seed).build()))
    };
    // All shapes of an operator have whole rows, and there are many of them.
    for check in Check::all(config).filter(|c| !c.name.starts_with("regress")) {
        check.run(config, &open).unwrap_or_else(|e| panic!("{}: {e}", check.name));
    }
    SEEN.get()
}

#[test]
fn a_gpu_can_run_what_an_aligned_suite_asks() {
    for config in [Config::exact(), Config::rounded()] {
        let [all, wrong] = programs(config.aligned().networks(&[Network::Mapped]));
        assert!(all > 1000 && wrong == 0, "{wrong} of {all}");
    }
}

/// So the test above would see it.
#[test]
fn any_other_suite_asks_for_more() {
    let [all, wrong] = programs(Config::exact().networks(&[Network::Mapped]));
    assert!(wrong > all / 2, "{wrong} of {all}");
}
