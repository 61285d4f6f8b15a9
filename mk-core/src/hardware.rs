//! Hardware profiles: what a task and a transfer cost on a machine.

use crate::{Error, Limits, Spec, config};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// What a machine can do. All bandwidths are in GB/s (10^9 bytes), measured, not from a data sheet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    /// Its name.
    pub name: String,
    /// Streaming multiprocessors: lanes that can be resident at once.
    pub sms: u32,
    /// SMs that programs leave to other kernels.
    #[serde(default)]
    pub reserved_sms: u32,
    /// Dense bf16 matrix product on all SMs, TFLOP/s.
    pub tensor_tflops: f64,
    /// f32 arithmetic on all SMs, TFLOP/s.
    pub vector_tflops: f64,
    /// HBM bandwidth of all SMs together.
    pub hbm_gb_per_s: f64,
    /// Bytes per second that one SM can load from the L2, where tiles are reused.
    pub sm_gb_per_s: f64,
    /// Fetching and dispatching one task, ns.
    pub task_ns: f64,
    /// A signal inside one GPU, post to wait, ns.
    pub local_signal_ns: f64,
    /// NVLink, one direction of one GPU.
    pub nvlink_gb_per_s: f64,
    /// NVLink one-way latency, ns.
    pub nvlink_latency_ns: f64,
    /// What one lane copies, at home or over NVLink.
    pub sm_copy_gb_per_s: f64,
    /// One NIC, one direction.
    pub nic_gb_per_s: f64,
    /// Network one-way latency, proxy included, ns.
    pub nic_latency_ns: f64,
    /// Time of a handler's tasks over the model's, by handler name; 1 where it is not named.
    #[serde(default)]
    pub factors: BTreeMap<String, f64>,
}

/// What a task costs, without waits and without what its bytes cost on links.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Cost {
    /// Loading its operands, ns.
    pub load_ns: f64,
    /// Its arithmetic, ns; runs beside the load, block by block.
    pub math_ns: f64,
    /// Storing its results, ns.
    pub store_ns: f64,
}

impl Hardware {
    /// One NVIDIA H200 with NVLink and one 400 Gb/s NIC: `profiles/h200.toml`.
    ///
    /// # Panics
    /// Never: the profile that is compiled in is tested.
    pub fn h200() -> Hardware {
        static H200: LazyLock<Hardware> = LazyLock::new(|| {
            Hardware::from_toml(include_str!("../profiles/h200.toml")).expect("the built-in profile is valid")
        });
        H200.clone()
    }

    /// Names of the built-in profiles.
    pub const NAMES: [&'static str; 1] = ["h200"];

    /// The built-in profile of this name.
    ///
    /// # Errors
    /// There is none: the error lists [`Hardware::NAMES`].
    pub fn named(name: &str) -> Result<Hardware, Error> {
        match name {
            "h200" => Ok(Hardware::h200()),
            _ => Err(Error::input(
                "unknown hardware",
                name,
                Hardware::NAMES.join(", "),
                "name one of these, or give a TOML file with the same keys",
            )),
        }
    }

    /// A profile from TOML: one key for each field, [`factors`](Hardware::factors) as a table.
    ///
    /// ```
    /// let text = mk_core::Hardware::h200().to_toml().replace("sms = 132", "sms = 114");
    /// assert_eq!(mk_core::Hardware::from_toml(&text)?.sms, 114);
    /// # Ok::<(), mk_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// A key that is missing, unknown or given twice, and a number that is not finite and above 0; with line and key.
    pub fn from_toml(text: &str) -> Result<Hardware, Error> {
        let hardware: Hardware =
            config::from_toml("hardware profile", text, "the keys of profiles/h200.toml")?;
        hardware.check()?;
        Ok(hardware)
    }

    /// The profile as TOML.
    ///
    /// # Panics
    /// Never: a profile has only numbers, names and one table, which comes last.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a flat struct with one table at the end is TOML")
    }

    /// Lanes that a program may use: one an SM, less those that are left to other kernels.
    ///
    /// ```
    /// let shared = mk_core::Hardware { reserved_sms: 4, ..mk_core::Hardware::h200() };
    /// assert_eq!(shared.lanes(), 128);
    /// ```
    pub fn lanes(&self) -> u32 {
        self.sms.saturating_sub(self.reserved_sms)
    }

    fn check(&self) -> Result<(), Error> {
        let bad = |key: &str, given: String, allowed: &str| {
            Err(Error::input(
                format!("hardware profile '{}': {key} is out of range", self.name),
                format!("{key} = {given}"),
                allowed,
                "measure it, or copy it from profiles/h200.toml",
            ))
        };
        if self.name.is_empty() {
            return bad("name", "\"\"".into(), "a name");
        }
        if !(1..=Limits::LANES).contains(&(self.sms as u64)) {
            return bad("sms", self.sms.to_string(), &format!("1 to {}", Limits::LANES));
        }
        if self.reserved_sms >= self.sms {
            let allowed = format!("less than the {} SMs", self.sms);
            return bad("reserved_sms", self.reserved_sms.to_string(), &allowed);
        }
        let factors = self.factors.iter().map(|(name, f)| (name.as_str(), *f));
        // Between these, quotients and products of two stay finite and above 0.
        match self.numbers().into_iter().chain(factors).find(|(_, x)| !(1e-9..=1e15).contains(x)) {
            Some((key, x)) => bad(key, format!("{x:?}"), "a finite number above 0 (1e-9 to 1e15)"),
            None => Ok(()),
        }
    }

    fn numbers(&self) -> [(&'static str, f64); 11] {
        [
            ("tensor_tflops", self.tensor_tflops),
            ("vector_tflops", self.vector_tflops),
            ("hbm_gb_per_s", self.hbm_gb_per_s),
            ("sm_gb_per_s", self.sm_gb_per_s),
            ("task_ns", self.task_ns),
            ("local_signal_ns", self.local_signal_ns),
            ("nvlink_gb_per_s", self.nvlink_gb_per_s),
            ("nvlink_latency_ns", self.nvlink_latency_ns),
            ("sm_copy_gb_per_s", self.sm_copy_gb_per_s),
            ("nic_gb_per_s", self.nic_gb_per_s),
            ("nic_latency_ns", self.nic_latency_ns),
        ]
    }

    /// Time of a handler's tasks over the model's; for a transport's handler, that of its bytes on the link.
    #[inline]
    pub fn factor(&self, handler: &str) -> f64 {
        if self.factors.is_empty() { 1.0 } else { self.factors.get(handler).copied().unwrap_or(1.0) }
    }

    /// What a task with this spec costs when `lanes` lanes share the GPU.
    #[inline]
    pub fn time(&self, handler: &str, spec: &Spec, lanes: u32) -> Cost {
        let factor = self.factor(handler);
        let sms = self.sms.max(1) as f64;
        // GB/s is bytes/ns; TFLOP/s is 1000 flop/ns.
        let hbm = (self.hbm_gb_per_s / lanes.max(1) as f64).min(self.sm_gb_per_s);
        let tensor = spec.work.tensor_flops as f64 * sms / (self.tensor_tflops * 1000.0);
        let vector = spec.work.vector_flops as f64 * sms / (self.vector_tflops * 1000.0);
        let load_rate = if spec.work.tensor_flops > 0 { self.sm_gb_per_s } else { hbm };
        Cost {
            load_ns: factor * spec.work.read_bytes as f64 / load_rate,
            math_ns: factor * (tensor + vector),
            store_ns: factor * spec.work.write_bytes as f64 / hbm,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_profile_is_valid_and_round_trips() {
        let h = Hardware::h200();
        assert_eq!((h.name.as_str(), h.sms, h.nvlink_gb_per_s), ("h200", 132, 350.0));
        assert_eq!(Hardware::from_toml(&h.to_toml()).unwrap(), h);
        assert_eq!(Hardware::named("h200").unwrap(), h);
        assert!(Hardware::named("h300").unwrap_err().explain().allowed.contains("h200"));
        let calibrated = Hardware { factors: BTreeMap::from([("gemm".into(), 1.25)]), ..h };
        assert_eq!(Hardware::from_toml(&calibrated.to_toml()).unwrap(), calibrated);
    }

    #[test]
    fn a_bad_profile_names_line_and_key() {
        let good = Hardware::h200().to_toml();
        for (from, to, word) in [
            ("sms = 132", "sms = 0", "sms"),
            ("sms = 132", "sms = 8589934592", "line 2"),
            ("sms = 132", "", "sms"),
            ("sms = 132", "smz = 132", "smz"),
            ("sms = 132", "sms = 132\nsms = 133", "line 3"),
            ("task_ns = 170.0", "task_ns = nan", "task_ns"),
            ("task_ns = 170.0", "task_ns = inf", "task_ns"),
            ("task_ns = 170.0", "task_ns = 0.0", "task_ns"),
            ("task_ns = 170.0", "task_ns = -1.0", "task_ns"),
            ("task_ns = 170.0", "task_ns = \"fast\"", "task_ns"),
            ("[factors]", "[factors]\ngemm = -1.0", "gemm"),
            ("[factors]", "[factors", "line 16"),
        ] {
            assert!(good.contains(from), "{from} is not in\n{good}");
            let e = Hardware::from_toml(&good.replace(from, to)).unwrap_err().explain();
            let said = format!("{} {} {}", e.message, e.given, e.allowed);
            assert!(said.contains(word), "{to}: '{said}' does not say '{word}'");
        }
    }
}
