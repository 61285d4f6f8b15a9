//! What measures on a GPU: the machine, what runs on it, and a session that runs it.

pub(super) mod cublas;
pub(super) mod machine;
pub(super) mod runner;
pub(super) mod workload;
