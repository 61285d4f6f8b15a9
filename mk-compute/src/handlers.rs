//! One file a handler.

mod add;
mod cast;
mod copy;
mod elementwise;
mod gemm;
mod nop;
mod scale;
mod swiglu;

pub use add::{Add, AddArgs};
pub use cast::{Cast, CastArgs};
pub use copy::{Copy, CopyRectArgs};
pub use elementwise::{PAGE_BYTES, block_rows};
pub use gemm::{Gemm, GemmArgs};
pub use nop::{Nop, NopArgs};
pub use scale::{Scale, ScaleArgs};
pub use swiglu::{Swiglu, SwigluArgs};

use mk_core::HandlerRef;
use std::sync::Arc;

/// All handlers of this crate, to register.
///
/// ```
/// use mk_core::{Registry, World};
/// let registry = Registry::builder().handlers(mk_compute::handlers()).build(&World::local(1)?)?;
/// assert!(registry.handler("gemm").is_ok());
/// # Ok::<(), mk_core::Error>(())
/// ```
pub fn handlers() -> Vec<HandlerRef> {
    vec![
        Arc::new(Gemm),
        Arc::new(Cast),
        Arc::new(Add),
        Arc::new(Scale),
        Arc::new(Swiglu),
        Arc::new(Copy),
        Arc::new(Nop),
    ]
}
