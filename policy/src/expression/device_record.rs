//! `device` in expressions: by Comity's names, and by the names of Kubernetes DRA.
//!
//! Source of the second: KEP-4381, and the attributes that NVIDIA's DRA driver publishes.

use cel::common::value::Val;

use super::quantity_value::QuantityValue;
use super::record_value::{RecordValue, number, text, text_map};
use super::semver_value::SemverValue;
use super::types::{Field, Record, Type};
use crate::device::DeviceFacts;

/// The DRA driver whose names are known, which is also the domain of its attributes.
const NVIDIA: &str = "gpu.nvidia.com";
const BYTES_PER_MIB: u64 = 1 << 20;

/// `device`. Versions have numeric parts too, because the text `"10.0"` sorts before `"9.0"`.
pub(super) static DEVICE: Record = Record {
    noun: "the device",
    field_noun: "attribute",
    fields: &[
        Field::new("productName", Type::Text),
        Field::new("architecture", Type::Text),
        Field::new("memoryMiB", Type::Int),
        Field::new("cudaComputeCapability", Type::Text),
        Field::new("cudaComputeMajor", Type::Int),
        Field::new("cudaComputeMinor", Type::Int),
        Field::new("driverVersion", Type::Text),
        Field::new("driverMajor", Type::Int),
        Field::new("brand", Type::Text),
        Field::new("sharing", Type::Text),
        Field::new("isolation", Type::Text),
        Field::new("extra", Type::TextMap),
        Field::new("driver", Type::Text),
        Field::new("attributes", Type::Record(&DRA_ATTRIBUTES)),
        Field::new("capacity", Type::Record(&DRA_CAPACITY)),
    ],
};

static DRA_ATTRIBUTES: Record = Record {
    noun: "`device.attributes`",
    field_noun: "domain",
    fields: &[Field::new(NVIDIA, Type::Record(&NVIDIA_ATTRIBUTES))],
};

static NVIDIA_ATTRIBUTES: Record = Record {
    noun: "`device.attributes[\"gpu.nvidia.com\"]`",
    field_noun: "attribute",
    fields: &[
        Field::new("type", Type::Text),
        Field::new("productName", Type::Text),
        Field::new("brand", Type::Text),
        Field::new("architecture", Type::Text),
        Field::new("cudaComputeCapability", Type::Semver),
        Field::new("driverVersion", Type::Semver),
    ],
};

static DRA_CAPACITY: Record = Record {
    noun: "`device.capacity`",
    field_noun: "domain",
    fields: &[Field::new(NVIDIA, Type::Record(&NVIDIA_CAPACITY))],
};

static NVIDIA_CAPACITY: Record = Record {
    noun: "`device.capacity[\"gpu.nvidia.com\"]`",
    field_noun: "capacity",
    fields: &[Field::new("memory", Type::Quantity)],
};

/// `device` as a value.
pub(super) fn device_value(device: &DeviceFacts) -> Box<dyn Val + '_> {
    RecordValue::boxed(device, attribute)
}

fn attribute<'d>(device: &'d DeviceFacts, name: &str) -> Option<Box<dyn Val + 'd>> {
    Some(match name {
        "productName" => text(&device.product_name),
        "architecture" => text(&device.architecture),
        "memoryMiB" => number(i64::try_from(device.memory_mib).unwrap_or(i64::MAX)),
        "cudaComputeCapability" => text(&device.cuda_compute_capability),
        "cudaComputeMajor" => number(version_part(&device.cuda_compute_capability, 0)),
        "cudaComputeMinor" => number(version_part(&device.cuda_compute_capability, 1)),
        "driverVersion" => text(&device.driver_version),
        "driverMajor" => number(version_part(&device.driver_version, 0)),
        "brand" => text(&device.brand),
        "sharing" => text(&device.sharing),
        "isolation" => text(&device.isolation),
        "extra" => text_map(&device.extra),
        "driver" => text(driver(device)),
        "attributes" => RecordValue::boxed(device, |device, domain| {
            (domain == driver(device)).then(|| RecordValue::boxed(device, nvidia_attribute))
        }),
        "capacity" => RecordValue::boxed(device, |device, domain| {
            (domain == driver(device)).then(|| RecordValue::boxed(device, nvidia_capacity))
        }),
        _ => return None,
    })
}

/// The DRA driver that would publish the device; empty for those of other vendors, which have no CUDA.
fn driver(device: &DeviceFacts) -> &'static str {
    if device.cuda_compute_capability.is_empty() { "" } else { NVIDIA }
}

/// An attribute by the name that NVIDIA's driver gives it. As there, an unknown one is absent.
fn nvidia_attribute<'d>(device: &'d DeviceFacts, name: &str) -> Option<Box<dyn Val + 'd>> {
    let known = |value: &'d str| (!value.is_empty()).then(|| text(value));
    let version =
        |value: &str| SemverValue::parse_lenient(value).map(|version| -> Box<dyn Val + 'd> { Box::new(version) });
    match name {
        "type" => Some(text(if device.sharing == "mig" { "mig" } else { "gpu" })),
        "productName" => known(&device.product_name),
        "brand" => known(&device.brand),
        "architecture" => known(&device.architecture),
        "cudaComputeCapability" => version(&device.cuda_compute_capability),
        "driverVersion" => version(&device.driver_version),
        _ => None,
    }
}

fn nvidia_capacity<'d>(device: &'d DeviceFacts, name: &str) -> Option<Box<dyn Val + 'd>> {
    let is_known = name == "memory" && device.memory_mib > 0;
    is_known.then(|| -> Box<dyn Val + 'd> {
        Box::new(QuantityValue::of_whole(device.memory_mib.saturating_mul(BYTES_PER_MIB)))
    })
}

/// The number at `index` of a dotted version; 0 if missing.
fn version_part(version: &str, index: usize) -> i64 {
    version.split('.').nth(index).and_then(|part| part.parse::<u32>().ok()).map_or(0, i64::from)
}
