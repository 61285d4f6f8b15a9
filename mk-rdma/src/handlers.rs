//! One file a handler.

mod get;
mod put;
mod put_signal;
mod reduce_put;
mod signal;
mod wait;

pub use get::Get;
pub use put::Put;
pub use put_signal::PutSignal;
pub use reduce_put::ReducePut;
pub use signal::Signal;
pub use wait::Wait;

use mk_core::{CommOp, HandlerRef};
use std::sync::Arc;

/// All of them, by what they do.
pub(crate) fn all() -> Vec<(CommOp, HandlerRef)> {
    vec![
        (CommOp::Put, Arc::new(Put)),
        (CommOp::Get, Arc::new(Get)),
        (CommOp::PutSignal, Arc::new(PutSignal)),
        (CommOp::Signal, Arc::new(Signal)),
        (CommOp::Wait, Arc::new(Wait)),
        (CommOp::ReducePut, Arc::new(ReducePut)),
    ]
}
