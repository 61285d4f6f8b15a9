#![doc = include_str!("../README.md")]

mod connect;
mod deadline;
mod error;
mod handlers;
mod heap;
mod island;
#[cfg(target_os = "linux")]
mod meeting;
mod memory;
mod nvlink;
mod step;

pub use error::{Error, Reason};
pub use handlers::{Get, Put, PutSignal, ReducePut, Signal, Wait};
pub use nvlink::NvLink;
pub use step::Step;
