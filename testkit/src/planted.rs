//! A catalogue of planted faults: programs that are wrong in one way, with the tasks that are at fault.
//!
//! | module | what is planted |
//! |---|---|
//! | [`races`] | two accesses without an order |
//! | [`deadlocks`] | waits that are never met |
//! | [`outputs`] | outputs written twice or not at all, reads of what nobody wrote |
//! | [`counts`] | posts that are lost, too many, or mistaken for those of another epoch |
//! | [`limits`] | bytes outside a region or out of reach, posts that nobody carries, lanes, records without meaning |

pub mod counts;
pub mod deadlocks;
pub mod limits;
pub mod outputs;
pub mod races;

use crate::kit::{Case, Kit};
use mk_core::{Error, verify::FindingKind};

/// A program with a planted fault.
#[derive(Clone, Debug)]
pub struct Planted {
    /// The program.
    pub case: Case,
    /// What is wrong with it.
    pub kind: FindingKind,
    /// Labels of the tasks at fault: one of each must be named (empty: no task is at fault).
    pub tasks: Vec<String>,
}

/// Least number of programs of each kind.
pub const ENOUGH: usize = 20;

fn plant(k: Kit, kind: FindingKind, tasks: &[&str]) -> Result<Planted, Error> {
    Ok(Planted { case: k.finish()?, kind, tasks: tasks.iter().map(|t| t.to_string()).collect() })
}

/// The whole catalogue.
///
/// # Errors
/// None: what is planted is beyond what the builder checks.
pub fn all() -> Result<Vec<Planted>, Error> {
    let parts = [races::all()?, deadlocks::all()?, outputs::all()?, counts::all()?, limits::all()?];
    Ok(parts.into_iter().flatten().collect())
}
