//! `mk verify`: proves a program file.

use crate::args::VerifyArgs;
use crate::console::Console;
use crate::error::Failure;
use crate::{input, setup};
use mk_core::verify::FindingKind;
use mk_core::{Error, Limits, Program, Proof, World};
use serde::Serialize;

#[derive(Serialize)]
struct VerifyResult<'a> {
    command: &'static str,
    program: &'a str,
    ranks: u32,
    #[serde(flatten)]
    proof: ProofResult,
}

/// What was proved, in numbers.
#[derive(Serialize)]
pub(crate) struct ProofResult {
    verdict: &'static str,
    tasks: u64,
    accesses: u64,
    pairs: u64,
    waits: u64,
    posts: u64,
}

impl From<Proof> for ProofResult {
    fn from(p: Proof) -> ProofResult {
        ProofResult {
            verdict: "proved",
            tasks: p.tasks,
            accesses: p.accesses,
            pairs: p.pairs,
            waits: p.waits,
            posts: p.posts,
        }
    }
}

/// What was proved, for people.
pub(crate) fn proof_text(p: &Proof) -> String {
    format!("{} tasks, {} conflicting accesses, all ordered, no deadlock, no race", p.tasks, p.pairs)
}

/// `mk verify FILE`.
pub(crate) fn verify(args: &VerifyArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let hardware = setup::hardware(&args.hardware)?;
    let bytes = input::read(&args.file, Limits::FILE_BYTES)?;
    if bytes.is_empty() {
        return Err(input::empty(&args.file));
    }
    let program = {
        let _step = console.step("reading");
        // Handlers are the same in every world; how many ranks the program has, only the file says.
        let any_world = setup::registry(&World::local(1)?)?;
        Program::read(&bytes, &any_world).map_err(|e| Failure::from(e).of_file(&args.file))?
    };
    drop(bytes);
    let registry = setup::registry(&world(args, program.ranks)?)?;
    let name = program.name.clone();
    console.say("read", format!("'{name}': {} tasks of {} ranks", program.tasks.len(), program.ranks));
    let verified = {
        let _step = console.step("proving");
        program.verify(&registry, &hardware).map_err(explain)?
    };
    let proof = verified.proof();
    console.say("proved", proof_text(&proof));
    let ranks = verified.program().ranks;
    console.object(&VerifyResult { command: "verify", program: &name, ranks, proof: proof.into() });
    Ok(())
}

fn world(args: &VerifyArgs, ranks: u32) -> Result<World, Failure> {
    let Some(path) = &args.topology else { return on_nodes(args.nodes, ranks) };
    let topology = setup::topology_file(path)?;
    if topology.size() != ranks {
        return Err(Error::input(
            "the topology has another number of ranks than the program",
            format!("{} ranks in {}", topology.size(), path.display()),
            format!("{ranks} ranks"),
            "give the topology that the program was planned for",
        )
        .into());
    }
    Ok(World::of(topology))
}

/// The verifier's finding; what it means for somebody who has only options to change.
fn explain(e: Error) -> Failure {
    let unreachable =
        matches!(&e, Error::NotProved { finding, .. } if finding.kind == FindingKind::Unreachable);
    let mut failure = Failure::from(e);
    if unreachable {
        failure.says.hint = "give the --nodes or the --topology that the program was planned for".into();
    }
    failure
}

/// The program's ranks on equal nodes; their number is the program's, so only that of the nodes can be changed.
fn on_nodes(nodes: u64, ranks: u32) -> Result<World, Failure> {
    if nodes > 0 && !u64::from(ranks).is_multiple_of(nodes) {
        return Err(Error::input(
            "the program's ranks do not divide evenly over nodes",
            format!("{ranks} ranks on {nodes} nodes"),
            format!("a number of nodes that divides {ranks}"),
            "change --nodes, or describe the nodes in a --topology file",
        )
        .into());
    }
    setup::uniform(nodes, ranks.into())
}
