//! One generator for every operator.

pub(crate) mod all_gather_gemm;

use crate::case::Case;
use crate::context::{Context, Generator};

/// An operator's generators.
pub(crate) struct Operator {
    pub(crate) name: &'static str,
    /// Random legal shapes.
    pub(crate) generate: Generator,
    pub(crate) branches: &'static [&'static str],
    /// Shapes that have gone wrong elsewhere: how many, and each of them.
    pub(crate) shapes: (usize, Shape),
}

/// One of an operator's shapes, by number.
type Shape = fn(&mut Context, usize) -> Result<Case, String>;

/// All of them.
pub(crate) const OPERATORS: &[Operator] = &[Operator {
    name: "all-gather-gemm",
    generate: all_gather_gemm::generate,
    branches: all_gather_gemm::BRANCHES,
    shapes: (all_gather_gemm::SHAPES, all_gather_gemm::shape),
}];
