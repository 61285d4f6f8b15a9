//! NVIDIA's driver, in owned and typed form: devices, contexts, modules, memory, mappings, streams.
//!
//! Nothing here needs a GPU to be built. [`Driver::find`] looks for the library and for every function that is used before
//! anything is called, so a machine without a driver, or with an old one, gets a typed error. Whatever is opened is owned:
//! it is closed when its owner is dropped, in an order that the owners' references give. What cannot be closed is kept in
//! [`Driver::take_failures`]; [`Driver::live`] counts what is open.
//!
//! ```
//! use mk_kernel::driver::{Driver, Error};
//!
//! match Driver::find().and_then(|driver| driver.devices()) {
//!     Ok(devices) => devices.iter().for_each(|d| println!("{d}: {:?}", d.facts())),
//!     Err(e @ Error::Missing { .. }) => println!("{e}: {}", e.explain().hint),
//!     Err(e) => println!("{e}"),
//! }
//! ```
#![allow(unsafe_code, reason = "a C library can be called in no other way")]

mod calls;
mod context;
mod cubin;
mod device;
mod error;
mod found;
mod ledger;
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
pub use ledger::Live;
pub use mapping::{Allocation, Mapping};
pub use memory::{DeviceMemory, HostMemory, Memory};
pub use module::{Kernel, KernelFacts, Launch, Module, Residency};
pub use multicast::try_multicast;
pub use peer::{Peer, PeerAccess};
pub(crate) use plain::{Plain, bytes_of};
pub use stream::{Event, Stream};
pub(crate) use tensor_map::{Matrix, encode};
