//! The stored fields of a Kubernetes node: few, because there may be thousands of nodes.

use std::collections::BTreeMap;

use comity_agent_kubernetes::gpu_resource::{self, LEASE_RESOURCE_PREFIX};
use comity_agent_kubernetes::pod_request::{Amounts, CPU};
use comity_policy::quantity;
use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{health, wiring};

/// Label families that describe GPUs, and the labels of leases.
const LABEL_PREFIXES: [&str; 4] = ["nvidia.com/", "amd.com/gpu.", "gpu.intel.com/", LEASE_RESOURCE_PREFIX];
/// HAMi's device plugin announces itself so; its `nvidia.com/gpu` counts splits, not devices.
const HAMI_ANNOTATION: &str = "hami.io/node-nvidia-register";

/// The fields that the inventory needs of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeFacts {
    /// Name in the cluster; never leaves it.
    pub(crate) name: String,
    /// Labels that describe GPUs, and those of leases.
    pub(crate) labels: BTreeMap<String, String>,
    /// Allocatable amounts.
    pub(crate) allocatable: Amounts,
    /// Capacity, healthy or not; extended resources only.
    pub(crate) capacity: Amounts,
    /// Ready, not cordoned, and without a taint that keeps tenants away.
    pub(crate) schedulable: bool,
    /// Its kubelet reports, or did until just now.
    pub(crate) ready: bool,
    /// Represents another cluster, whose capacity this cluster cannot lend.
    pub(crate) is_virtual: bool,
    /// HAMi shares this node's GPUs.
    pub(crate) is_hami: bool,
    /// The owner's annotation about its wiring; empty: none.
    pub(crate) wiring: String,
    /// The health agent's annotation on its devices; empty: none.
    pub(crate) unhealthy: String,
}

impl NodeFacts {
    /// The facts of a node; `None` for an object without a name, which the API server never sends.
    pub(crate) fn of(node: &Node) -> Option<Self> {
        let labels = node.metadata.labels.as_ref();
        let label = |key: &str| labels.and_then(|labels| labels.get(key)).map(String::as_str);
        let annotations = node.metadata.annotations.as_ref();
        let annotation = |key: &str| annotations.and_then(|all| all.get(key)).cloned().unwrap_or_default();
        let status = node.status.as_ref();
        let read = |list: Option<&BTreeMap<String, Quantity>>| list.map(amounts).unwrap_or_default();
        let allocatable = read(status.and_then(|status| status.allocatable.as_ref()));
        let mut capacity = read(status.and_then(|status| status.capacity.as_ref()));
        capacity.retain(|name, _| gpu_resource::is_extended(name));
        Some(Self {
            name: node.metadata.name.clone()?,
            labels: labels
                .into_iter()
                .flatten()
                .filter(|(key, _)| LABEL_PREFIXES.iter().any(|prefix| key.starts_with(prefix)))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
            schedulable: is_schedulable(node, &capacity),
            is_virtual: label("type") == Some("virtual-kubelet") || label("liqo.io/type") == Some("virtual-node"),
            is_hami: node.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(HAMI_ANNOTATION)),
            wiring: annotation(wiring::WIRING_ANNOTATION),
            unhealthy: annotation(health::FAULTS_ANNOTATION),
            ready: is_ready(node),
            allocatable,
            capacity,
        })
    }
}

fn amounts(list: &BTreeMap<String, Quantity>) -> Amounts {
    list.iter()
        .filter_map(|(name, Quantity(text))| {
            let amount = if name == CPU { quantity::milli_floor(text) } else { quantity::ones_floor(text) };
            Some((name.clone(), amount?))
        })
        .collect()
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn is_schedulable(node: &Node, capacity: &Amounts) -> bool {
    let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    is_ready(node) && !cordoned && !taints.into_iter().flatten().any(|taint| keeps_tenants_away(taint, capacity))
}

/// A taint named after a resource of the node keeps away only pods that do not ask for it: the admission plugin
/// ExtendedResourceToleration, or the tenant, adds the toleration.
fn keeps_tenants_away(taint: &Taint, capacity: &Amounts) -> bool {
    matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute") && !capacity.contains_key(&taint.key)
}
