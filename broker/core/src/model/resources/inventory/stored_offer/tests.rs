use std::collections::BTreeSet;

use comity_types::{Delivery, NodeId};

use crate::model::inventory::{
    Device, DevicePool, DeviceWiring, Devices, Enforcement, Node, NodeWiring, Offer, Sharing,
};

fn device(numa: u32) -> Device {
    Device {
        product_name: "NVIDIA-A100-SXM4-40GB".to_owned(),
        architecture: "Ampere".to_owned(),
        memory_mib: 40_960,
        cuda_compute_capability: "8.0".to_owned(),
        driver_version: "550.107.02".to_owned(),
        sharing: Sharing::Exclusive,
        healthy: true,
        fault: None,
        local_use_milli: 0,
        resource_name: "nvidia.com/gpu".to_owned(),
        wiring: DeviceWiring { numa: Some(numa), nvlink: None },
    }
}

fn offer(nodes: [Devices; 2]) -> Offer {
    let node = |devices| Node {
        cpu_milli: 64_000,
        memory_mib: 1 << 19,
        local_cpu_milli: 0,
        local_memory_mib: 0,
        devices,
        schedulable: true,
        ready: true,
        wiring: NodeWiring::default(),
        enforces: Enforcement::default(),
    };
    let ids = ["n1", "n2"].map(|id| NodeId::parse(id, "node").unwrap());
    Offer {
        generation: 7,
        nodes: ids.into_iter().zip(nodes.map(node)).collect(),
        deliveries: BTreeSet::from([Delivery::Namespace]),
        data: Default::default(),
    }
}

fn two() -> [Devices; 2] {
    let each = || Devices::from(vec![device(0), device(0), device(1), device(1)]);
    [each(), each()]
}

#[test]
fn each_kind_is_written_once_and_read_back() {
    let text = serde_json::to_string(&offer(two())).unwrap();
    assert_eq!(text.matches("A100").count(), 2, "{text}");
    assert_eq!(text.matches("[0,0,1,1]").count(), 2, "{text}");
    let read: Offer = serde_json::from_str(&text).unwrap();
    assert_eq!(read, offer(two()));
    let kept = read.nodes.values().flat_map(|node| node.devices.iter()).map(std::ptr::from_ref);
    assert_eq!(kept.collect::<BTreeSet<_>>().len(), 2, "equal devices are held once");
}

#[test]
fn equal_offers_give_equal_bytes() {
    let mut pool = DevicePool::default();
    let mut shared = || pool.share([device(0), device(0), device(1), device(1)]);
    let one = offer([shared(), shared()]);
    let mut other = offer(two());
    for device in other.nodes.iter_mut().flat_map(|(_, node)| &mut node.devices) {
        device.local_use_milli = 0;
    }
    assert_eq!(one, other);
    assert_eq!(serde_json::to_string(&one).unwrap(), serde_json::to_string(&other).unwrap());
}

#[test]
fn unknown_kinds_are_refused() {
    let text = serde_json::to_string(&offer(two())).unwrap().replacen("[0,0,1,1]", "[0,0,1,2]", 1);
    let error = serde_json::from_str::<Offer>(&text).unwrap_err().to_string();
    assert!(error.contains("kind 2 is not one of 2 before"), "{error}");
    assert!(serde_json::from_str::<Offer>(&text.replace("[0,0,1,2]", "[-1]")).is_err());
    assert!(serde_json::from_str::<Offer>("{\"generation\":1}").unwrap_err().to_string().contains("nodes"));
}

#[test]
fn changed_devices_are_no_longer_shared() {
    let mut pool = DevicePool::default();
    let (one, mut other) = (pool.share([device(0), device(0)]), pool.share([device(0), device(0)]));
    other[1].healthy = false;
    assert!(one.iter().all(|device| device.healthy) && other[0].healthy && !other[1].healthy);
    let again = Devices::from(vec![device(0), device(1)]).shared_with(&one);
    assert!(std::ptr::eq(&raw const again[0], &raw const one[0]));
    assert_eq!(again[1], device(1));
}
