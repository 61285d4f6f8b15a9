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
        let key = format!("{}: {operator:?}", operator.kind());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Io, Program, ProgramBuilder, Region, Shape, World};
    use std::cell::Cell;
    use std::fmt;
    use std::rc::Rc;

    /// Plans a program with one region of this many rows that nobody writes, or fails; and counts how often.
    #[derive(Clone)]
    struct Counted {
        rows: u64,
        /// What the region is for: an output that nobody writes is refuted.
        io: Io,
        planned: Rc<Cell<u32>>,
    }

    impl fmt::Debug for Counted {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{} rows, {:?}", self.rows, self.io)
        }
    }

    impl fmt::Display for Counted {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("counted")
        }
    }

    impl Operator for Counted {
        fn plan(&self, registry: &Registry) -> Result<Program, Error> {
            self.planned.set(self.planned.get() + 1);
            let mut b = ProgramBuilder::new("counted", registry);
            let region = Region::input("x", DType::F32, Shape::Uniform([self.rows, 1]));
            b.region(Region { io: self.io, ..region })?;
            b.finish()
        }
    }

    fn plans(capacity: usize) -> (Plans, impl Fn(u64) -> Counted, Rc<Cell<u32>>) {
        let registry = Registry::builder().build(&World::local(1).unwrap()).unwrap();
        let planned = Rc::new(Cell::new(0));
        let counter = planned.clone();
        let operator = move |rows| Counted { rows, io: Io::Input, planned: counter.clone() };
        (Plans::new(&registry, &Hardware::h200(), capacity), operator, planned)
    }

    fn rows(program: &Verified) -> u64 {
        program.program().regions[0].extent(crate::Rank(0))[0]
    }

    #[test]
    fn each_shape_is_planned_once() {
        let (mut plans, operator, planned) = plans(8);
        assert!(plans.is_empty());
        for _ in 0..3 {
            for shape in [1, 2, 3] {
                assert_eq!(rows(&plans.get(&operator(shape)).unwrap()), shape);
            }
        }
        assert_eq!((planned.get(), plans.len()), (3, 3));
    }

    #[test]
    fn the_least_recently_used_is_forgotten() {
        let (mut plans, operator, planned) = plans(2);
        for shape in [1, 2, 1, 3] {
            plans.get(&operator(shape)).unwrap();
        }
        assert_eq!((planned.get(), plans.len()), (3, 2));
        // 1 was asked for after 2, so 2 had to go.
        plans.get(&operator(1)).unwrap();
        assert_eq!(planned.get(), 3);
        plans.get(&operator(2)).unwrap();
        assert_eq!((planned.get(), plans.len()), (4, 2));
    }

    #[test]
    fn there_is_always_room_for_one() {
        let (mut plans, operator, planned) = plans(0);
        for shape in [1, 1, 2, 2] {
            plans.get(&operator(shape)).unwrap();
        }
        assert_eq!((planned.get(), plans.len()), (2, 1));
    }

    #[test]
    fn what_fails_is_not_kept_and_pushes_nothing_out() {
        let (mut plans, operator, planned) = plans(1);
        plans.get(&operator(1)).unwrap();
        let cannot_be_planned = operator(u64::MAX);
        let is_refuted = Counted { io: Io::Output, ..operator(1) };
        for failing in [&cannot_be_planned, &is_refuted, &is_refuted] {
            plans.get(failing).unwrap_err();
        }
        assert_eq!((planned.get(), plans.len()), (4, 1));
        plans.get(&operator(1)).unwrap();
        assert_eq!(planned.get(), 4);
    }

    #[test]
    fn operators_that_look_alike_are_told_apart_by_their_types() {
        #[derive(Clone, Copy)]
        struct Alike(u64);
        impl fmt::Debug for Alike {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} rows, {:?}", self.0, Io::Input)
            }
        }
        impl fmt::Display for Alike {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("alike")
            }
        }
        impl Operator for Alike {
            fn plan(&self, registry: &Registry) -> Result<Program, Error> {
                ProgramBuilder::new("another program", registry).finish()
            }
        }
        let (mut plans, operator, _) = plans(4);
        let first = plans.get(&operator(3)).unwrap();
        let second = plans.get(&Alike(3)).unwrap();
        assert_eq!(
            (first.program().name.as_str(), second.program().name.as_str()),
            ("counted", "another program")
        );
    }
}
