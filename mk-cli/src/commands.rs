//! The commands.

mod backend;
pub(crate) mod bench;
pub(crate) mod codegen;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod man;
mod on_gpu;
pub(crate) mod plan;
mod problem;
pub(crate) mod run;
pub(crate) mod selftest;
mod simulate;
pub(crate) mod trace;
pub(crate) mod verify;
