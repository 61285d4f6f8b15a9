//! The driver layer against a driver of our own: a shared library `libcuda.so.1` that is loaded as the real one is, behaves as
//! strictly, fails where a test wants it to, and counts what is open.
//!
//! Each test starts this file again as a process of its own, whose loader finds that library first.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod child;
mod fake;
mod library;
mod refusals;
mod residency;
mod setup;
mod steps;
mod works;
