//! One test case: a proved program, its tensors, and what must come back.

use crate::expect::Expected;
use mk_core::{Bindings, Hardware, Io, Program, Rank, Registry, RunError, Session, Verified};
use std::collections::BTreeMap;

/// Opens a session for programs of a registry. What a session draws, a schedule for example, it draws from the seed.
pub type Open<'a> = &'a dyn Fn(&Registry, &Hardware, u64) -> Box<dyn Session>;

/// One run: what the caller gives, and what every region must hold that comes back.
pub(crate) struct Epoch {
    pub(crate) given: Bindings,
    pub(crate) want: BTreeMap<(Rank, String), Expected>,
}

/// A proved program with its runs.
pub(crate) struct Case {
    /// What it is, for people.
    pub(crate) name: String,
    pub(crate) registry: Registry,
    pub(crate) program: Verified,
    pub(crate) epochs: Vec<Epoch>,
}

impl Case {
    /// Proves the program.
    ///
    /// # Errors
    /// It is not proved, or something that comes back has no expectation: the suite is wrong, or the verifier is.
    pub(crate) fn new(
        name: String,
        registry: &Registry,
        program: Program,
        epochs: Vec<Epoch>,
    ) -> Result<Case, String> {
        let returned = program.regions.iter().filter(|r| matches!(r.io, Io::Output | Io::InOut));
        for region in returned {
            for rank in registry.topology().ranks() {
                let key = (rank, region.name.clone());
                if !epochs.iter().all(|e| e.want.contains_key(&key)) {
                    return Err(format!("{name}: nothing is expected of '{}' on {rank}", region.name));
                }
            }
        }
        let program =
            program.verify(registry, &Hardware::h200()).map_err(|e| format!("{name}: not proved: {e}"))?;
        Ok(Case { name, registry: registry.clone(), program, epochs })
    }

    /// Opens a session for it.
    pub(crate) fn open(&self, open: Open<'_>, seed: u64) -> Box<dyn Session> {
        open(&self.registry, &Hardware::h200(), seed)
    }

    /// Runs every epoch in a session of its own, and compares every byte of every region that comes back.
    ///
    /// # Errors
    /// What differs, or why a run ended without a result.
    pub(crate) fn run(&self, open: Open<'_>, seed: u64) -> Result<(), String> {
        let mut session = self.open(open, seed);
        (0..self.epochs.len()).try_for_each(|epoch| self.run_epoch(&mut *session, epoch))
    }

    /// Runs one epoch, and compares.
    ///
    /// # Errors
    /// As [`Case::run`].
    pub(crate) fn run_epoch(&self, session: &mut dyn Session, epoch: usize) -> Result<(), String> {
        let result = session.run(&self.program, &self.epochs[epoch].given);
        self.compare(epoch, result).map_err(|e| format!("{}: epoch {}: {e}", self.name, epoch + 1))
    }

    fn compare(&self, epoch: usize, result: Result<Bindings, RunError>) -> Result<(), String> {
        let out = result.map_err(|e| e.to_string())?;
        let want = &self.epochs[epoch].want;
        for ((rank, region), expected) in want {
            let got =
                out.get(*rank, region).ok_or_else(|| format!("'{region}' of {rank} did not come back"))?;
            expected.check(got).map_err(|e| format!("'{region}' of {rank}: {e}"))?;
        }
        match out.iter().find(|(rank, name, _)| !want.contains_key(&(*rank, (*name).to_string()))) {
            None => Ok(()),
            Some((rank, name, _)) => Err(format!("'{name}' of {rank} came back, which nobody wrote")),
        }
    }
}
