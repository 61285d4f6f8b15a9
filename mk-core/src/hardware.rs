//! Hardware profiles: what a task and a transfer cost on a machine.

use crate::Spec;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a machine can do. All bandwidths are in GB/s (10^9 bytes), measured, not from a data sheet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    /// Its name.
    pub name: String,
    /// Streaming multiprocessors: lanes that can be resident at once.
    pub sms: u32,
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
    /// One SM's share of bulk copies over NVLink.
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
    /// One NVIDIA H200 with NVLink and one 400 Gb/s NIC.
    pub fn h200() -> Hardware {
        Hardware {
            name: "h200".into(),
            sms: 132,
            tensor_tflops: 700.0,
            vector_tflops: 60.0,
            hbm_gb_per_s: 4_000.0,
            sm_gb_per_s: 60.0,
            task_ns: 170.0,
            local_signal_ns: 700.0,
            nvlink_gb_per_s: 350.0,
            nvlink_latency_ns: 1_200.0,
            sm_copy_gb_per_s: 42.0,
            nic_gb_per_s: 48.0,
            nic_latency_ns: 4_000.0,
            factors: BTreeMap::new(),
        }
    }

    /// What a task with this spec costs when `lanes` lanes share the GPU.
    #[inline]
    pub fn time(&self, handler: &str, spec: &Spec, lanes: u32) -> Cost {
        let factor =
            if self.factors.is_empty() { 1.0 } else { self.factors.get(handler).copied().unwrap_or(1.0) };
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
