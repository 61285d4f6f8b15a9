//! One file a lesson, numbered. Each runs by itself:
//!
//! ```text
//! cargo run -p examples --example 01_all_gather_gemm
//! ```
//!
//! | lesson | what it shows |
//! |---|---|
//! | `01_all_gather_gemm` | plan, prove and run a fused operator on four simulated GPUs |
//! | `02_your_own_handler` | an operation of your own: a file of Rust, one of CUDA, and one `handler` call |
//! | `03_your_own_transport` | a transport of your own: one file and one `transport` call |
//! | `04_find_a_deadlock` | two ranks that wait for each other: what the verifier says, how to read it, the fix |
//! | `05_find_a_race` | a buffer that is overwritten too early: right in most schedules, and found before any |
