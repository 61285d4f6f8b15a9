//! Plans by shape: an operator is planned and proved once.

use crate::{Error, Hardware, Operator, Registry, Verified};
use std::collections::HashMap;

/// Proved programs by the operator that they were planned from, for one registry and one kind of hardware. When it is full, the
/// program that has not been asked for longest is forgotten.
///
/// ```
/// # use mk_core::*;
/// # #[derive(Debug)]
/// # struct Nothing;
/// # impl std::fmt::Display for Nothing {
/// #     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str("nothing") }
/// # }
/// # impl Operator for Nothing {
/// #     fn plan(&self, registry: &Registry) -> Result<Program, Error> { ProgramBuilder::new("nothing", registry).finish() }
/// # }
/// let registry = Registry::builder().build(&World::local(2)?)?;
/// let mut plans = Plans::new(&registry, &Hardware::h200(), 16);
/// let first = plans.get(&Nothing)?; // planned and proved
/// let again = plans.get(&Nothing)?; // found
/// assert!(std::ptr::eq(first.program(), again.program()));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct Plans {
    registry: Registry,
    hardware: Hardware,
    capacity: usize,
    known: HashMap<String, Known>,
    asked: u64,
}

#[derive(Debug)]
struct Known {
    program: Verified,
    last_asked: u64,
}

impl Plans {
    /// An empty cache of at most `capacity` programs (at least one).
    pub fn new(registry: &Registry, hardware: &Hardware, capacity: usize) -> Plans {
        let (registry, hardware, capacity) = (registry.clone(), hardware.clone(), capacity.max(1));
        Plans { registry, hardware, capacity, known: HashMap::new(), asked: 0 }
    }

    /// The operator's proved program.
    ///
    /// # Errors
    /// It cannot be planned, or its plan is not proved. Nothing is kept then.
    pub fn get(&mut self, operator: &dyn Operator) -> Result<Verified, Error> {
        self.asked += 1;
        let key = format!("{operator:?}");
        if let Some(known) = self.known.get_mut(&key) {
            known.last_asked = self.asked;
            return Ok(known.program.clone());
        }
        let program = operator.plan(&self.registry)?.verify(&self.registry, &self.hardware)?;
        if self.known.len() >= self.capacity {
            self.forget_oldest();
        }
        self.known.insert(key, Known { program: program.clone(), last_asked: self.asked });
        Ok(program)
    }

    /// How many programs it holds.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    fn forget_oldest(&mut self) {
        let oldest = self.known.iter().min_by_key(|(_, k)| k.last_asked).map(|(key, _)| key.clone());
        if let Some(key) = oldest {
            self.known.remove(&key);
        }
    }
}
