//! The commands.

pub(crate) mod bench;
pub(crate) mod plan;
mod problem;
pub(crate) mod run;
mod simulate;
pub(crate) mod verify;
