#![doc = include_str!("../README.md")]

mod builder;
mod checks;
mod comm;
mod compute;
mod data;
mod engine;
mod events;
mod faults;
mod hash;
mod link;
mod links;
mod memory;
mod plan;
mod posts;
mod random;
mod report;
mod session;
mod stall;
mod trace;
mod unit;
mod waits;
mod words;

pub use builder::{Mode, Progress, SimulatorBuilder};
pub use checks::Checks;
pub use faults::{Delay, Drop, Faults, Kill, NicError, Slow};
pub use link::SimulatedLink;
pub use mk_core::Trace;
pub use report::{LinkReport, RankReport, Report};
pub use session::Simulator;
