#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use comity_agent_model::lent::{LentLease, NodeMark, PodsOf};
use k8s_openapi::api::core::v1 as core;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::observe::partial_object::Partial;
use crate::observe::pod_facts::Names;
use crate::observe::{LocalReserve, TEST_SALT};

mod cut_devices;
mod feature_discovery;
mod hami_nodes;
mod other_vendors;
mod virtual_functions;

/// A node as the API server sends it, with eight H100 unless the test says otherwise.
fn raw_node(name: &str) -> Value {
    json!({
        "metadata": { "name": name, "labels": {
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
            "nvidia.com/gpu.family": "hopper",
            "nvidia.com/gpu.memory": "81559",
            "nvidia.com/gpu.count": "8",
            "nvidia.com/gpu.replicas": "1",
            "nvidia.com/gpu.sharing-strategy": "none",
            "nvidia.com/gpu.compute.major": "9",
            "nvidia.com/gpu.compute.minor": "0",
            "nvidia.com/cuda.driver-version.full": "550.107.02",
            "nvidia.com/mig.strategy": "single",
        } },
        "status": {
            "allocatable": { "cpu": "112", "memory": "2048Gi", "nvidia.com/gpu": "8" },
            "capacity": { "cpu": "112", "memory": "2048Gi", "nvidia.com/gpu": "8" },
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    })
}

fn set_counts(node: &mut Value, counts: &[(&str, &str)]) {
    for list in ["allocatable", "capacity"] {
        node["status"][list].as_object_mut().unwrap().retain(|name, _| !name.contains('/'));
        for (name, count) in counts {
            node["status"][list][name] = json!(count);
        }
    }
}

fn set_labels(node: &mut Value, labels: &[(&str, &str)]) {
    for (key, value) in labels {
        node["metadata"]["labels"][format!("nvidia.com/{key}")] = json!(value);
    }
}

fn raw_pod(namespace: &str, name: &str, node: &str, resource: &str, count: u32) -> Value {
    json!({
        "metadata": { "namespace": namespace, "name": name },
        "spec": { "nodeName": node, "containers": [{ "name": "c", "resources": {
            "requests": { "cpu": "2", "memory": "1Gi", resource: count.to_string() },
        } }] },
        "status": { "phase": "Running" },
    })
}

/// As the watches read it.
fn read<K>(object: &Value) -> K
where
    Partial<K>: serde::de::DeserializeOwned,
{
    let Partial(object) = serde_json::from_value(object.clone()).unwrap();
    object
}

/// lease-1, with a namespace and all devices of gpu-1.
fn one_lease() -> Guests {
    let amounts = ["nvidia.com/gpu", "nvidia.com/ib_vf"].map(|name| (name.to_owned(), 8));
    let rest = [("cpu".to_owned(), 112_000), ("memory".to_owned(), 2_048 << 30)];
    let lease = LentLease {
        pods: PodsOf::Namespace,
        mark: NodeMark::Nothing,
        resource: "nvidia.com/gpu".to_owned(),
        is_wanted: true,
        nodes: BTreeMap::from([(TEST_SALT.node_id("gpu-1"), amounts.into_iter().chain(rest).collect())]),
    };
    Guests {
        lease_namespaces: BTreeMap::from([("comity-lease-1".to_owned(), LeaseId(1))]),
        leases: Arc::new(BTreeMap::from([(LeaseId(1), lease)])),
        ..Guests::default()
    }
}

fn look_with(nodes: &[Value], pods: &[Value], guests: &Guests, reserve: &LocalReserve) -> BuiltInventory {
    let nodes: Vec<NodeFacts> = nodes.iter().filter_map(|node| NodeFacts::of(&read::<core::Node>(node))).collect();
    let mut names = Names::default();
    let pods: Vec<PodFacts> = pods.iter().filter_map(|pod| names.facts_of(&read::<core::Pod>(pod))).collect();
    let settings = InventorySettings { salt: TEST_SALT, reserve: *reserve, rdma: Vec::new() };
    build_nodes(&nodes, &pods, guests, &BTreeMap::new(), &DraDevices::default(), &settings)
}

fn build(nodes: &[Value], pods: &[Value]) -> Vec<Node> {
    look_with(nodes, pods, &one_lease(), &LocalReserve::default()).nodes
}

fn local_use(node: &Node) -> Vec<u32> {
    node.devices.iter().map(|device| device.local_use_milli).collect()
}

fn mode(device: &Device) -> &sharing::Mode {
    device.sharing.as_ref().and_then(|sharing| sharing.mode.as_ref()).unwrap()
}

#[test]
fn gpu_feature_discovery_describes_the_devices() {
    let nodes = build(&[raw_node("gpu-1")], &[]);
    let node = &nodes[0];
    assert_eq!(
        (node.id.as_str(), node.cpu_milli, node.memory_mib),
        (TEST_SALT.node_id("gpu-1").as_str(), 112_000, 2_048 * 1_024)
    );
    assert!(node.schedulable);
    let indexes: Vec<u32> = node.devices.iter().map(|device| device.index).collect();
    assert_eq!(indexes, [0, 1, 2, 3, 4, 5, 6, 7]);
    let device = &node.devices[7];
    assert_eq!(device.product_name, "NVIDIA-H100-80GB-HBM3");
    assert_eq!((device.architecture.as_str(), device.cuda_compute_capability.as_str()), ("Hopper", "9.0"));
    assert_eq!((device.driver_version.as_str(), device.memory_mib), ("550.107.02", 81_559));
    assert_eq!(device.resource_name, "nvidia.com/gpu");
    assert!(matches!(mode(device), sharing::Mode::Exclusive(_)) && device.healthy);
}

#[test]
fn pods_of_leases_are_not_local_use_and_all_others_are() {
    let pods = [
        raw_pod("research", "a", "gpu-1", "nvidia.com/gpu", 2),
        raw_pod("comity-lease-1", "b", "gpu-1", "nvidia.com/gpu", 3),
        // The name alone does not make a lease's namespace: its label does.
        raw_pod("comity-lease-2", "c", "gpu-1", "nvidia.com/gpu", 1),
        raw_pod("research", "d", "gpu-2", "nvidia.com/gpu", 8),
    ];
    let node = &build(&[raw_node("gpu-1")], &pods)[0];
    assert_eq!(local_use(node), [0, 0, 0, 0, 0, 1_000, 1_000, 1_000]);
    assert_eq!((node.local_cpu_milli, node.local_memory_mib), (4_000, 2_048));
}

#[test]
fn pods_beyond_their_lease_are_local_use_only_of_capacity_that_nobody_leased() {
    for (leased_to_another, local) in [(0, 3), (1, 2), (2, 1), (3, 0)] {
        let mut guests = one_lease();
        let leases = Arc::make_mut(&mut guests.leases);
        let part = |gpus: u64| {
            let amounts = BTreeMap::from([("nvidia.com/gpu".to_owned(), gpus), ("cpu".to_owned(), gpus * 1_000)]);
            BTreeMap::from([(TEST_SALT.node_id("gpu-1"), amounts)])
        };
        leases.get_mut(&LeaseId(1)).unwrap().nodes = part(4);
        let other = LentLease { nodes: part(leased_to_another), ..leases[&LeaseId(1)].clone() };
        leases.insert(LeaseId(2), other);
        let pods = [
            raw_pod("research", "own", "gpu-1", "nvidia.com/gpu", 1),
            raw_pod("comity-lease-1", "greedy", "gpu-1", "nvidia.com/gpu", 7),
        ];
        let node = &look_with(&[raw_node("gpu-1")], &pods, &guests, &LocalReserve::default()).nodes[0];
        let used = local_use(node).iter().filter(|milli| **milli > 0).count();
        assert_eq!(used, 1 + local, "{leased_to_another} of 8 GPUs are another lease's");
    }
}

#[test]
fn finished_pods_hold_nothing_and_terminating_ones_still_do() {
    let mut finished = raw_pod("research", "a", "gpu-1", "nvidia.com/gpu", 8);
    finished["status"]["phase"] = json!("Succeeded");
    let mut terminating = raw_pod("research", "b", "gpu-1", "nvidia.com/gpu", 1);
    terminating["metadata"]["deletionTimestamp"] = json!("2026-11-20T10:00:00Z");
    let mut nominated = raw_pod("research", "c", "", "nvidia.com/gpu", 1);
    nominated["spec"].as_object_mut().unwrap().remove("nodeName");
    nominated["status"] = json!({ "phase": "Pending", "nominatedNodeName": "gpu-1" });
    let mut waiting = raw_pod("research", "d", "", "nvidia.com/gpu", 4);
    waiting["spec"].as_object_mut().unwrap().remove("nodeName");
    let nodes = build(&[raw_node("gpu-1")], &[finished, terminating, nominated, waiting]);
    assert_eq!(local_use(&nodes[0]), [0, 0, 0, 0, 0, 0, 1_000, 1_000]);
}

#[test]
fn time_slices_are_parts_of_few_devices() {
    let mut node = raw_node("gpu-1");
    set_counts(&mut node, &[("nvidia.com/gpu", "8")]);
    set_labels(
        &mut node,
        &[
            ("gpu.sharing-strategy", "time-slicing"),
            ("gpu.replicas", "4"),
            ("gpu.count", "2"),
            ("gpu.product", "NVIDIA-L40S-SHARED"),
        ],
    );
    let nodes = build(&[node], &[raw_pod("research", "a", "gpu-1", "nvidia.com/gpu", 5)]);
    assert_eq!(local_use(&nodes[0]), [250, 1_000]);
    assert_eq!(nodes[0].devices[0].product_name, "NVIDIA-L40S");
    assert_eq!(*mode(&nodes[0].devices[0]), sharing::Mode::TimeSlicing(sharing::TimeSlicing { replicas: 4 }));
}

#[test]
fn renamed_shared_gpus_keep_their_resource_name() {
    let mut node = raw_node("gpu-1");
    set_counts(&mut node, &[("nvidia.com/gpu.shared", "20"), ("nvidia.com/gpu", "0")]);
    set_labels(&mut node, &[("gpu.sharing-strategy", "mps"), ("gpu.replicas", "10"), ("gpu.count", "2")]);
    let nodes = build(&[node], &[]);
    assert_eq!(nodes[0].devices.len(), 2);
    assert_eq!(nodes[0].devices[0].resource_name, "nvidia.com/gpu.shared");
    assert_eq!(*mode(&nodes[0].devices[0]), sharing::Mode::Mps(sharing::Mps { shares: 10 }));
}

#[test]
fn mig_single_counts_instances_by_the_ordinary_name() {
    let mut node = raw_node("gpu-1");
    set_counts(&mut node, &[("nvidia.com/gpu", "9")]);
    set_labels(
        &mut node,
        &[("gpu.product", "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"), ("gpu.memory", "4864"), ("gpu.count", "9")],
    );
    let nodes = build(&[node], &[raw_pod("research", "a", "gpu-1", "nvidia.com/gpu", 1)]);
    let devices = &nodes[0].devices;
    assert_eq!(devices.len(), 2);
    assert_eq!(devices[0].product_name, "NVIDIA-A100-SXM4-40GB");
    assert_eq!(devices[0].sharing, Some(mig_sharing("1g.5gb", 7)));
    assert_eq!(devices[1].sharing, Some(mig_sharing("1g.5gb", 2)));
    assert_eq!((devices[0].local_use_milli, devices[1].local_use_milli), (0, 500));
    assert_eq!(devices[0].resource_name, "nvidia.com/gpu");
}

#[test]
fn mig_mixed_keeps_profiles_apart() {
    let mut node = raw_node("gpu-1");
    set_counts(
        &mut node,
        &[
            ("nvidia.com/gpu", "0"),
            ("nvidia.com/mig-1g.10gb", "3"),
            ("nvidia.com/mig-1g.10gb.me", "1"),
            ("nvidia.com/mig-4g.40gb", "2"),
        ],
    );
    set_labels(
        &mut node,
        &[
            ("mig.strategy", "mixed"),
            ("gpu.replicas", "0"),
            ("mig-1g.10gb.product", "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"),
            ("mig-1g.10gb.me.product", "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb.me"),
            ("mig-4g.40gb.memory", "40192"),
            ("mig-4g.40gb.product", "NVIDIA-H100-80GB-HBM3-MIG-4g.40gb"),
        ],
    );
    let nodes = build(&[node], &[raw_pod("research", "a", "gpu-1", "nvidia.com/mig-1g.10gb", 1)]);
    let devices = &nodes[0].devices;
    let seen: Vec<_> = devices.iter().map(|device| (device.sharing.clone().unwrap(), device.local_use_milli)).collect();
    assert_eq!(
        seen,
        [
            (mig_sharing("1g.10gb", 3), 333),
            (mig_sharing("1g.10gb+me", 1), 0),
            (mig_sharing("4g.40gb", 1), 0),
            (mig_sharing("4g.40gb", 1), 0)
        ]
    );
    // The broker adds the profile to this name.
    assert!(devices.iter().all(|device| device.resource_name == "nvidia.com/mig"));
    assert_eq!((devices[3].memory_mib, devices[3].product_name.as_str()), (40_192, "NVIDIA-H100-80GB-HBM3"));
}

#[test]
fn unhealthy_devices_are_shown_and_not_allocatable() {
    let mut node = raw_node("gpu-1");
    node["status"]["allocatable"]["nvidia.com/gpu"] = json!("6");
    let nodes = build(&[node], &[raw_pod("research", "a", "gpu-1", "nvidia.com/gpu", 1)]);
    let healthy: Vec<bool> = nodes[0].devices.iter().map(|device| device.healthy).collect();
    assert_eq!(healthy, [true, true, true, true, true, true, false, false]);
    assert_eq!(local_use(&nodes[0]), [0, 0, 0, 0, 0, 1_000, 0, 0]);
}

#[test]
fn cordoned_unready_and_tainted_nodes_take_nothing_new() {
    let cordoned = {
        let mut node = raw_node("a");
        node["spec"] = json!({ "unschedulable": true });
        node
    };
    let unready = {
        let mut node = raw_node("b");
        node["status"]["conditions"][0]["status"] = json!("Unknown");
        node
    };
    let tainted = {
        let mut node = raw_node("c");
        node["spec"] = json!({ "taints": [{ "key": "dedicated", "effect": "NoSchedule" }] });
        node
    };
    for node in [cordoned, unready, tainted] {
        assert!(!build(std::slice::from_ref(&node), &[])[0].schedulable, "{node}");
    }
    for taint in [
        json!({ "key": "nvidia.com/gpu", "effect": "NoSchedule" }),
        json!({ "key": "x", "effect": "PreferNoSchedule" }),
    ] {
        let mut node = raw_node("d");
        node["spec"] = json!({ "taints": [taint] });
        assert!(build(&[node], &[])[0].schedulable);
    }
}

#[test]
fn borrowed_nodes_and_nodes_without_devices_are_not_offered() {
    let mut borrowed = raw_node("liqo-node");
    borrowed["metadata"]["labels"]["liqo.io/type"] = json!("virtual-node");
    let mut plain = raw_node("cpu-1");
    set_counts(&mut plain, &[]);
    assert!(build(&[borrowed, plain], &[]).is_empty());
}

#[test]
fn devices_of_unknown_kind_are_left_out_with_a_reason() {
    let mut unlabelled = raw_node("a");
    unlabelled["metadata"]["labels"] = json!({});
    let mut hami = raw_node("b");
    hami["metadata"]["annotations"] = json!({ "hami.io/node-nvidia-register": "[]" });
    let mut invalid = raw_node("c");
    set_labels(&mut invalid, &[("gpu.product", "NVIDIA-A100-SXM4-40GB-MIG-INVALID")]);
    let mut changing = raw_node("d");
    set_labels(&mut changing, &[("mig.config.state", "pending")]);
    let mut wild = raw_node("e");
    set_counts(&mut wild, &[("nvidia.com/gpu", "800")]);
    set_labels(
        &mut wild,
        &[
            ("gpu.sharing-strategy", "time-slicing"),
            ("gpu.replicas", "100"),
            ("gpu.product", "NVIDIA-H100-80GB-HBM3-SHARED"),
        ],
    );
    let built =
        look_with(&[unlabelled, hami, invalid, changing, wild], &[], &Guests::default(), &LocalReserve::default());
    assert!(built.nodes.is_empty());
    let reasons: Vec<_> = built.not_offered.iter().map(|left| left.reason.as_str()).collect();
    for (reason, part) in
        reasons.iter().zip(["GPU Feature Discovery", "HAMi", "invalid MIG layout", "pending", "100 replicas"])
    {
        assert!(reason.contains(part), "{reason}");
    }
    assert_eq!(reasons.len(), 5);
}

#[test]
fn the_reserve_is_local_use_that_local_work_may_already_fill() {
    let reserve = LocalReserve { gpus_per_node: 2, cpu_milli: 8_000, memory_mib: 512 };
    let pods = [raw_pod("research", "a", "gpu-1", "nvidia.com/gpu", 1)];
    let built = look_with(&[raw_node("gpu-1")], &pods, &Guests::default(), &reserve);
    assert_eq!(local_use(&built.nodes[0]), [0, 0, 0, 0, 0, 0, 1_000, 1_000]);
    assert_eq!((built.nodes[0].local_cpu_milli, built.nodes[0].local_memory_mib), (8_000, 1_024));
}

proptest! {
    /// For any pods: no device is used by more than a whole one, and total use equals the requests, as far as they fit.
    #[test]
    fn local_use_is_bounded_and_complete(counts in proptest::collection::vec(0_u32..5, 0..6)) {
        let pods: Vec<Value> = counts.iter().enumerate().map(|(i, count)| raw_pod("research", &i.to_string(), "gpu-1", "nvidia.com/gpu", *count)).collect();
        let nodes = build(&[raw_node("gpu-1")], &pods);
        let used = local_use(&nodes[0]);
        prop_assert!(used.iter().all(|milli| *milli <= 1_000));
        prop_assert_eq!(used.iter().sum::<u32>(), counts.iter().sum::<u32>().min(8) * 1_000);
    }
}

#[test]
fn numa_nodes_come_from_topology_objects_unless_the_owner_wrote_them() {
    let zone = |number: u32| {
        json!({ "name": format!("node-{number}"), "type": "Node", "resources": [
            { "name": "cpu", "capacity": "56", "allocatable": "56", "available": "56" },
            { "name": "memory", "capacity": "1Ti", "allocatable": "1Ti", "available": "1Ti" },
            { "name": "nvidia.com/gpu", "capacity": "4", "allocatable": "4", "available": "4" },
        ] })
    };
    let topology = NodeTopology::read(&json!({
        "attributes": [{ "name": "topologyManagerPolicy", "value": "restricted" }], "zones": [zone(0), zone(1)],
    }));
    let topology = topology.unwrap();
    let topologies = BTreeMap::from([("a".to_owned(), topology)]);
    let with = |wiring: Option<&str>| {
        let mut raw = raw_node("a");
        raw["metadata"]["annotations"] = json!(
            wiring.map(|text| [(wiring::WIRING_ANNOTATION, text)]).into_iter().flatten().collect::<BTreeMap<_, _>>()
        );
        let facts = [NodeFacts::of(&read::<core::Node>(&raw)).unwrap()];
        let settings = InventorySettings { salt: TEST_SALT, reserve: LocalReserve::default(), rdma: Vec::new() };
        build_nodes(&facts, &[], &Guests::default(), &topologies, &DraDevices::default(), &settings).nodes.remove(0)
    };
    let wiring = with(None);
    assert_eq!((wiring.numa.len(), wiring.numa[1].cpu_milli), (2, 56_000));
    assert_eq!((wiring.devices[3].numa_node, wiring.devices[4].numa_node), (Some(0), Some(1)));
    // The objects fill the fields that the owner omits.
    let beside = with(Some("{rdma: {ib: 400}}"));
    assert_eq!((beside.numa.len(), beside.rdma.len()), (2, 1));
    let own = with(Some("{numa: {0: {cpu: '100', memory: 1Ti}}}"));
    assert_eq!((own.numa.len(), own.devices[4].numa_node), (1, None));
    let numa = Some(Enforcement { devices: false, numa: true });
    assert_eq!([&wiring, &beside, &own].map(|node| node.enforces), [numa; 3], "the kubelet binds them");
}
