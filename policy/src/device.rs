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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttributeType {
    Text,
    Number,
    TextMap,
}

/// A named attribute and its reader.
pub(crate) struct Attribute {
    pub(crate) name: &'static str,
    pub(crate) attribute_type: AttributeType,
    pub(crate) read: fn(&DeviceFacts) -> AttributeValue<'_>,
}

pub(crate) enum AttributeValue<'d> {
    Text(&'d str),
    Number(i64),
    TextMap(&'d BTreeMap<String, String>),
}

/// All attributes. Versions have numeric parts too, because the text `"10.0"` sorts before `"9.0"`.
pub(crate) const ATTRIBUTES: [Attribute; 12] = [
    text("productName", |device| AttributeValue::Text(&device.product_name)),
    text("architecture", |device| AttributeValue::Text(&device.architecture)),
    number("memoryMiB", |device| AttributeValue::Number(i64::try_from(device.memory_mib).unwrap_or(i64::MAX))),
    text("cudaComputeCapability", |device| AttributeValue::Text(&device.cuda_compute_capability)),
    number("cudaComputeMajor", |device| AttributeValue::Number(version_part(&device.cuda_compute_capability, 0))),
    number("cudaComputeMinor", |device| AttributeValue::Number(version_part(&device.cuda_compute_capability, 1))),
    text("driverVersion", |device| AttributeValue::Text(&device.driver_version)),
    number("driverMajor", |device| AttributeValue::Number(version_part(&device.driver_version, 0))),
    text("brand", |device| AttributeValue::Text(&device.brand)),
    text("sharing", |device| AttributeValue::Text(&device.sharing)),
    text("isolation", |device| AttributeValue::Text(&device.isolation)),
    Attribute {
        name: "extra",
        attribute_type: AttributeType::TextMap,
        read: |device| AttributeValue::TextMap(&device.extra),
    },
];

const fn text(name: &'static str, read: fn(&DeviceFacts) -> AttributeValue<'_>) -> Attribute {
    Attribute { name, attribute_type: AttributeType::Text, read }
}

const fn number(name: &'static str, read: fn(&DeviceFacts) -> AttributeValue<'_>) -> Attribute {
    Attribute { name, attribute_type: AttributeType::Number, read }
}

/// The number at `index` of a dotted version; 0 if missing.
fn version_part(version: &str, index: usize) -> i64 {
    version.split('.').nth(index).and_then(|part| part.parse::<u32>().ok()).map_or(0, i64::from)
}
