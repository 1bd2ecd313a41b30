//! Device attributes that selectors can use.

use std::collections::BTreeMap;

use comity_types::SharingMode;
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
    /// Brand: `Nvidia`, `Tesla`, `GeForce`, `AMD`.
    pub brand: String,
    /// Sharing mode: `exclusive`, `time-slicing`, `mps`, `mig`, `fractional`.
    pub sharing: String,
    /// Isolation of a share on the device: `none`, `memory`, `hardware`.
    pub isolation: String,
    /// Further attributes, for `device.extra["name"]`.
    pub extra: BTreeMap<String, String>,
}

impl DeviceFacts {
    /// What a product and its sharing say; the rest is unknown. Offers name no brand.
    #[must_use]
    pub fn of_product(product_name: &str, sharing: SharingMode) -> Self {
        Self {
            product_name: product_name.to_owned(),
            brand: brand(product_name).to_owned(),
            sharing: sharing.as_str().to_owned(),
            isolation: sharing.isolation().as_str().to_owned(),
            ..Self::default()
        }
    }
}

/// The brand that NVML would report, by the product name: policy tells consumer cards from data-centre cards by it. A name
/// without a known word has the plain brand.
fn brand(product_name: &str) -> &'static str {
    const BRANDS: [(&str, &str); 10] = [
        ("AMD", "AMD"),
        ("Instinct", "AMD"),
        ("Radeon", "AMD"),
        ("Intel", "Intel"),
        ("GeForce", "GeForce"),
        ("TITAN", "Titan"),
        ("Quadro", "Quadro"),
        ("Tesla", "Tesla"),
        ("NVS", "NVS"),
        ("RTX", "NvidiaRTX"),
    ];
    BRANDS.iter().find(|(word, _)| product_name.contains(word)).map_or("Nvidia", |(_, brand)| brand)
}

#[cfg(test)]
mod tests {
    use super::brand;

    #[test]
    fn brands_separate_consumer_from_data_centre_cards() {
        for (product, expected) in [
            ("NVIDIA-GeForce-RTX-4090", "GeForce"),
            ("NVIDIA RTX A6000", "NvidiaRTX"),
            ("Tesla-T4", "Tesla"),
            ("NVIDIA-H100-80GB-HBM3", "Nvidia"),
            ("AMD-Instinct-MI300X", "AMD"),
            ("Intel-Data-Center-GPU-Max-1550", "Intel"),
        ] {
            assert_eq!(brand(product), expected, "{product}");
        }
    }
}
