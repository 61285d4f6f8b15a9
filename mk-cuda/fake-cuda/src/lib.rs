#![doc = include_str!("../README.md")]

mod api;
mod config;
mod kernels;
mod log;
mod space;
mod state;

pub use config::Config;
