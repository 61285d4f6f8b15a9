//! What a generator draws from, and what it has drawn.

use crate::case::Case;
use crate::config::Config;
use crate::network::Network;
use crate::random::Random;
use crate::value::encode;
use mk_core::{DType, Tensor};
use std::collections::BTreeMap;

/// What a generator draws from, and the branches that it has taken.
pub(crate) struct Context {
    pub(crate) config: Config,
    pub(crate) network: Network,
    pub(crate) random: Random,
    seen: BTreeMap<&'static str, usize>,
}

/// Makes one random case.
///
/// # Errors
/// A program that cannot be built or is not proved.
pub(crate) type Generator = fn(&mut Context) -> Result<Case, String>;

impl Context {
    pub(crate) fn new(config: Config, network: Network) -> Context {
        Context { config, network, random: Random::new(0), seen: BTreeMap::new() }
    }

    /// Goes on with the numbers of another seed.
    pub(crate) fn reseed(&mut self, seed: u64) {
        self.random = Random::new(seed);
    }

    /// Whether to take a branch where it is `possible`: once in `n` times.
    pub(crate) fn choose(&mut self, branch: &'static str, possible: bool, n: u64) -> bool {
        let yes = self.random.one_in(n) && possible;
        self.note(branch, yes);
        yes
    }

    /// Counts a branch if it `happened`.
    pub(crate) fn note(&mut self, branch: &'static str, happened: bool) {
        if happened {
            *self.seen.entry(branch).or_default() += 1;
        }
    }

    /// Puts a NaN into these numbers, once in a while.
    pub(crate) fn plant_nan(&mut self, data: &mut Tensor) {
        let possible = data.rows * data.cols > 0 && data.dtype != DType::I32;
        if self.choose("NaN in the data", possible, 12) {
            let (at, nan) = (self.random.below(data.rows * data.cols) as usize, encode(data.dtype, f64::NAN));
            data.bytes[at * nan.len()..(at + 1) * nan.len()].copy_from_slice(&nan);
        }
    }

    /// Whether every branch was taken often enough to mean something.
    ///
    /// # Errors
    /// A branch that was not, or one that is taken but not listed.
    pub(crate) fn covered(&self, branches: &[&str]) -> Result<(), String> {
        const LEAST: usize = 2;
        for branch in branches {
            match self.seen.get(branch) {
                Some(&times) if times >= LEAST => {}
                times => {
                    return Err(format!("'{branch}' was taken {} times, not {LEAST}", times.unwrap_or(&0)));
                }
            }
        }
        match self.seen.keys().find(|seen| !branches.contains(seen)) {
            None => Ok(()),
            Some(branch) => Err(format!("'{branch}' is not among the branches that must be taken")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_that_is_not_taken_or_not_listed_is_named() {
        let mut c = Context::new(Config::exact(), Network::Mapped);
        (0..2).for_each(|_| c.note("often", true));
        c.note("once", true);
        c.note("never", false);
        assert!(!c.choose("impossible", false, 1));
        assert_eq!(c.covered(&["often", "once"]), Err("'once' was taken 1 times, not 2".into()));
        c.note("once", true);
        assert_eq!(c.covered(&["often", "once"]), Ok(()));
        assert!(
            c.covered(&["often", "once", "never"]).is_err_and(|e| e.contains("'never' was taken 0 times"))
        );
        assert!(c.covered(&["often"]).is_err_and(|e| e.contains("'once' is not among")));
    }
}
