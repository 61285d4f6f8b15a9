//! Processes that meet, on a driver of our own: a shared library `libcuda.so.1` that behaves as the real one does, gives memory
//! to other processes, fails where a test wants it to, and counts what is open.
//!
//! Each test starts this file again, as a process for each member of a world, whose loader finds that library first.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod child;
mod kills;
mod refusals;
mod steps;
mod strangers;
mod works;
mod world;
