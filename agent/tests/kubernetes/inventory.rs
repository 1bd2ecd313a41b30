//! The cluster's offer, watched on a real API server.

use std::sync::Arc;

use comity_agent::observe::{self, InventorySettings, LocalReserve};
use comity_agent_delivery::DonorDelivery as _;
use comity_agent_model::lent::{LentLease, NodeMark, PodsOf};
use comity_agent_model::node_id::NodeSalt;
use comity_agent_model::nodes::Nodes;
use comity_proto::v1::Node;
use comity_types::LeaseId;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use tokio::sync::watch;

use crate::cluster::{Cluster, PATIENCE, lease, pod};

pub(crate) async fn nodes_pods_and_leases_become_an_offer(cluster: &Cluster) {
    let salt = NodeSalt::new([9; 32]);
    let lent = LentLease {
        pods: PodsOf::Namespace,
        mark: NodeMark::Resource,
        resource: "nvidia.com/gpu".to_owned(),
        is_wanted: true,
        nodes: [(salt.node_id("gpu-1"), [("nvidia.com/gpu".to_owned(), 3)].into())].into(),
    };
    let inventory = observe::kubernetes::observe(
        &cluster.agent,
        InventorySettings { salt: salt.clone(), reserve: LocalReserve::default(), rdma: Vec::new() },
        watch::channel(Some(Arc::new([(LeaseId(1), lent)].into()))).1,
    );
    let nodes = inventory.nodes();

    wait_for(&nodes, "both GPU nodes, nothing in use", |nodes| {
        nodes.len() == 2 && nodes.iter().all(|node| node.schedulable && in_use(node) == 0)
    })
    .await;
    let first = nodes.borrow().clone().unwrap();
    assert!(first.iter().all(|node| node.numa.is_empty()), "nothing tells of NUMA nodes");
    let zone = |number: u32| {
        serde_json::json!({ "name": format!("node-{number}"), "type": "Node", "resources": [
            { "name": "cpu", "capacity": "32", "allocatable": "32", "available": "32" },
            { "name": "memory", "capacity": "64Gi", "allocatable": "64Gi", "available": "64Gi" },
            { "name": "nvidia.com/gpu", "capacity": "4", "allocatable": "4", "available": "4" },
        ] })
    };
    let topology = serde_json::json!({
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
        "metadata": { "name": "gpu-1" }, "topologyPolicies": ["SingleNUMANodePodLevel"], "zones": [zone(0), zone(1)],
    });
    cluster.plane().kubectl_with_input(&["apply", "-f", "-"], &topology.to_string()).await.unwrap();
    wait_for(&nodes, "the NUMA nodes of gpu-1", |nodes| {
        let gpu_1 = nodes.iter().find(|node| node.id == salt.node_id("gpu-1"));
        gpu_1.is_some_and(|node| node.numa.len() == 2 && node.devices[4].numa_node == Some(1))
    })
    .await;
    assert!(first.iter().any(|node| node.id == salt.node_id("gpu-1")));
    let device = &first[0].devices[0];
    assert_eq!(
        (device.product_name.as_str(), device.memory_mib, first[0].devices.len()),
        ("NVIDIA-H100-80GB-HBM3", 81_559, 8)
    );

    let research = Api::<Pod>::namespaced(cluster.admin(), "research");
    research.create(&PostParams::default(), &pod("training", "nvidia.com/gpu", 2)).await.unwrap();
    wait_for(&nodes, "two GPUs in local use", |nodes| nodes.iter().map(in_use).sum::<u32>() == 2_000).await;

    // A pod in a lease's namespace runs on the same nodes and is no local use: only the end of the local pod changes
    // it.
    let donor = cluster.donor();
    let lease = lease("lease-1");
    donor.prepare(&lease).await.unwrap();
    let tenant = cluster.tenant(&donor.credential(&lease).await.unwrap());
    let lent = Api::<Pod>::default_namespaced(tenant);
    lent.create(&PostParams::default(), &pod("lent", "nvidia.com/gpu", 3)).await.unwrap();
    crate::cluster::eventually("the lent pod runs on a node", || async {
        lent.get("lent").await.unwrap().spec.unwrap().node_name.is_some()
    })
    .await;
    research.delete("training", &DeleteParams::default().grace_period(0)).await.unwrap();
    wait_for(&nodes, "no local use beside the lease", |nodes| nodes.iter().map(in_use).sum::<u32>() == 0).await;

    cluster.plane().kubectl(&["cordon", "gpu-2"]).await.unwrap();
    wait_for(&nodes, "a cordoned node", |nodes| {
        nodes.iter().any(|node| node.id == salt.node_id("gpu-2") && !node.schedulable)
    })
    .await;
    cluster.plane().kubectl(&["uncordon", "gpu-2"]).await.unwrap();
    donor.remove(LeaseId(1)).await.unwrap();
}

fn in_use(node: &Node) -> u32 {
    node.devices.iter().map(|device| device.local_use_milli).sum()
}

async fn wait_for(nodes: &watch::Receiver<Nodes>, what: &str, holds: impl Fn(&[Node]) -> bool) {
    let mut nodes = nodes.clone();
    let seen = nodes.wait_for(|nodes| nodes.as_ref().is_some_and(|nodes| holds(nodes)));
    assert!(tokio::time::timeout(PATIENCE, seen).await.is_ok(), "not seen: {what}");
}
