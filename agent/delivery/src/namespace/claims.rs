//! ResourceClaims of a lease whose devices a DRA driver publishes: one for each device of the placement, and each names
//! that very device. A tenant can use them, and can neither make nor change claims.

use std::collections::{BTreeMap, BTreeSet};

use comity_agent_kubernetes::call::{Pager, call, call_opt, creating};
use comity_agent_kubernetes::dynamic_resources::{
    ClaimFacts, DevicePools, GpuClass, LeasedDevice, PublishedGpu, SliceFacts, order,
};
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::lease::lease_id::{LEASE_LABEL, namespace_name};
use comity_agent_model::lease::placement::{NodePlacement, WHOLE_MILLI};
use comity_agent_model::node_id::NodeSalt;
use k8s_openapi::api::resource::v1::{
    CELDeviceSelector, DeviceClaim, DeviceClass, DeviceRequest, DeviceSelector, ExactDeviceRequest, ResourceClaim,
    ResourceClaimSpec, ResourceSlice,
};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use serde::de::DeserializeOwned;

use super::objects;
use crate::DonorLease;

/// Before the number of a claim. The admission policy comity-tenant admits only claims of this name.
const CLAIM_PREFIX: &str = "gpu-";
/// The only request of a claim.
const REQUEST: &str = "gpu";

/// Makes the claims that are missing; nothing for devices that a device plugin counts.
pub(super) async fn make(client: &Client, salt: &NodeSalt, lease: &DonorLease) -> Result<(), DeliveryError> {
    let Some(class) = GpuClass::of_quota_name(&lease.placement.resource_name) else { return Ok(()) };
    check_device_class(client, class).await?;
    let slices = list::<ResourceSlice>(client, "list resource slices", &ListParams::default()).await?;
    let slices: Vec<SliceFacts> = slices.iter().filter_map(SliceFacts::of).collect();
    let mut pools = DevicePools::default();
    pools.update(&slices);
    if pools.are_changing() {
        return Err(DeliveryError::temporary("read the cluster's devices", "their driver is publishing new ones"));
    }
    let claims =
        list::<ResourceClaim>(client, "list resource claims", &ListParams::default().labels(LEASE_LABEL)).await?;
    let held: Vec<ClaimFacts> = claims.iter().filter(|claim| is_of_lease(claim)).filter_map(ClaimFacts::of).collect();
    let api = Api::<ResourceClaim>::namespaced(client.clone(), &namespace_name(lease.lease_id));
    for claim in missing(lease, class, &pools, &held, salt)? {
        let operation = format!("create resource claim {}", claim.name_any());
        call(&operation, api.create(&creating(), &claim)).await.map_err(with_remedy)?;
    }
    Ok(())
}

/// The driver's installation brings the class; without it no claim gets a device.
async fn check_device_class(client: &Client, class: GpuClass) -> Result<(), DeliveryError> {
    let name = class.device_class();
    let classes = Api::<DeviceClass>::all(client.clone());
    let found = call_opt(&format!("read device class {name}"), classes.get(name)).await.map_err(with_remedy)?;
    found.map(drop).ok_or_else(|| {
        DeliveryError::permanent(
            "no-device-class",
            format!("the cluster has no DeviceClass {name}; install the chart of the driver {}", class.driver()),
        )
    })
}

/// Rights to claims have a manifest of their own.
fn with_remedy(error: DeliveryError) -> DeliveryError {
    match error {
        DeliveryError::Permanent { code: code @ "kubernetes-forbidden", message } => {
            DeliveryError::permanent(code, message.replace("deploy/agent/rbac.yaml", "deploy/agent/dra.yaml"))
        }
        other => other,
    }
}

/// A claim belongs to a lease if its label and its namespace agree.
fn is_of_lease(claim: &ResourceClaim) -> bool {
    let lease = claim.labels().get(LEASE_LABEL).and_then(|lease| lease.parse().ok());
    lease.is_some_and(|lease| claim.namespace().as_deref() == Some(&namespace_name(lease)))
}

/// The claims that the lease lacks. `held` are those of all leases. Pure.
fn missing(
    lease: &DonorLease,
    class: GpuClass,
    pools: &DevicePools,
    held: &[ClaimFacts],
    salt: &NodeSalt,
) -> Result<Vec<ResourceClaim>, DeliveryError> {
    let own = namespace_name(lease.lease_id);
    let made: BTreeSet<&str> =
        held.iter().filter(|claim| claim.namespace == own).map(|claim| claim.name.as_str()).collect();
    let gpus = pools.gpus();
    let nodes: BTreeMap<String, &str> = gpus.keys().map(|name| (salt.node_id(name), *name)).collect();
    let (mut claims, mut number) = (Vec::new(), 0_u64);
    for part in &lease.placement.nodes {
        let node = nodes.get(part.node.as_str()).copied();
        let places = node.map(|node| Places::of(node, gpus.get(node).map_or(&[][..], Vec::as_slice), held));
        for share in &part.devices {
            let name = format!("{CLAIM_PREFIX}{number}");
            number += 1;
            if made.contains(name.as_str()) {
                continue;
            }
            if share.milli != WHOLE_MILLI {
                return Err(DeliveryError::permanent(
                    "no-part-of-a-claim",
                    format!("{}: a claim takes a whole device, not {} thousandths", lease.lease_id, share.milli),
                ));
            }
            let gpu = places.as_ref().and_then(|places| places.gpu(share.device)).filter(|gpu| gpu.class == class);
            let (Some(node), Some(gpu)) = (node, gpu) else { return Err(device_gone(lease, part, share.device)) };
            claims.push(claim(lease, &name, node, share.device, gpu));
        }
    }
    if number != lease.placement.resource_count {
        return Err(DeliveryError::permanent(
            "empty-placement",
            format!(
                "{}: its placement has {number} devices, and counts {}",
                lease.lease_id, lease.placement.resource_count
            ),
        ));
    }
    Ok(claims)
}

fn device_gone(lease: &DonorLease, part: &NodePlacement, index: u32) -> DeliveryError {
    DeliveryError::permanent(
        "device-gone",
        format!("{}: no driver publishes device {index} of node {} any more", lease.lease_id, part.node),
    )
}

/// The devices of a node by their position in its offer.
struct Places<'a> {
    names: Vec<Option<String>>,
    gpus: BTreeMap<String, &'a PublishedGpu>,
}

impl<'a> Places<'a> {
    fn of(node: &str, gpus: &[&'a PublishedGpu], held: &[ClaimFacts]) -> Self {
        let gpus: BTreeMap<String, &PublishedGpu> = gpus.iter().map(|gpu| (gpu.key(), *gpu)).collect();
        let leased = held.iter().filter_map(|claim| claim.leased.as_ref()).filter(|leased| leased.node == node);
        let positions = leased.map(|leased| (leased.index, leased.device.clone())).collect();
        Self { names: order(&gpus.keys().cloned().collect(), &positions), gpus }
    }

    fn gpu(&self, index: u32) -> Option<&'a PublishedGpu> {
        let name = self.names.get(usize::try_from(index).ok()?)?.as_ref()?;
        self.gpus.get(name).copied()
    }
}

/// CEL knows neither pool nor name of a device, but its UUID.
fn claim(lease: &DonorLease, name: &str, node: &str, index: u32, gpu: &PublishedGpu) -> ResourceClaim {
    let mut metadata = objects::metadata(lease, name);
    let leased = LeasedDevice { node: node.to_owned(), device: gpu.key(), class: gpu.class, index };
    metadata.annotations = Some(leased.annotations());
    let (driver, uuid) = (gpu.class.driver(), &gpu.uuid);
    let expression = format!(
        "device.driver == '{driver}' && 'uuid' in device.attributes['{driver}'] && \
         device.attributes['{driver}'].uuid == '{uuid}'"
    );
    let request = ExactDeviceRequest {
        device_class_name: gpu.class.device_class().to_owned(),
        allocation_mode: Some("ExactCount".to_owned()),
        count: Some(1),
        selectors: Some(vec![DeviceSelector { cel: Some(CELDeviceSelector { expression }) }]),
        ..ExactDeviceRequest::default()
    };
    let request = DeviceRequest { name: REQUEST.to_owned(), exactly: Some(request), ..DeviceRequest::default() };
    let devices = DeviceClaim { requests: Some(vec![request]), ..DeviceClaim::default() };
    ResourceClaim { metadata, spec: ResourceClaimSpec { devices: Some(devices) }, status: None }
}

async fn list<K>(client: &Client, operation: &str, wanted: &ListParams) -> Result<Vec<K>, DeliveryError>
where
    K: kube::Resource + Clone + DeserializeOwned + std::fmt::Debug,
    K::DynamicType: Default,
{
    let objects = Api::<K>::all(client.clone());
    let (mut pager, mut found) = (Pager::new(wanted.clone()), Vec::new());
    while let Some(page) = pager.page() {
        let list = call(operation, objects.list(page)).await.map_err(with_remedy)?;
        pager.turn(&list.metadata);
        found.extend(list.items);
    }
    Ok(found)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_agent_model::gpu_demand::GpuDemand;
    use comity_agent_model::lease::placement::{DeviceShare, Placement};
    use comity_types::LeaseId;
    use serde_json::json;

    use super::*;

    const SALT: NodeSalt = NodeSalt::new([7; 32]);

    /// Node "a" with the GPUs of these numbers.
    fn pools(numbers: &[u32]) -> DevicePools {
        let device = |number: &u32| {
            json!({
                "name": format!("gpu-{number}"),
                "attributes": { "type": { "string": "gpu" }, "uuid": { "string": format!("GPU-{number}") } },
            })
        };
        let slice = json!({ "metadata": { "name": "s" }, "spec": {
            "driver": "gpu.nvidia.com", "nodeName": "a", "devices": numbers.iter().map(device).collect::<Vec<_>>(),
            "pool": { "name": "a", "generation": 1, "resourceSliceCount": 1 },
        } });
        let mut pools = DevicePools::default();
        pools.update(&[SliceFacts::of(&serde_json::from_value(slice).unwrap()).unwrap()]);
        pools
    }

    fn lease(id: u64, devices: &[u32]) -> DonorLease {
        let shares = devices
            .iter()
            .map(|device| DeviceShare { device: *device, milli: WHOLE_MILLI, ..DeviceShare::default() })
            .collect();
        DonorLease {
            lease_id: LeaseId(id),
            tenant: "vision".into(),
            origin: "polytechnic".into(),
            target_namespace: String::new(),
            placement: Placement {
                resource_name: GpuClass::NvidiaGpu.quota_name(),
                resource_count: devices.len() as u64,
                nodes: vec![NodePlacement { node: SALT.node_id("a"), devices: shares, ..NodePlacement::default() }],
                ..Placement::new("here".parse().unwrap())
            },
            gpus: GpuDemand::default(),
            fencing_token: 1,
            ends_at_ms: 0,
        }
    }

    fn planned(
        lease: &DonorLease,
        numbers: &[u32],
        held: &[ResourceClaim],
    ) -> Result<Vec<ResourceClaim>, DeliveryError> {
        let held: Vec<ClaimFacts> = held.iter().filter_map(ClaimFacts::of).collect();
        missing(lease, GpuClass::NvidiaGpu, &pools(numbers), &held, &SALT)
    }

    /// Name and selector of each.
    fn selected(claims: &[ResourceClaim]) -> Vec<(String, String)> {
        let selector = |claim: &ResourceClaim| {
            let request = claim.spec.devices.as_ref()?.requests.as_ref()?.first()?.exactly.as_ref()?;
            Some(request.selectors.as_ref()?.first()?.cel.as_ref()?.expression.clone())
        };
        claims.iter().map(|claim| (claim.name_any(), selector(claim).unwrap())).collect()
    }

    #[test]
    fn each_device_of_the_placement_has_a_claim_that_names_it() {
        let claims = planned(&lease(7, &[1, 3]), &[0, 1, 2, 3], &[]).unwrap();
        let seen = selected(&claims);
        assert_eq!((seen[0].0.as_str(), seen[1].0.as_str()), ("gpu-0", "gpu-1"));
        assert!(seen[0].1.ends_with(".uuid == 'GPU-1'") && seen[1].1.ends_with(".uuid == 'GPU-3'"), "{seen:?}");
        assert!(is_of_lease(&claims[0]));
        assert_eq!(claims[0].annotations()["comity.dev/device"], "gpu.nvidia.com/gpu-1");
        // Prepared again, nothing is made twice.
        assert!(planned(&lease(7, &[1, 3]), &[0, 1, 2, 3], &claims).unwrap().is_empty());
        let again = planned(&lease(7, &[1, 3]), &[0, 1, 2, 3], &claims[..1]).unwrap();
        assert_eq!(selected(&again), seen[1..]);
    }

    #[test]
    fn positions_that_other_leases_hold_do_not_move() {
        let held = planned(&lease(7, &[3]), &[0, 1, 2, 3], &[]).unwrap();
        // gpu-0 is gone. The position 3 is still gpu-3, and 0 is the next device that nobody holds.
        let other = planned(&lease(8, &[0]), &[1, 2, 3], &held).unwrap();
        assert!(selected(&other)[0].1.ends_with("'GPU-1'"));
    }

    #[test]
    fn a_device_that_is_not_there_is_not_replaced() {
        let gone = planned(&lease(7, &[2]), &[0, 1], &[]).unwrap_err();
        assert!(matches!(gone, DeliveryError::Permanent { code: "device-gone", .. }), "{gone}");
        let mut elsewhere = lease(7, &[0]);
        elsewhere.placement.nodes[0].node = SALT.node_id("b");
        assert!(planned(&elsewhere, &[0], &[]).is_err());
        let mut part = lease(7, &[0]);
        part.placement.nodes[0].devices[0].milli = 500;
        assert!(planned(&part, &[0], &[]).unwrap_err().to_string().contains("500 thousandths"));
        let mut more = lease(7, &[0]);
        more.placement.resource_count = 2;
        assert!(planned(&more, &[0], &[]).is_err());
    }
}
