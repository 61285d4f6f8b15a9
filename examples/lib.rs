//! One file a lesson, numbered: see the examples of this package.
