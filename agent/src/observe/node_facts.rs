//! The stored fields of a Kubernetes node: few, because there may be thousands of nodes.

use std::collections::BTreeMap;

use comity_agent_kubernetes::gpu_resource::{self, LEASE_RESOURCE_PREFIX};
use comity_agent_kubernetes::pod_request::{Amounts, CPU};
use comity_policy::quantity;
use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::hami::hami_annotations::HamiAnnotations;
use super::health::node_xid::{self, NodeXid};
use super::{health, wiring};
use crate::mig::mig_book::NodeBook;
use crate::mig::mig_node::{BEFORE_ANNOTATION, BegunChange, CHANGE_ANNOTATION, CUT_LABEL, MigNode};

/// Label families that describe GPUs, and the labels of leases.
const LABEL_PREFIXES: [&str; 4] = ["nvidia.com/", "amd.com/gpu.", "gpu.intel.com/", LEASE_RESOURCE_PREFIX];

/// The scheduler takes a cordoned node for one with this taint.
const CORDONED: &str = "node.kubernetes.io/unschedulable";

/// The fields that the inventory needs of one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NodeFacts {
    /// Name in the cluster; never leaves it.
    pub(crate) name: String,
    /// Labels that describe GPUs, and those of leases.
    pub(crate) labels: BTreeMap<String, String>,
    /// All other labels of a node with GPUs: pods may select it by them.
    pub(crate) other_labels: BTreeMap<String, String>,
    /// Taints of a node with GPUs, that of a cordoned node included.
    pub(crate) taints: Vec<Taint>,
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
    /// HAMi's annotations, if it shares this node's GPUs.
    pub(crate) hami: Option<HamiAnnotations>,
    /// The owner's annotation about its wiring; empty: none.
    pub(crate) wiring: String,
    /// The health agent's annotation on its devices; empty: none.
    pub(crate) unhealthy: String,
    /// Errors of GPUs in its conditions.
    pub(crate) xids: Vec<NodeXid>,
    /// Its owner lets the agent cut its MIG devices.
    pub(crate) may_cut: bool,
    /// Its MIG configuration before the agent changed it; empty: none.
    pub(crate) mig_before: String,
    /// The change of its MIG configuration that is under way.
    pub(crate) mig_change: Option<BegunChange>,
    /// What is known of its MIG devices, if the agent may cut them.
    pub(crate) layouts: Option<NodeBook>,
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
        let has_gpus = capacity.keys().any(|name| gpu_resource::counts_gpus(name));
        let (own, other): (BTreeMap<_, _>, BTreeMap<_, _>) = labels
            .into_iter()
            .flatten()
            .map(|(key, value)| (key.clone(), value.clone()))
            .partition(|(key, _)| LABEL_PREFIXES.iter().any(|prefix| key.starts_with(prefix)));
        Some(Self {
            name: node.metadata.name.clone()?,
            labels: own,
            other_labels: if has_gpus { other } else { BTreeMap::new() },
            taints: if has_gpus { taints(node) } else { Vec::new() },
            schedulable: is_schedulable(node, &capacity),
            is_virtual: label("type") == Some("virtual-kubelet") || label("liqo.io/type") == Some("virtual-node"),
            hami: HamiAnnotations::read(annotation),
            wiring: annotation(wiring::WIRING_ANNOTATION),
            unhealthy: annotation(health::FAULTS_ANNOTATION),
            xids: node_xid::of_conditions(status.and_then(|status| status.conditions.as_deref()).unwrap_or_default()),
            may_cut: label(CUT_LABEL) == Some("true"),
            mig_before: annotation(BEFORE_ANNOTATION),
            mig_change: serde_json::from_str(&annotation(CHANGE_ANNOTATION)).ok(),
            layouts: None,
            ready: is_ready(node),
            allocatable,
            capacity,
        })
    }
}

impl NodeFacts {
    /// Whether device plugins count its GPUs. HAMi's count places of containers.
    pub(crate) fn has_counted_gpus(&self) -> bool {
        self.hami.is_none() && self.capacity.keys().any(|name| gpu_resource::counts_gpus(name))
    }

    /// The value of a label; of a node without GPUs only those that describe them are known.
    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).or_else(|| self.other_labels.get(key)).map(String::as_str)
    }

    /// The facts that cutting needs, without the use of resources.
    pub(crate) fn mig_node(&self, id: String) -> MigNode {
        MigNode {
            name: self.name.clone(),
            id,
            labels: self.labels.clone(),
            before: self.mig_before.clone(),
            change: self.mig_change.clone(),
            allocatable: self.allocatable.clone(),
            capacity: self.capacity.clone(),
            ..MigNode::default()
        }
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

fn taints(node: &Node) -> Vec<Taint> {
    let Some(spec) = &node.spec else { return Vec::new() };
    let mut taints = spec.taints.clone().unwrap_or_default();
    if spec.unschedulable == Some(true) && !taints.iter().any(|taint| taint.key == CORDONED) {
        taints.push(Taint { key: CORDONED.to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() });
    }
    taints
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mig::mig_keeper::applying;
    use crate::mig::node_plan::ApplyStep;

    #[test]
    fn a_change_of_mig_devices_is_read_as_it_was_recorded() {
        let change = BegunChange { from: "halves".to_owned(), to: "comity-1".to_owned(), begun: 1_795_000_000 };
        let step = ApplyStep {
            name: change.to.clone(),
            counts: None,
            before: Some("halves".to_owned()),
            change: change.clone(),
            unused: std::collections::BTreeSet::new(),
        };
        let mut metadata = applying(&step);
        metadata["name"] = serde_json::json!("n");
        let node: Node = serde_json::from_value(serde_json::json!({ "metadata": metadata })).expect("a node");
        let seen = NodeFacts::of(&node).expect("facts").mig_node("id".to_owned());
        assert_eq!((seen.config(), seen.before.as_str(), seen.change.as_ref()), ("comity-1", "halves", Some(&change)));
    }
}
