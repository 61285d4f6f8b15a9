//! Reference results in f64, from no mk-* crate.
