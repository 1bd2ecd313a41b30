//! The facts kept of ResourceSlices.

use std::collections::BTreeMap;

use comity_policy::quantity;
use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, ResourceSlice};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::device_taint::GpuTaint;
use super::gpu_class::GpuClass;

const BYTES_PER_MIB: u64 = 1 << 20;

/// A device that claims can name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedGpu {
    /// What it is.
    pub class: GpuClass,
    /// Pool of its driver; with NVIDIA's driver the node's name.
    pub pool: String,
    /// Name in its pool, as in "gpu-0".
    pub name: String,
    /// UUID, by which claims select it; stays within the cluster.
    pub uuid: String,
    /// Model, with spaces.
    pub product_name: String,
    /// Architecture, as in "Ada Lovelace".
    pub architecture: String,
    /// Device memory in MiB.
    pub memory_mib: u64,
    /// CUDA compute capability: three numbers.
    pub compute_capability: String,
    /// Driver version: three numbers.
    pub driver_version: String,
    /// MIG profile, if it is an instance.
    pub mig_profile: Option<String>,
    /// Its NUMA node, if the driver tells it; NVIDIA's does not.
    pub numa_node: Option<u32>,
    /// Its taints.
    pub taints: Vec<GpuTaint>,
}

impl PublishedGpu {
    /// Driver and name, unique on its node.
    pub fn key(&self) -> String {
        format!("{}/{}", self.class.driver(), self.name)
    }
}

/// A device that cannot be offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusableDevice {
    /// Driver and name.
    pub device: String,
    /// Why, and what to do.
    pub reason: String,
}

/// The facts of one ResourceSlice of a known driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceFacts {
    /// Node of its devices; `None` if other nodes can use them.
    pub node: Option<String>,
    /// Driver.
    pub driver: String,
    /// Pool.
    pub pool: String,
    /// Generation of the pool.
    pub generation: i64,
    /// Slices of the pool in this generation.
    pub slices: i64,
    /// Devices that claims can name.
    pub gpus: Vec<PublishedGpu>,
    /// Devices that cannot be offered.
    pub unusable: Vec<UnusableDevice>,
}

impl SliceFacts {
    /// The facts of a slice; `None` for a driver that the agent does not know.
    pub fn of(slice: &ResourceSlice) -> Option<Self> {
        let spec = &slice.spec;
        if !GpuClass::knows(&spec.driver) {
            return None;
        }
        let (mut gpus, mut unusable) = (Vec::new(), Vec::new());
        for device in spec.devices.iter().flatten() {
            let read = match spec.node_name {
                Some(_) => gpu(&spec.driver, &spec.pool.name, device),
                None => Err("its slice names no single node".to_owned()),
            };
            match read {
                Ok(gpu) => gpus.push(gpu),
                Err(reason) => {
                    unusable.push(UnusableDevice { device: format!("{}/{}", spec.driver, device.name), reason });
                }
            }
        }
        Some(Self {
            node: spec.node_name.clone(),
            driver: spec.driver.clone(),
            pool: spec.pool.name.clone(),
            generation: spec.pool.generation,
            slices: spec.pool.resource_slice_count,
            gpus,
            unusable,
        })
    }
}

fn gpu(driver: &str, pool: &str, device: &Device) -> Result<PublishedGpu, String> {
    let attributes = Attributes { driver, all: device.attributes.as_ref() };
    let kind = attributes.text("type");
    let class =
        GpuClass::of_type(driver, &kind).ok_or_else(|| format!("its type {kind:?} is not offered; gpu and mig are"))?;
    if device.consumes_counters.as_ref().is_some_and(|counters| !counters.is_empty()) {
        return Err("this version does not offer partitionable devices; turn DynamicMIG off in the driver".to_owned());
    }
    if device.allow_multiple_allocations == Some(true) {
        return Err("it may be allocated several times, which this version does not offer".to_owned());
    }
    let uuid = attributes.text("uuid");
    if uuid.is_empty() || uuid.contains(['\'', '"', '\\']) {
        return Err("it has no attribute uuid, by which a claim could name it".to_owned());
    }
    let profile = attributes.text("profile");
    if class == GpuClass::NvidiaMig && profile.is_empty() {
        return Err("it is a MIG instance without the attribute profile".to_owned());
    }
    let memory = device.capacity.as_ref().and_then(|all| all.get("memory")).map(|capacity| &capacity.value);
    let bytes = memory.and_then(|Quantity(text)| quantity::ones_floor(text)).unwrap_or(0);
    Ok(PublishedGpu {
        class,
        pool: pool.to_owned(),
        name: device.name.clone(),
        uuid,
        product_name: attributes.text("productName"),
        architecture: attributes.text("architecture"),
        memory_mib: bytes / BYTES_PER_MIB,
        compute_capability: attributes.text("cudaComputeCapability"),
        driver_version: attributes.text("driverVersion"),
        mig_profile: Some(profile).filter(|_| class == GpuClass::NvidiaMig),
        numa_node: attributes.number("numaNode").or_else(|| attributes.number("numa")),
        taints: device.taints.iter().flatten().map(GpuTaint::from).collect(),
    })
}

/// Attributes of a device. A name without a domain has the driver's.
struct Attributes<'a> {
    driver: &'a str,
    all: Option<&'a BTreeMap<String, DeviceAttribute>>,
}

impl Attributes<'_> {
    fn get(&self, name: &str) -> Option<&DeviceAttribute> {
        let all = self.all?;
        all.get(name).or_else(|| all.get(&format!("{}/{name}", self.driver)))
    }

    /// A text or a version; empty if there is none.
    fn text(&self, name: &str) -> String {
        let found = self.get(name).and_then(|value| value.string.as_ref().or(value.version.as_ref()));
        found.cloned().unwrap_or_default()
    }

    fn number(&self, name: &str) -> Option<u32> {
        self.get(name)?.int?.try_into().ok()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn slice(device: &Value) -> SliceFacts {
        let slice = json!({
            "metadata": { "name": "s" },
            "spec": {
                "driver": "gpu.nvidia.com", "nodeName": "n", "devices": [device],
                "pool": { "name": "n", "generation": 1, "resourceSliceCount": 1 },
            },
        });
        SliceFacts::of(&serde_json::from_value(slice).unwrap()).unwrap()
    }

    fn device(change: impl FnOnce(&mut Value)) -> Value {
        let mut device = json!({
            "name": "gpu-0",
            "attributes": { "type": { "string": "gpu" }, "uuid": { "string": "GPU-1" } },
            "capacity": { "memory": { "value": "81559Mi" } },
        });
        change(&mut device);
        device
    }

    #[test]
    fn a_device_that_no_claim_can_name_alone_is_not_offered() {
        let whole = slice(&device(|_| {}));
        assert_eq!((whole.gpus[0].memory_mib, whole.gpus[0].key().as_str()), (81_559, "gpu.nvidia.com/gpu-0"));
        let consumed =
            json!([{ "counterSet": "gpu-0-counter-set", "counters": { "memory-slice-0": { "value": "1" } } }]);
        type Change = fn(&mut Value);
        let cases: [(Change, &str); 5] = [
            (|device| device["attributes"]["type"]["string"] = json!("vfio"), "vfio"),
            (|device| drop(device["attributes"].as_object_mut().unwrap().remove("uuid")), "uuid"),
            (|device| device["attributes"]["uuid"]["string"] = json!("\" || true"), "uuid"),
            (|device| device["allowMultipleAllocations"] = json!(true), "several times"),
            (|device| device["attributes"]["type"]["string"] = json!("mig"), "profile"),
        ];
        for (change, word) in cases {
            let facts = slice(&device(change));
            assert!(facts.gpus.is_empty() && facts.unusable[0].reason.contains(word), "{facts:?}");
        }
        let facts = slice(&device(|device| device["consumesCounters"] = consumed));
        assert!(facts.gpus.is_empty() && facts.unusable[0].reason.contains("DynamicMIG"), "{facts:?}");
    }

    #[test]
    fn slices_of_other_drivers_are_passed_over() {
        let other = json!({ "metadata": { "name": "s" }, "spec": {
            "driver": "compute-domain.nvidia.com", "nodeName": "n",
            "pool": { "name": "n", "generation": 1, "resourceSliceCount": 1 },
        } });
        assert_eq!(SliceFacts::of(&serde_json::from_value(other).unwrap()), None);
    }
}
