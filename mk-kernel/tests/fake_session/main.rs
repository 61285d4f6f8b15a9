//! The session on a driver of our own, which runs no kernel: what it opens it closes, whatever fails on the way, and what never
//! ends is given up in time.
//!
//! Each test starts this file again as a process of its own, whose loader finds that driver first.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod child;
mod fake;
mod inputs;
mod programs;
mod steps;
mod waits;
