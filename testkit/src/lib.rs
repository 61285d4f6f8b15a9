#![doc = include_str!("../README.md")]

pub mod brute;
pub mod kit;
pub mod mutate;
pub mod planted;
pub mod pool;
pub mod random;
pub mod serial;
pub mod toy;
