//! Fuzzes the nodes and pods from which the offer is made: owners of pods write their requests, and programs on the
//! nodes their labels and annotations.

use std::collections::BTreeMap;

use comity_fuzz::fuzz;
use k8s_openapi::api::core::v1 as core;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use crate::observe::functions::RdmaResource;
use crate::observe::health::FAULTS_ANNOTATION;
use crate::observe::partial_object::Partial;
use crate::observe::pending_pods::pending_pod::PendingPod;
use crate::observe::pod_facts::Names;
use crate::observe::wiring::WIRING_ANNOTATION;
use crate::observe::{MAX_DEVICES, TEST_SALT, WHOLE_MILLI};

/// What the watches of a small cluster may read.
#[derive(Deserialize)]
struct Objects {
    nodes: Vec<Value>,
    pods: Vec<Value>,
}

/// The objects as the watches read them, without those that they cannot read.
fn read<K>(objects: Vec<Value>) -> Vec<K>
where
    Partial<K>: DeserializeOwned,
{
    objects.into_iter().filter_map(|object| serde_json::from_value(object).ok()).map(|Partial(read)| read).collect()
}

fn node(name: &str, counts: Value, annotations: Value) -> Value {
    json!({
        "metadata": { "name": name, "annotations": annotations, "labels": {
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.family": "hopper",
            "nvidia.com/gpu.memory": "81559", "nvidia.com/gpu.count": "8", "nvidia.com/gpu.replicas": "1",
            "nvidia.com/gpu.sharing-strategy": "none", "nvidia.com/gpu.compute.major": "9",
            "nvidia.com/cuda.driver-version.full": "550.107.02", "nvidia.com/mig.strategy": "single",
        } },
        "spec": { "taints": [{ "key": "nvidia.com/gpu", "effect": "NoSchedule" }] },
        "status": { "allocatable": counts, "capacity": counts, "conditions": [
            { "type": "Ready", "status": "True" },
            { "type": "GpuXid", "status": "True", "message": "NVRM: Xid (PCI:0000:11:00): 79, pid=1" },
        ] },
    })
}

#[test]
fn nodes_and_pods() {
    let wiring = "{numa: {0: {cpu: '32', memory: 400Gi}}, rdma: {ib: 200}, gpus: [{count: 2, numa: 0, nvlink: a}]}";
    let faults = r#"[{"device": 2, "xid": 79, "message": "fell off"}]"#;
    let register = r#"[{"id":"GPU-0","count":20,"devmem":81559,"devcore":100,"type":"NVIDIA H100","health":true}]"#;
    let counted = node(
        "gpu-1",
        json!({ "cpu": "112", "memory": "2048Gi", "nvidia.com/gpu": "8", "nvidia.com/ib_vf": "4" }),
        json!({ WIRING_ANNOTATION: wiring, FAULTS_ANNOTATION: faults }),
    );
    let counts = json!({ "cpu": "8", "nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "7" });
    let mut mig = node("gpu-2", counts, json!({}));
    for (key, value) in [
        ("nvidia.com/mig.strategy", "mixed"),
        ("nvidia.com/gpu.replicas", "0"),
        ("nvidia.com/mig-1g.10gb.product", "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"),
    ] {
        mig["metadata"]["labels"][key] = json!(value);
    }
    let hami = node(
        "gpu-3",
        json!({ "cpu": "8500m", "nvidia.com/gpu": "20" }),
        json!({ "hami.io/node-nvidia-register": register, "hami.io/node-handshake": "Requesting_2026-11-24 10:11:12" }),
    );
    let pod = json!({
        "metadata": {
            "namespace": "research", "name": "p", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": { "comity.dev/lease": "lease-1" },
            "annotations": { "hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,20000,30:;" },
        },
        "spec": {
            "nodeName": "gpu-3", "overhead": { "cpu": "250m" },
            "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1e1", "nvidia.com/gpu": "1" } } }],
            "initContainers": [{ "name": "i", "restartPolicy": "Always", "resources": { "limits": { "memory": "1Gi" } } }],
        },
        "status": { "phase": "Running" },
    });
    let message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.";
    let terms =
        json!([{ "matchExpressions": [{ "key": "nvidia.com/gpu.memory", "operator": "Gt", "values": ["40000"] }] }]);
    let pending = json!({
        "metadata": { "namespace": "research", "name": "q", "uid": "v" },
        "spec": {
            "priority": 7, "nodeSelector": { "a": "b" },
            "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } } },
            "tolerations": [{ "key": "nvidia.com/gpu", "operator": "Exists" }],
            "containers": [{ "name": "c", "resources": { "requests": { "nvidia.com/gpu": "16" } } }],
        },
        "status": { "phase": "Pending", "conditions": [
            { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message },
        ] },
    });
    let valid = [(json!([counted]), json!([pending])), (json!([mig]), json!([])), (json!([hami]), json!([pod]))];
    let valid = valid.map(|(nodes, pods)| json!({ "nodes": nodes, "pods": pods }).to_string().into_bytes()).to_vec();
    let settings = InventorySettings {
        salt: TEST_SALT,
        reserve: LocalReserve { gpus_per_node: 1, cpu_milli: 1_000, memory_mib: 1_024 },
        rdma: vec![RdmaResource { resource: "nvidia.com/ib_vf".into(), network: "ib0".into(), gbits: 100 }],
    };
    fuzz!("cluster_objects", valid, move |bytes: &[u8]| {
        let Ok(Objects { nodes, pods }) = serde_json::from_slice(bytes) else { return false };
        let whole: Vec<Option<core::Pod>> = pods.iter().map(|pod| serde_json::from_value(pod.clone()).ok()).collect();
        let partial: Vec<Option<core::Pod>> =
            pods.into_iter().map(|pod| serde_json::from_value(pod).ok().map(|Partial(read)| read)).collect();
        let mut names = Names::default();
        for pair in partial.iter().zip(&whole) {
            if let (Some(partial), Some(whole)) = pair {
                assert_eq!(names.facts_of(partial), names.facts_of(whole), "a watch reads all that matters");
                assert_eq!(PendingPod::of(partial), PendingPod::of(whole), "a watch reads all that matters");
            }
        }
        let pods: Vec<PodFacts> = partial.iter().flatten().filter_map(|pod| names.facts_of(pod)).collect();
        let nodes: Vec<NodeFacts> = read::<core::Node>(nodes).iter().filter_map(NodeFacts::of).collect();
        for pending in partial.iter().flatten().filter_map(PendingPod::of) {
            let _ = nodes.iter().filter(|node| pending.terms.allow(node)).count();
        }
        let (topologies, dra) = (BTreeMap::new(), DraDevices::default());
        let built = build_nodes(&nodes, &pods, &Guests::default(), &topologies, &dra, &settings);
        for node in &built.nodes {
            assert!(node.devices.len() <= MAX_DEVICES, "{} devices", node.devices.len());
            let most = node.devices.iter().map(|device| device.local_use_milli).max();
            assert!(most.is_none_or(|most| most <= WHOLE_MILLI), "{most:?} thousandths of a device");
        }
        !built.nodes.is_empty()
    });
}
