#![doc = include_str!("../README.md")]

mod handlers;
mod nvlink;

pub use handlers::{Get, Put, PutSignal, ReducePut, Signal, Wait};
pub use nvlink::NvLink;
