//! What the driver is like.

use std::collections::HashMap;

/// What the driver is like: `key=value`, separated by `;`.
///
/// | key | meaning | without it |
/// |---|---|---|
/// | `driver` | CUDA version, as `cuDriverGetVersion` gives it | 13000 |
/// | `devices`, `sms`, `capability`, `memory` | GPUs, and of each: multiprocessors, compute capability times ten, bytes | 2, 132, 90, 1 GiB |
/// | `shared`, `registers` | shared memory of a block, registers of a multiprocessor | 232448, 65536 |
/// | `vmm`, `posix`, `multicast`, `peers`, `atomics` | what the driver says it can do: 0 or 1; atomics at the memory of peers | 1, 1, 1, 1, 1 |
/// | `kernel` | name of the kernel that every module has | mk_kernel |
/// | `kernel_registers`, `kernel_local`, `kernel_shared`, `parameter` | of the kernel | 168, 0, 0, 16 |
/// | `resident` | blocks on a multiprocessor, whatever the kernel needs | what it needs decides |
/// | `launched` | what every launch must be: 0, or the sum of 1 (in pairs) and 2 (early) | anything |
/// | `fail` | `NAME:CODE` or, only the Nth call of it, `NAME:CODE@N`; several by `,` | |
/// | `fail_at` | `N` or `N:CODE`: the Nth call of all fails | code 999 |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    numbers: HashMap<String, u64>,
    pub(crate) kernel: String,
    pub(crate) failures: Vec<Rule>,
}

/// A failure to order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    /// The function; any, if it is none.
    name: Option<String>,
    code: u32,
    /// Which call; every one, if it is none.
    at: Option<u64>,
}

const NUMBERS: [(&str, u64); 19] = [
    ("driver", 13_000),
    ("devices", 2),
    ("sms", 132),
    ("capability", 90),
    ("memory", 1 << 30),
    ("shared", 232_448),
    ("registers", 65_536),
    ("vmm", 1),
    ("posix", 1),
    ("multicast", 1),
    ("peers", 1),
    ("atomics", 1),
    ("kernel_registers", 168),
    ("kernel_local", 0),
    ("kernel_shared", 0),
    ("kernel_threads", 384),
    ("parameter", 16),
    // Not a number of blocks: the kernel's needs decide.
    ("resident", u64::MAX),
    // Not a sum: whatever it is.
    ("launched", u64::MAX),
];

impl Config {
    /// Reads it.
    ///
    /// # Errors
    /// Says which part has no meaning.
    pub fn parse(text: &str) -> Result<Config, String> {
        let numbers = NUMBERS.map(|(key, value)| (key.to_string(), value)).into();
        let mut config = Config { numbers, kernel: "mk_kernel".into(), failures: Vec::new() };
        for part in text.split(';').map(str::trim).filter(|p| !p.is_empty()) {
            config.part(part).ok_or_else(|| format!("FAKE_CUDA: '{part}' has no meaning"))?;
        }
        Ok(config)
    }

    fn part(&mut self, part: &str) -> Option<()> {
        let (key, value) = part.split_once('=')?;
        match key.trim() {
            "kernel" => self.kernel = value.into(),
            "fail" => {
                for rule in value.split(',') {
                    let (name, rest) = rule.trim().split_once(':')?;
                    let (code, at) = match rest.split_once('@') {
                        Some((code, at)) => (code, Some(at.parse().ok()?)),
                        None => (rest, None),
                    };
                    self.failures.push(Rule { name: Some(name.into()), code: code.parse().ok()?, at });
                }
            }
            "fail_at" => {
                let (at, code) = value.split_once(':').unwrap_or((value, "999"));
                let (at, code) = (Some(at.trim().parse().ok()?), code.parse().ok()?);
                self.failures.push(Rule { name: None, code, at });
            }
            key => *self.numbers.get_mut(key)? = value.trim().parse().ok()?,
        }
        Some(())
    }

    pub(crate) fn number(&self, key: &str) -> u64 {
        self.numbers[key]
    }

    /// The code with which a call fails: the `nth` of all, the `of_name`th of its name.
    pub(crate) fn failure(&self, name: &str, nth: u64, of_name: u64) -> Option<u32> {
        let matches = |rule: &&Rule| match &rule.name {
            Some(n) => n == name && rule.at.is_none_or(|at| at == of_name),
            None => rule.at == Some(nth),
        };
        self.failures.iter().find(matches).map(|rule| rule.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_ordered_by_name_by_name_and_place_or_by_place() {
        let c = Config::parse("sms=4; fail=cuInit:100,cuMemCreate:2@3; fail_at=7").unwrap();
        assert_eq!(c.number("sms"), 4);
        assert_eq!(c.failure("cuInit", 1, 1), Some(100));
        assert_eq!((c.failure("cuMemCreate", 5, 2), c.failure("cuMemCreate", 6, 3)), (None, Some(2)));
        assert_eq!(c.failure("cuMemMap", 7, 1), Some(999));
        for bad in ["sm=3", "sms", "sms=x", "fail=cuInit", "fail_at=x"] {
            assert!(Config::parse(bad).unwrap_err().contains(bad), "{bad}");
        }
    }
}
