//! Random programs, mutants, planted faults and a brute-force scheduler, for tests.
//!
//! Everything here is the tests' *own* view of what a program means: nothing is taken from the verifier or the simulator.
//!
//! | module | what is there |
//! |---|---|
//! | [`toy`] | handlers and transports that touch a few elements only |
//! | [`kit`] | short-hands to write small programs of them |
//! | [`brute`] | all schedules of a small program |
//! | [`pool`] | small programs that are right |
//! | [`mutate`] | one change to a program |
//! | [`planted`] | programs that are wrong, with what is wrong |
//! | [`random`] | random programs that are right, with the outputs that they must give |

pub mod brute;
pub mod kit;
pub mod mutate;
pub mod planted;
pub mod pool;
pub mod toy;
