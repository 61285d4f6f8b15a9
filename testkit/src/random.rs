//! Random programs that are right by construction, with the outputs that they must give.
//!
//! A program is a pipeline of *tensors*, each of which exists on every rank in the same row chunks. A stage makes the
//! next tensor from the last ones: elementwise work, a matrix product, an exchange of chunks between ranks (by put,
//! put with signal, or get; over NVLink inside a node, over the network between nodes) or a sum in rank order. Every
//! chunk is written by one chain of tasks, arrives by words with one writer each, and is written again only when all
//! that read it on other ranks have said so.
//!
//! | module | what is there |
//! |---|---|
//! | [`params`](self) | [`Params`]: what is random, with a proptest strategy that shrinks |
//! | `plan` | the stages, as tasks |
//! | `connect` | arrivals and credits, as waits and posts |
//! | `eval` | the same stages in f64, one after the other: what must come out |

mod connect;
mod eval;
mod params;
mod plan;

pub use eval::Expected;
pub use params::{Params, params};

use mk_core::{Bindings, Error, Program, Registry};

/// A random program, and what it must compute.
#[derive(Clone, Debug)]
pub struct Random {
    /// The parameters that it was made from.
    pub params: Params,
    /// The program.
    pub program: Program,
    /// Its registry.
    pub registry: Registry,
    expected: Expected,
}

impl Random {
    /// The program of these parameters.
    ///
    /// ```
    /// use testkit::random::{Params, Random};
    /// let random = Random::new(&Params::from_seed(7))?;
    /// assert!(!random.program.tasks.is_empty());
    /// # Ok::<(), mk_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// None: whatever the parameters, the program is right.
    pub fn new(params: &Params) -> Result<Random, Error> {
        plan::Planner::new(params)?.plan()
    }

    /// Inputs of an epoch: small integers, others in each.
    pub fn inputs(&self, epoch: u64) -> Bindings {
        self.expected.inputs(epoch)
    }

    /// The outputs of that epoch, computed one stage after the other in f64.
    pub fn outputs(&self, epoch: u64) -> Bindings {
        self.expected.outputs(epoch)
    }
}

/// A small generator of random numbers (SplitMix64): the same on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `n`, which is not 0.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// True in `percent` of 100 cases.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
