//! `mk verify`: proves a program file.

use crate::args::VerifyArgs;
use crate::console::Console;
use crate::error::Failure;
use crate::{setup, tensors};
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
    format!("{} tasks, {} overlapping pairs ordered, no deadlock, no race", p.tasks, p.pairs)
}

/// `mk verify FILE`.
pub(crate) fn verify(args: &VerifyArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let hardware = setup::hardware(&args.hardware)?;
    let bytes = tensors::read_file(&args.file, Limits::FILE_BYTES)?;
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
        program.verify(&registry, &hardware)?
    };
    let proof = verified.proof();
    console.say("proved", proof_text(&proof));
    let ranks = verified.program().ranks;
    console.object(&VerifyResult { command: "verify", program: &name, ranks, proof: proof.into() });
    Ok(())
}

fn world(args: &VerifyArgs, ranks: u32) -> Result<World, Failure> {
    let Some(path) = &args.topology else { return setup::uniform(args.nodes, ranks.into()) };
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
