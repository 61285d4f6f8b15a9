#![doc = include_str!("../README.md")]

pub mod abi;
mod cache;
mod codegen;
mod compile;
mod device;
mod error;
mod layout;
mod nvrtc;
mod plain;
mod report;
mod sass;
mod search;
mod session;

pub use cache::{Built, Cache};
pub use codegen::{ABI_HEADER, Header, Source, TABLE_HEADER, TableEntry};
pub use compile::{Arch, Compiled, Compiler, Options, Pace};
pub use error::Error;
pub use layout::{ConstPtr, MutPtr};
pub use mk_cuda as driver;
pub use report::{Function, Report, Violation};
pub use sass::MachineCode;
pub use search::NVRTC_VARIABLE;
pub use session::{Bound, DeviceTensor, DeviceTensors, Gpu, GpuBuilder, Limits};
#[doc(hidden)]
pub use session::{RoleEvent, Sabotage};
