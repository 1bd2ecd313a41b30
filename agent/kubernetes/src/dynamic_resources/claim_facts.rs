//! The facts kept of a ResourceClaim.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::ResourceClaim;

use super::gpu_class::GpuClass;

/// Annotations of a claim that the agent made for a device of a lease.
const NODE: &str = "comity.dev/node";
const DEVICE: &str = "comity.dev/device";
const DEVICE_INDEX: &str = "comity.dev/device-index";

/// A claim that has devices, or was made for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimFacts {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Devices that it has now.
    pub allocated: Vec<AllocatedDevice>,
    /// The device of a lease for which the agent made it. Anybody may write this: it counts only in a lease's namespace.
    pub leased: Option<LeasedDevice>,
}

/// A device that a claim has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AllocatedDevice {
    /// Driver.
    pub driver: String,
    /// Pool.
    pub pool: String,
    /// Name in the pool.
    pub device: String,
}

/// The device for which a claim was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedDevice {
    /// Name of its node.
    pub node: String,
    /// Driver and name.
    pub device: String,
    /// Its kind.
    pub class: GpuClass,
    /// Position in the node's offer.
    pub index: u32,
}

impl ClaimFacts {
    /// The facts of a claim; `None` if it neither has a device nor was made for one.
    pub fn of(claim: &ResourceClaim) -> Option<Self> {
        let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
        let results = allocation.and_then(|allocation| allocation.devices.as_ref()?.results.as_ref());
        // Access for administration shares a device with those who use it.
        let used = results.into_iter().flatten().filter(|result| result.admin_access != Some(true));
        let allocated: Vec<AllocatedDevice> = used
            .map(|result| AllocatedDevice {
                driver: result.driver.clone(),
                pool: result.pool.clone(),
                device: result.device.clone(),
            })
            .collect();
        let leased = LeasedDevice::read(claim);
        (!allocated.is_empty() || leased.is_some()).then_some(Self {
            namespace: claim.metadata.namespace.clone()?,
            name: claim.metadata.name.clone()?,
            allocated,
            leased,
        })
    }
}

impl LeasedDevice {
    /// The annotations of its claim.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        [
            (NODE.to_owned(), self.node.clone()),
            (DEVICE.to_owned(), self.device.clone()),
            (DEVICE_INDEX.to_owned(), self.index.to_string()),
        ]
        .into()
    }

    fn read(claim: &ResourceClaim) -> Option<Self> {
        let annotations = claim.metadata.annotations.as_ref()?;
        let request = claim.spec.devices.as_ref()?.requests.as_ref()?.first()?;
        Some(Self {
            node: annotations.get(NODE)?.clone(),
            device: annotations.get(DEVICE)?.clone(),
            class: GpuClass::of_device_class(&request.exactly.as_ref()?.device_class_name)?,
            index: annotations.get(DEVICE_INDEX)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn facts(claim: &Value) -> Option<ClaimFacts> {
        ClaimFacts::of(&serde_json::from_value(claim.clone()).unwrap())
    }

    #[test]
    fn a_claim_holds_what_was_allocated_to_it() {
        let result = json!({ "request": "gpu", "driver": "gpu.nvidia.com", "pool": "n", "device": "gpu-1" });
        let mut claim = json!({ "metadata": { "namespace": "research", "name": "c" }, "spec": {} });
        assert_eq!(facts(&claim), None);
        claim["status"] = json!({ "allocation": { "devices": { "results": [result] } } });
        assert_eq!(facts(&claim).unwrap().allocated[0].device, "gpu-1");
        claim["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = json!(true);
        assert_eq!(facts(&claim), None);
    }

    #[test]
    fn annotations_tell_the_device_of_a_lease() {
        let leased = LeasedDevice {
            node: "n".to_owned(),
            device: "gpu.nvidia.com/gpu-1".to_owned(),
            class: GpuClass::NvidiaGpu,
            index: 1,
        };
        let request = json!({ "name": "gpu", "exactly": { "deviceClassName": "gpu.nvidia.com" } });
        let mut claim = json!({
            "metadata": { "namespace": "ns", "name": "gpu-0", "annotations": leased.annotations() },
            "spec": { "devices": { "requests": [request] } },
        });
        assert_eq!(facts(&claim).unwrap().leased, Some(leased));
        claim["metadata"]["annotations"]["comity.dev/device-index"] = json!("-1");
        assert_eq!(facts(&claim), None);
    }
}
