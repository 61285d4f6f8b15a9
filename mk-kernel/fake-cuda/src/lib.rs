//! A CUDA driver for tests: `libcuda.so.1` without a GPU.
//!
//! It is loaded as the real one is: a test copies `libfake_cuda.so` to a folder as `libcuda.so.1` and starts a process with
//! that folder in `LD_LIBRARY_PATH`. It has the functions that mKernel calls, behaves as strictly as the real driver (wrong
//! handles, wrong contexts, memory that nobody may reach are errors), moves bytes on copies, and runs no kernel. A library
//! that depends on this crate finds the file beside its test binary.
//!
//! | variable | what it says |
//! |---|---|
//! | `FAKE_CUDA` | what the driver is like: see [`Config`] |
//! | `FAKE_CUDA_LOG` | a file that gets a line for each call: number, function, result, and as JSON what is open after it |

mod api;
mod config;
mod kernels;
mod log;
mod space;
mod state;

pub use config::Config;
