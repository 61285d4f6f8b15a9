#![doc = include_str!("../README.md")]

mod handlers;
mod rdma;

pub use handlers::{Get, Put, PutSignal, ReducePut, Signal, Wait};
pub use rdma::{Ordering, Rdma};
