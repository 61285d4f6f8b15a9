#![doc = include_str!("../README.md")]

mod board;
mod case;
mod check;
mod checks;
mod config;
mod context;
mod expect;
mod handlers;
mod memory;
mod network;
mod operators;
mod random;
mod session;
mod suite;
mod value;

pub use case::Open;
pub use check::{covered, handler, operator, operator_shapes};
pub use checks::Check;
pub use config::{Config, Numerics};
pub use network::Network;
pub use session::{
    alternates, gives_the_same_bits, refuses_foreign_programs, refuses_wrong_tensors, spreads_nan,
};

/// What the macro needs.
#[doc(hidden)]
pub mod macro_support {
    pub use mk_core::{Hardware, Registry, Session};
}
