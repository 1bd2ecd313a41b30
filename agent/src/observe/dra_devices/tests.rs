//! The objects in `published/` were written by NVIDIA's DRA driver 0.4.0 on a stand-in NVML.
#![expect(clippy::unwrap_used, reason = "tests")]

use comity_agent_kubernetes::dynamic_resources::SliceFacts;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use serde_json::json;

use super::*;
use crate::observe::inventory::build_nodes;
use crate::observe::lent_pods::Guests;
use crate::observe::{InventorySettings, LocalReserve, TEST_SALT};

const WHOLE: &str = include_str!("published/whole.yaml");
const XID_79: &str = include_str!("published/xid79.yaml");
const MIG_STATIC: &str = include_str!("published/mig-static.yaml");
const NODE: &str = "origin-node";
const LEASE_NAMESPACE: &str = "comity-lease-1";

#[derive(serde::Deserialize)]
struct ObjectList {
    items: Vec<ResourceSlice>,
}

fn published(text: &str, claims: &[ResourceClaim]) -> DraDevices {
    let list: ObjectList = serde_saphyr::from_str(text).unwrap();
    let slices: Vec<SliceFacts> = list.items.iter().filter_map(SliceFacts::of).collect();
    let mut devices = DraDevices::default();
    devices.pools.update(&slices);
    devices.claims = claims.iter().filter_map(ClaimFacts::of).collect();
    devices
}

fn node(resource: Option<&str>) -> NodeFacts {
    NodeFacts {
        name: NODE.to_owned(),
        labels: [("nvidia.com/gpu.clique".to_owned(), "c.1".to_owned())].into(),
        capacity: resource.map(|name| (name.to_owned(), 2)).into_iter().collect(),
        ..NodeFacts::default()
    }
}

fn devices(text: &str, claims: &[ResourceClaim], reserve: u32) -> Vec<Device> {
    let published = published(text, claims);
    let (devices, not_offered) =
        DraView::new(&published, &BTreeSet::from([LEASE_NAMESPACE.to_owned()])).devices(&node(None), reserve);
    assert_eq!(not_offered, []);
    devices
}

/// A claim in `namespace` that has `device`.
fn claim(namespace: &str, device: &str) -> ResourceClaim {
    let result = json!({ "request": "gpu", "driver": "gpu.nvidia.com", "pool": NODE, "device": device });
    serde_json::from_value(json!({
        "metadata": { "namespace": namespace, "name": "c" }, "spec": {},
        "status": { "allocation": { "devices": { "results": [result] } } },
    }))
    .unwrap()
}

/// A claim for the device of a lease.
fn leased(namespace: &str, device: &str, index: u32) -> ResourceClaim {
    let leased = LeasedDevice {
        node: NODE.to_owned(),
        device: format!("gpu.nvidia.com/{device}"),
        class: GpuClass::NvidiaGpu,
        index,
    };
    let request = json!({ "name": "gpu", "exactly": { "deviceClassName": "gpu.nvidia.com" } });
    serde_json::from_value(json!({
        "metadata": { "namespace": namespace, "name": "gpu-0", "annotations": leased.annotations() },
        "spec": { "devices": { "requests": [request] } },
    }))
    .unwrap()
}

fn local_use(devices: &[Device]) -> Vec<u32> {
    devices.iter().map(|device| device.local_use_milli).collect()
}

#[test]
fn whole_gpus_are_described_as_by_gpu_feature_discovery() {
    let devices = devices(WHOLE, &[], 0);
    let whole = Device {
        product_name: "NVIDIA-H100-80GB-HBM3".to_owned(),
        architecture: "Hopper".to_owned(),
        memory_mib: 81_559,
        cuda_compute_capability: "9.0".to_owned(),
        driver_version: "550.163.1".to_owned(),
        sharing: Some(exclusive()),
        healthy: true,
        resource_name: "gpu.nvidia.com.deviceclass.resource.k8s.io/devices".to_owned(),
        nvlink_clique: "c.1".to_owned(),
        ..Device::default()
    };
    assert_eq!(devices, [whole.clone(), whole]);
}

#[test]
fn each_mig_instance_is_a_device_of_its_own() {
    let devices = devices(MIG_STATIC, &[claim("research", "gpu-1-mig-3g40gb-9-0")], 0);
    let seen: Vec<(Sharing, u64, u32)> = devices
        .iter()
        .map(|device| (device.sharing.clone().unwrap(), device.memory_mib, device.local_use_milli))
        .collect();
    assert_eq!(
        seen,
        [
            (exclusive(), 81_559, 0),
            (mig_sharing("1g.10gb+me", 1), 9_984, 0),
            (mig_sharing("2g.20gb", 1), 20_096, 0),
            (mig_sharing("3g.40gb", 1), 40_448, WHOLE_MILLI),
        ]
    );
    assert_eq!(devices[1].resource_name, "mig.nvidia.com.deviceclass.resource.k8s.io/devices");
    assert!(devices[1].nvlink_clique.is_empty());
}

#[test]
fn a_taint_tells_which_device_failed_and_why() {
    let devices = devices(XID_79, &[], 0);
    let fault = devices[0].fault.clone().unwrap();
    assert_eq!((fault.class(), fault.xid), (FaultClass::Unspecified, 79));
    assert!(!devices[0].healthy && devices[1].healthy && devices[1].fault.is_none());

    let with = |key: &str, value: &str, effect: &str| {
        let text = XID_79.replace("gpu.nvidia.com/xid", key).replace("\"79\"", value).replace("NoSchedule", effect);
        let device = self::devices(&text, &[], 0).remove(0);
        (device.healthy, device.fault.map(|fault| (fault.class(), fault.xid)))
    };
    assert_eq!(with("gpu.nvidia.com/xid", "\"31\"", "None"), (true, Some((FaultClass::Application, 31))));
    assert_eq!(with("gpu.nvidia.com/unmonitored", "\"\"", "None"), (true, None));
    assert_eq!(with("gpu.nvidia.com/gpu-lost", "\"\"", "NoSchedule"), (false, Some((FaultClass::Lost, 0))));
    assert_eq!(with("example.com/repair", "\"\"", "NoSchedule"), (false, None));
    assert_eq!(with("example.com/repair", "\"\"", "NoExecute"), (false, Some((FaultClass::Degraded, 0))));
}

#[test]
fn claims_outside_leases_are_local_use_of_their_very_device() {
    let claims = [claim("research", "gpu-0"), claim(LEASE_NAMESPACE, "gpu-1")];
    assert_eq!(local_use(&devices(WHOLE, &claims, 0)), [WHOLE_MILLI, 0]);
    // The reserve is local use that claims may already fill.
    assert_eq!(local_use(&devices(WHOLE, &claims, 1)), [WHOLE_MILLI, 0]);
    assert_eq!(local_use(&devices(WHOLE, &[], 1)), [0, WHOLE_MILLI]);
    assert_eq!(local_use(&devices(WHOLE, &[leased(LEASE_NAMESPACE, "gpu-1", 1)], 1)), [WHOLE_MILLI, 0]);
    let mut elsewhere = claim("research", "gpu-0");
    elsewhere
        .status
        .as_mut()
        .unwrap()
        .allocation
        .as_mut()
        .unwrap()
        .devices
        .as_mut()
        .unwrap()
        .results
        .as_mut()
        .unwrap()[0]
        .pool = "another-node".to_owned();
    assert_eq!(local_use(&devices(WHOLE, &[elsewhere], 0)), [0, 0]);
}

#[test]
fn a_leased_device_that_is_gone_keeps_its_position() {
    let claims = [leased(LEASE_NAMESPACE, "gpu-2", 0)];
    let devices = devices(WHOLE, &claims, 0);
    assert_eq!(devices.iter().map(|device| device.healthy).collect::<Vec<_>>(), [false, true, true]);
    assert_eq!(devices[0].fault.as_ref().unwrap().class(), FaultClass::Degraded);
    // The annotations count only in the namespace of a lease.
    assert_eq!(self::devices(WHOLE, &[leased("research", "gpu-2", 0)], 0).len(), 2);
}

#[test]
fn a_node_is_offered_by_its_device_plugin_or_by_its_slices_and_never_twice() {
    let published = published(WHOLE, &[]);
    let settings = InventorySettings { salt: TEST_SALT, reserve: LocalReserve::default(), rdma: Vec::new() };
    let build = |resource: Option<&str>| {
        build_nodes(&[node(resource)], &[], &Guests::default(), &BTreeMap::new(), &published, &settings)
    };
    let by_name = build(None);
    let enforces = by_name.nodes[0].enforces.unwrap();
    assert!(enforces.devices && !enforces.numa);
    assert_eq!((by_name.nodes[0].devices[1].index, by_name.not_offered.len()), (1, 0));
    assert!(by_name.nodes[0].devices[0].nvlink_clique != "c.1", "names of cliques leave the cluster as hashes");
    for resource in ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"] {
        let built = build(Some(resource));
        assert!(built.nodes.is_empty(), "the plugin's GPUs have no labels here");
        let left = built.not_offered.iter().find(|left| left.resource == "ResourceSlices").unwrap();
        assert!(left.reason.contains(resource), "{left:?}");
    }
    assert_eq!(build(Some("rdma/hca")).nodes.len(), 1);
}
