#![doc = include_str!("../README.md")]

mod check;
mod elementwise;
mod format;
mod matmul;
mod random;

pub use check::{Element, Mismatch, check};
pub use elementwise::{add, cast, elementwise_bounds, scale, swiglu};
pub use format::Format;
pub use matmul::{abs_matmul, matmul, matmul_bounds};
pub use random::{uniform, uniform_block};
