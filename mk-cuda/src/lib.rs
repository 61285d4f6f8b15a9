#![doc = include_str!("../README.md")]
#![allow(unsafe_code, reason = "a C library can be called in no other way")]

mod calls;
mod context;
mod cubin;
mod device;
mod error;
mod found;
mod graph;
mod ledger;
mod loaded;
mod mapping;
mod memory;
mod module;
mod multicast;
mod peer;
mod plain;
mod stream;
mod tensor_map;

pub use context::Context;
pub use device::{Device, Facts, Requirements};
pub use error::{CudaVersion, Error, Failure, Limit};
pub use found::{Driver, Probe};
pub use graph::Graph;
pub use ledger::Live;
pub use loaded::loaded_file;
pub use mapping::{Allocation, Mapping};
pub use memory::{DeviceMemory, ForeignMemory, HostMemory, Memory};
pub use module::{Kernel, KernelFacts, Launch, Module, Residency};
pub use multicast::try_multicast;
pub use peer::{Peer, PeerAccess};
pub use plain::{Plain, bytes_of};
pub use stream::{Event, Stream};
pub use tensor_map::{EncodedMap, Matrix, encode};
