//! Operators: each plans a [`Program`](mk_core::Program).

mod all_gather_gemm;
mod shard;
mod slices;

pub use all_gather_gemm::{AllGatherGemm, Choice, Gather, Limit, Plan, Prediction, Settings};
pub use shard::shard;
