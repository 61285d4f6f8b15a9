//! Operators: what plans programs.

use crate::{Error, Program, Registry};
use std::fmt;

/// An operation of all ranks together, which becomes a program.
///
/// Its plan is a pure function of its value, the registry's world and handlers, and the hardware that it was made for: all ranks
/// plan for themselves, and compare hashes. [`Debug`](fmt::Debug) must show everything that the plan depends on; a cache of
/// plans tells two operators apart by it. [`Display`](fmt::Display) is for people.
pub trait Operator: fmt::Debug + fmt::Display {
    /// Its type: two types may look alike.
    fn kind(&self) -> &'static str {
        std::any::type_name::<Self>()
    }

    /// Plans the program.
    ///
    /// # Errors
    /// Sizes that are not legal, a missing capability or handler, a limit that is exceeded.
    fn plan(&self, registry: &Registry) -> Result<Program, Error>;
}
