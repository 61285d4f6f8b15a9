//! One generator for every operator.

pub(crate) mod all_gather_gemm;

use crate::case::Case;
use crate::config::Config;
use crate::context::{Context, Generator};

/// An operator's generators.
pub(crate) struct Operator {
    pub(crate) name: &'static str,
    /// Random legal shapes.
    pub(crate) generate: Generator,
    pub(crate) branches: fn(Config) -> Vec<&'static str>,
    /// Shapes that have gone wrong elsewhere: how many, and each of them.
    pub(crate) shapes: (usize, Shape),
}

/// Runs one of an operator's shapes, by number, in several worlds.
type Shape = fn(&mut Context, usize, &dyn Fn(Case) -> Result<(), String>) -> Result<(), String>;

/// All of them.
pub(crate) const OPERATORS: &[Operator] = &[Operator {
    name: "all-gather-gemm",
    generate: all_gather_gemm::generate,
    branches: all_gather_gemm::branches,
    shapes: (all_gather_gemm::SHAPES, all_gather_gemm::shape),
}];
