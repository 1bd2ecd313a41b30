//! Nodes of a scenario, as agents send them to the broker.

use comity_core::Refusal;
use comity_core::inventory::{Device, DeviceWiring, Enforcement, Node, NodeMap, NodeWiring, Sharing};
use comity_policy::{GivenCluster, GivenNode, GivenSharing};
use comity_types::NodeId;

/// The idle, healthy nodes of a cluster, each with its entry in the scenario.
pub(crate) fn nodes(cluster: &GivenCluster) -> Result<Vec<(NodeId, &GivenNode)>, Refusal> {
    let mut nodes = Vec::new();
    for (entry, node) in cluster.nodes.iter().enumerate() {
        for number in 1..=node.count {
            // Entries and numbers in order: ids sort as the scenario lists them.
            nodes.push((NodeId::parse(&format!("node-{:03}-{number:04}", entry + 1), "node")?, node));
        }
    }
    Ok(nodes)
}

/// An idle, healthy node.
pub(crate) fn idle_node(given: &GivenNode) -> Node {
    let device = Device {
        product_name: given.device.product.clone(),
        architecture: given.device.architecture.clone(),
        memory_mib: given.device.memory_mib,
        cuda_compute_capability: given.device.compute_capability.clone(),
        driver_version: given.device.driver_version.clone(),
        sharing: match given.sharing {
            GivenSharing::Exclusive => Sharing::Exclusive,
            GivenSharing::TimeSlicing { replicas } => Sharing::TimeSlicing { replicas },
            GivenSharing::Mps { shares } => Sharing::Mps { shares },
            GivenSharing::Fractional => Sharing::Fractional { step_milli: 1 },
        },
        healthy: true,
        fault: None,
        local_use_milli: 0,
        resource_name: "nvidia.com/gpu".to_owned(),
        wiring: DeviceWiring::default(),
    };
    let count = usize::try_from(given.gpus).unwrap_or(usize::MAX);
    Node {
        cpu_milli: given.cpu_milli,
        memory_mib: given.memory_mib,
        local_cpu_milli: 0,
        local_memory_mib: 0,
        devices: vec![device; count].into(),
        schedulable: true,
        ready: true,
        wiring: NodeWiring::default(),
        enforces: Enforcement::default(),
    }
}

/// All nodes of a cluster, idle and healthy.
pub(crate) fn idle_nodes(cluster: &GivenCluster) -> Result<NodeMap, Refusal> {
    Ok(nodes(cluster)?.into_iter().map(|(id, given)| (id, idle_node(given))).collect())
}
