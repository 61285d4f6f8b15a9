#![doc = include_str!("../README.md")]

mod handlers;
mod matmul;
mod operators;

pub use handlers::{
    Add, AddArgs, Cast, CastArgs, Copy, CopyRectArgs, Gemm, GemmArgs, Nop, NopArgs, PAGE_BYTES, Scale,
    ScaleArgs, Swiglu, SwigluArgs, block_rows, handlers,
};
pub use operators::{AllGatherGemm, Choice, Gather, Limit, Plan, Prediction, Settings, shard};
