//! How much memory there is, so that what cannot fit is refused before anything is allocated.

use crate::error::Failure;
use mk_core::Error;

/// Assumed where the system does not say.
const FALLBACK_BYTES: u64 = 16 << 30;

/// Refuses what needs more memory than there is.
pub(crate) fn check(what: &str, bytes: u128, hint: &str) -> Result<(), Failure> {
    let available = available();
    if bytes <= u128::from(available) {
        return Ok(());
    }
    Err(Error::input(
        format!("{what} does not fit into memory"),
        human(bytes),
        format!("{} available", human(available.into())),
        hint,
    )
    .into())
}

/// Bytes that can be allocated without swapping, and without exceeding the limit of this process (`ulimit -v`).
pub(crate) fn available() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let free = field(&read("/proc/meminfo"), "MemAvailable:").map_or(FALLBACK_BYTES, |kb| kb << 10);
    // In bytes; `unlimited` is no number.
    let limit = field(&read("/proc/self/limits"), "Max address space");
    let used = field(&read("/proc/self/status"), "VmSize:").map_or(0, |kb| kb << 10);
    limit.map_or(free, |limit| free.min(limit.saturating_sub(used)))
}

/// The first number after `name` in a file of lines.
pub(crate) fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// A number of bytes, for people.
pub(crate) fn human(bytes: u128) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_in_the_largest_unit_that_leaves_a_number_above_one() {
        assert_eq!([0, 1023, 1024, 5 << 20].map(human), ["0 B", "1023 B", "1.0 KiB", "5.0 MiB"]);
        assert!(human(u128::MAX).ends_with("EiB"));
    }

    #[test]
    fn numbers_are_found_by_name() {
        let text = "Max cpu time  unlimited  unlimited  seconds\nMax address space  9216  unlimited  bytes\n";
        assert_eq!(field(text, "Max address space"), Some(9216));
        assert_eq!(field(text, "Max cpu time"), None);
        assert_eq!(field(text, "VmSize:"), None);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(check("a matrix", 1 << 10, "").is_ok());
        assert!(check("a matrix", 1 << 60, "").is_err());
    }
}
