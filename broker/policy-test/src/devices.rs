//! Nodes and requests of a scenario, as agents and users send them to the broker.

use comity_core::demand::{DeviceChoice, GpuDemand, Isolation, Preemptible, RequestSpec, Share, Topology};
use comity_core::inventory::{Device, DeviceWiring, Enforcement, Node, NodeMap, NodeWiring, Sharing};
use comity_core::{Millis, Refusal};
use comity_policy::{AskedRequest, AskedShare, GivenCluster, GivenNode, GivenSharing};
use comity_types::{ClassName, ClusterId, NodeId, PriorityName, TenantId};

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

/// The request as the API converts it.
pub(crate) fn spec(asked: &AskedRequest) -> Result<RequestSpec, Refusal> {
    let clusters = |names: &std::collections::BTreeSet<String>, field: &str| {
        let parsed: Result<Vec<ClusterId>, _> = names.iter().map(|name| ClusterId::parse(name, field)).collect();
        parsed
    };
    let devices = match (&asked.class, &asked.selector) {
        (Some(class), _) => DeviceChoice::Class(ClassName::parse(class, "class")?),
        (None, selector) => DeviceChoice::Selector(selector.clone().unwrap_or_default()),
    };
    let preemptible = asked.preemptible.map(|terms| Preemptible {
        grace: Millis(terms.grace_ms),
        checkpoint: terms.checkpoint,
        same_gpu_type: false,
    });
    Ok(RequestSpec {
        tenant: TenantId::parse(&asked.tenant, "tenant")?,
        origin: ClusterId::parse(&asked.origin, "origin")?,
        gpus: GpuDemand {
            devices,
            share: match asked.share {
                AskedShare::Whole => Share::Whole,
                AskedShare::Milli(milli) => Share::Milli(milli),
            },
            count: asked.count,
            cpu_milli_per_gpu: 0,
            memory_mib_per_gpu: 0,
            isolation: Isolation::None,
            gpu_type: None,
        },
        topology: Topology { same_node: asked.same_node, whole_node: asked.whole_node, ..Topology::default() },
        members: None,
        spread_donors: false,
        data: Vec::new(),
        duration: Millis(asked.duration_ms),
        allow_donors: clusters(&asked.donors, "donors")?,
        deny_donors: clusters(&asked.not_donors, "notDonors")?,
        delivery: asked.delivery,
        target_namespace: "comity-leases".to_owned(),
        purpose: String::new(),
        priority: asked.priority.as_ref().map(|name| PriorityName::parse(name, "priority")).transpose()?,
        not_before: None,
        start_by: None,
        preemptible,
        release_idle: None,
        checkpoint_secret: None,
        template: None,
        submitted_by: String::new(),
    })
}
