//! Device attributes that selectors can use.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

mod mig_profile;

pub use mig_profile::is_mig_profile;

/// The attributes of one device, named as in Kubernetes DRA. Unknown ones are empty or 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceFacts {
    /// Product name of the vendor: `NVIDIA H100 80GB HBM3`.
    pub product_name: String,
    /// Architecture: `Hopper`.
    pub architecture: String,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// CUDA compute capability: `9.0`.
    pub cuda_compute_capability: String,
    /// Driver version: `570.86.15`.
    pub driver_version: String,
    /// Brand: `Nvidia`, `Tesla`, `GeForce`.
    pub brand: String,
    /// Sharing mode: `exclusive`, `time-slicing`, `mps`, `mig`, `fractional`.
    pub sharing: String,
    /// Isolation of a share on the device: `none`, `memory`, `hardware`.
    pub isolation: String,
    /// Further attributes, for `device.extra["name"]`.
    pub extra: BTreeMap<String, String>,
}
