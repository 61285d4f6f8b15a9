//! The verifier: proves, before anything is loaded, that a program can neither deadlock nor race.
//!
//! | pass | what it shows |
//! |---|---|
//! | `facts` | every record makes sense, ranges lie inside regions, posts and accesses can be made, thresholds fit |
//! | `liveness` | every wait is met with the least overlap, each ticket queue taken as one chain |
//! | `races` | no two unordered accesses overlap with a write among them, in one epoch and from one to the next that uses the same memory; outputs are written once; nothing stale is read; counts of different epochs stay apart |
//! | `pair` | the same between two programs that share a region |
//!
//! Order comes from signals alone (`order`, `search`), so almost every question is answered by the two tasks' own waits and
//! posts, and the time is near-linear in the tasks. What a program means is written down in `docs/architecture.md`.

mod facts;
mod frame;
mod liveness;
mod order;
mod overlap;
mod pair;
mod races;
mod reach;
mod report;
mod search;

pub use pair::verify_pair;

use crate::{Error, Hardware, Program, Registry};
use facts::Facts;
use report::Findings;
use std::fmt;
use std::sync::Arc;

/// What the verifier says of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It can neither deadlock nor race.
    Proved,
    /// It can go wrong; the finding names the tasks.
    Refuted,
    /// The verifier could not tell within its budget.
    Unproved,
}

/// The kinds of things that are wrong with programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FindingKind {
    /// A record does not make sense.
    Malformed,
    /// A handler rejects a task's arguments.
    Arguments,
    /// An access outside its region.
    OutOfRange,
    /// An access that its rank or handler cannot make.
    Unreachable,
    /// A post that its rank or handler cannot make.
    Undeliverable,
    /// A threshold that does not fit the posts.
    Threshold,
    /// Posts of different epochs can be mistaken for each other.
    EpochAlias,
    /// A wait that is never met.
    Deadlock,
    /// Two accesses without an order.
    Race,
    /// Output bytes written twice in an epoch.
    WrittenTwice,
    /// Output bytes never written.
    Unwritten,
    /// A read of scratch memory that nobody has written in the same epoch.
    Stale,
    /// A peer touches a region of the caller's while its own rank may not be running.
    OutsideRun,
    /// More lanes than can be resident.
    Lanes,
    /// The budget was used up.
    Budget,
}

/// What the verifier found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Refuted or unproved.
    pub verdict: Verdict,
    /// What kind of thing is wrong.
    pub kind: FindingKind,
    /// The tasks that are involved, by name.
    pub tasks: Vec<String>,
    /// What is wrong, in words.
    pub detail: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl Finding {
    /// What to do.
    pub fn hint(&self) -> &'static str {
        match self.kind {
            FindingKind::Malformed => "make the program with a ProgramBuilder",
            FindingKind::Arguments => "correct the task's arguments",
            FindingKind::OutOfRange => "make the region larger or the rectangle smaller",
            FindingKind::Unreachable => {
                "put what peers touch into heap regions, and register a transport that serves the pair"
            }
            FindingKind::Undeliverable => {
                "post by put_signal or signal of the pair's transport, with a Set signal where it is a network"
            }
            FindingKind::Threshold => {
                "let the builder compute thresholds: one word a producer, all posts or one stream"
            }
            FindingKind::EpochAlias => "give each rank that posts a word of its own",
            FindingKind::Deadlock => {
                "break the chain: let one of its tasks start without waiting, or swap tasks in a stream"
            }
            FindingKind::Race => {
                "let the second task wait for the first (ProgramBuilder::edge); for the next epoch, let the writer wait for its readers (ProgramBuilder::credit)"
            }
            FindingKind::WrittenTwice => "let one task write each output element",
            FindingKind::Unwritten => "add the missing tiles",
            FindingKind::Stale => "write it first in the same epoch, or make the region InOut",
            FindingKind::OutsideRun => {
                "let the peer wait for a post of the region's rank first, and let that rank wait for the peer's post"
            }
            FindingKind::Lanes => "use as many lanes as there are SMs, less what other kernels need",
            FindingKind::Budget => {
                "use fewer hops between a write and its readers: let readers wait for the writer itself"
            }
        }
    }
}

/// What was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// Tasks.
    pub tasks: u64,
    /// Accesses.
    pub accesses: u64,
    /// Overlapping pairs with a write among them that were shown to be ordered.
    pub pairs: u64,
    /// Waits.
    pub waits: u64,
    /// Posts.
    pub posts: u64,
}

/// A program that was proved. Only this can be loaded into a session. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Verified {
    program: Arc<Program>,
    registry: Registry,
    opcodes: Arc<[u16]>,
    proof: Proof,
}

impl Verified {
    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The registry that it was proved for.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The opcode of each of the program's handlers.
    pub fn opcodes(&self) -> &[u16] {
        &self.opcodes
    }

    /// What was checked.
    pub fn proof(&self) -> Proof {
        self.proof
    }
}

impl Program {
    /// Proves the program for this registry and this hardware.
    ///
    /// ```
    /// # use mk_core::*;
    /// let registry = Registry::builder().build(&World::local(2)?)?;
    /// let program = ProgramBuilder::new("nothing", &registry).finish()?;
    /// let proved = program.verify(&registry, &Hardware::h200())?;
    /// assert_eq!(proved.proof().tasks, 0);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotProved`] with the first thing that was found, or an error if a handler is not registered.
    pub fn verify(self, registry: &Registry, hardware: &Hardware) -> Result<Verified, Error> {
        let opcodes: Arc<[u16]> = self.opcodes(registry)?.into();
        match examine(&self, registry, &opcodes, hardware) {
            Ok(proof) => Ok(Verified { program: Arc::new(self), registry: registry.clone(), opcodes, proof }),
            Err(mut findings) => {
                Err(Error::NotProved { program: self.name, finding: Box::new(findings.swap_remove(0)) })
            }
        }
    }

    /// Everything that is wrong with the program, up to a handful of findings; nothing if it is proved.
    ///
    /// # Errors
    /// A handler that is not registered.
    pub fn findings(&self, registry: &Registry, hardware: &Hardware) -> Result<Vec<Finding>, Error> {
        let opcodes = self.opcodes(registry)?;
        Ok(examine(self, registry, &opcodes, hardware).err().unwrap_or_default())
    }
}

fn examine(
    program: &Program,
    registry: &Registry,
    opcodes: &[u16],
    hardware: &Hardware,
) -> Result<Proof, Vec<Finding>> {
    let mut findings = Findings::default();
    let Some(facts) = Facts::new(program, registry, opcodes, Some(hardware), &mut findings) else {
        return Err(findings.0);
    };
    liveness::check(&facts, &mut findings);
    races::check_words(&facts, &mut findings);
    let pairs = races::check(&facts, &mut findings);
    if findings.any() {
        return Err(findings.0);
    }
    Ok(Proof {
        tasks: program.tasks.len() as u64,
        accesses: facts.accesses,
        pairs,
        waits: program.tasks.iter().map(|t| t.waits().count() as u64).sum(),
        posts: program.tasks.iter().map(|t| t.posts().count() as u64).sum(),
    })
}
