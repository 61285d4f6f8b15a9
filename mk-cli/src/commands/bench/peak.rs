//! The most memory that this process has had, as Linux counts it.

use crate::memory::field;
use std::fs;

/// Begins to count anew; whether it can be counted at all.
pub(super) fn restart() -> bool {
    // 5 asks for the high-water mark of resident memory to be brought down to where it is now (proc(5)).
    fs::write("/proc/self/clear_refs", "5").is_ok() && gib().is_some()
}

/// The high-water mark of resident memory since then, in GiB.
pub(super) fn gib() -> Option<f64> {
    let kib = field(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")?;
    Some(kib as f64 / f64::from(1 << 20))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn it_counts_what_has_been_touched_and_forgets_it() {
        let touch = |mib: usize| {
            let bytes = vec![1u8; mib << 20];
            std::hint::black_box(&bytes);
        };
        touch(256);
        let before = gib().unwrap();
        assert!(before > 250.0 / 1024.0);
        if restart() {
            let fresh = gib().unwrap();
            assert!(fresh < before, "{fresh} GiB, {before} before");
            touch(192);
            assert!(gib().unwrap() > fresh + 100.0 / 1024.0);
        }
    }
}
