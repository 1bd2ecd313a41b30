//! Fuzzes the answers of a node's kubelet.

use comity_fuzz::fuzz;
use prost::Message as _;

use super::api::{ContainerResources, PodResources};
use super::*;

fn devices(resource: &str, ids: &[&str]) -> ContainerDevices {
    let device_ids = ids.iter().map(|id| (*id).to_owned()).collect();
    ContainerDevices { resource_name: resource.to_owned(), device_ids }
}

#[test]
fn answers_of_kubelets() {
    let gpus = devices("nvidia.com/gpu", &["GPU-a", "GPU-b::1"]);
    let others = devices("example.com/kvm", &["kvm0"]);
    let offered = AllocatableResourcesResponse { devices: vec![gpus.clone(), others.clone()] };
    let pod = PodResources {
        name: "train".to_owned(),
        namespace: "comity-lease-1".to_owned(),
        containers: vec![ContainerResources { name: "work".to_owned(), devices: vec![gpus, others] }],
    };
    let listed = ListPodResourcesResponse { pod_resources: vec![pod.clone(), pod] };
    fuzz!("kubelet_answer", vec![offered.encode_to_vec(), listed.encode_to_vec()], |bytes: &[u8]| {
        let is_unit = |unit: &DeviceUnit| is_gpu_unit(&unit.resource, &unit.id) && unit.id.starts_with(unit.device());
        let offered = AllocatableResourcesResponse::decode(bytes).map(offered_units);
        assert!(offered.iter().flatten().all(is_unit), "only GPUs are offered: {offered:?}");
        let held = ListPodResourcesResponse::decode(bytes).map(held_units);
        let is_held = |units: &BTreeSet<DeviceUnit>| !units.is_empty() && units.iter().all(is_unit);
        assert!(held.iter().flat_map(BTreeMap::values).all(is_held), "a pod is listed for its GPUs: {held:?}");
        let units = held.iter().flat_map(BTreeMap::values).flatten();
        let ids: BTreeSet<&String> = units.clone().map(|unit| &unit.id).collect();
        let one_each = held.as_ref().is_ok_and(has_one_holder_each);
        assert!(held.is_err() || one_each == (ids.len() == units.count()), "each unit twice is noticed: {held:?}");
        offered.is_ok() || held.is_ok()
    });
}
