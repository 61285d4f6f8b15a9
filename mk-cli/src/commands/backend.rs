//! What runs a program: the simulator, or the GPU of this machine.

use crate::args::{Backend, ExecutionArgs};
use crate::error::{Exit, Failure};
use crate::gpu::FirstGpu;
use mk_core::{Error, Explanation, Topology};
use mk_kernel::abi::LAUNCH_RANKS;

/// What runs a program.
pub(crate) enum Runner {
    Simulator,
    Gpu(Box<FirstGpu>),
}

/// What was chosen; and why, unless it was asked for.
pub(crate) struct Chosen {
    pub(crate) runner: Runner,
    pub(crate) why: Option<String>,
}

impl Chosen {
    /// For people: what was chosen, and why.
    pub(crate) fn note(&self) -> Option<String> {
        let name = match &self.runner {
            Runner::Simulator => "simulator".into(),
            Runner::Gpu(gpu) => gpu.name(),
        };
        self.why.as_ref().map(|why| format!("backend: {name} ({why})"))
    }
}

/// Refuses options of the simulator where a GPU is asked for.
pub(crate) fn check(args: &ExecutionArgs) -> Result<(), Failure> {
    let Some((option, why)) = simulators(args).filter(|_| args.backend == Backend::Gpu) else {
        return Ok(());
    };
    let says = Explanation {
        kind: "usage",
        message: format!("{option} cannot be used with --backend gpu: {why}"),
        given: option.into(),
        allowed: format!("--backend sim, or without {option}"),
        hint: "see `mk run ag-gemm --help`".into(),
    };
    Err(Failure::new(Exit::Input, says))
}

/// The first option that only the simulator has, and why a GPU does not have it.
fn simulators(args: &ExecutionArgs) -> Option<(&'static str, &'static str)> {
    let options = [
        ("--timing", args.timing, "a GPU runs a program on data, only the simulator without"),
        ("--faults", args.faults.is_some(), "faults are the simulator's"),
        ("--schedule-seed", args.schedule_seed.is_some(), "the order of events on a GPU is its own"),
    ];
    options.into_iter().find(|(_, given, _)| *given).map(|(option, _, why)| (option, why))
}

/// Looks for what was asked for; for a GPU that can run programs of this world, where the choice is left.
///
/// # Errors
/// A GPU was asked for, and there is none, or the world does not fit on it.
pub(crate) fn choose(args: &ExecutionArgs, world: &Topology) -> Result<Chosen, Failure> {
    let gpu = |gpu| Runner::Gpu(Box::new(gpu));
    Ok(match args.backend {
        Backend::Sim => Chosen { runner: Runner::Simulator, why: None },
        Backend::Gpu => {
            fits(world)?;
            Chosen { runner: gpu(FirstGpu::find()?), why: None }
        }
        Backend::Auto => match look(args, world) {
            Ok(found) => Chosen { runner: gpu(found), why: Some("it can run this world".into()) },
            Err(why) => Chosen { runner: Runner::Simulator, why: Some(why) },
        },
    })
}

/// A GPU, or why it is none. The driver is asked last, for that may take seconds.
fn look(args: &ExecutionArgs, world: &Topology) -> Result<FirstGpu, String> {
    if let Some((option, _)) = simulators(args) {
        return Err(format!("{option} is for it"));
    }
    let message = |failure: Failure| failure.says.message;
    fits(world).map_err(message)?;
    FirstGpu::find().map_err(message)
}

/// Whether all ranks can be on one GPU.
fn fits(world: &Topology) -> Result<(), Failure> {
    let ranks = world.size();
    if ranks as usize > LAUNCH_RANKS {
        return Err(Error::input(
            format!("one GPU runs worlds of at most {LAUNCH_RANKS} ranks"),
            format!("{ranks} ranks"),
            format!("1 to {LAUNCH_RANKS} ranks"),
            "use fewer --ranks, or --backend sim",
        )
        .into());
    }
    let apart = |b: &mk_core::Rank| !world.mapped(mk_core::Rank(0), *b);
    match world.ranks().skip(1).find(apart) {
        None => Ok(()),
        Some(rank) => Err(Error::input(
            "one GPU runs worlds of one node, in one NVLink group",
            format!("{rank} is not mapped into rank 0"),
            "ranks that are mapped into each other",
            "use --nodes 1, another --topology, or --backend sim",
        )
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_world_fits_on_a_gpu_if_it_is_small_and_mapped() {
        let fits = |nodes, ranks| {
            let world = Topology::uniform(nodes, ranks, (nodes > 1).into()).expect("a world");
            super::fits(&world).map_err(|failure| (failure.exit, failure.says.message))
        };
        assert_eq!(fits(1, 1), Ok(()));
        assert_eq!(fits(1, 8), Ok(()));
        assert_eq!(fits(1, 9), Err((Exit::Input, "one GPU runs worlds of at most 8 ranks".into())));
        let apart = "one GPU runs worlds of one node, in one NVLink group";
        assert_eq!(fits(2, 2), Err((Exit::Input, apart.into())));
    }
}
