//! Finds leases that lack their marks on a node. Pure. Somebody deleted the Node object and made it again, or changed it.

use std::collections::{BTreeMap, BTreeSet};

use comity_agent_kubernetes::gpu_resource::{LEASE_GPUS_PREFIX, LEASE_PLACES, LEASE_RESOURCE_PREFIX};
use comity_agent_model::lent::{LentLease, NodeMark};
use comity_agent_model::node_id::NodeSalt;
use comity_types::LeaseId;

use super::node_facts::NodeFacts;

/// Leases without their label or resources on one of their nodes.
pub(crate) fn missing(
    nodes: &[&NodeFacts],
    leases: &BTreeMap<LeaseId, LentLease>,
    salt: &NodeSalt,
) -> BTreeSet<LeaseId> {
    if leases.values().all(|lease| lease.mark == NodeMark::Nothing) {
        return BTreeSet::new();
    }
    let by_id: BTreeMap<String, &NodeFacts> = nodes.iter().map(|node| (salt.node_id(&node.name), *node)).collect();
    let is_unmarked = |(id, lease): &(&LeaseId, &LentLease)| {
        let here = lease.nodes.iter().filter_map(|(node, amounts)| Some((by_id.get(node)?, amounts)));
        here.into_iter().any(|(node, amounts)| !is_marked(node, **id, lease, amounts))
    };
    leases.iter().filter(is_unmarked).map(|(id, _)| *id).collect()
}

fn is_marked(node: &NodeFacts, id: LeaseId, lease: &LentLease, amounts: &BTreeMap<String, u64>) -> bool {
    let mark = format!("{LEASE_RESOURCE_PREFIX}{id}");
    let is_counted = || node.capacity.get(&format!("{LEASE_GPUS_PREFIX}{id}")) == amounts.get(&lease.resource);
    match lease.mark {
        NodeMark::Nothing => true,
        NodeMark::Label => is_counted() && node.labels.get(&mark).is_some_and(|value| value == "true"),
        NodeMark::Resource => {
            (lease.nodes.len() < 2 || is_counted()) && node.capacity.get(&mark) == Some(&LEASE_PLACES)
        }
    }
}

#[cfg(test)]
mod tests {
    use comity_agent_model::lent::PodsOf;

    use super::*;
    use crate::observe::TEST_SALT;

    fn lease(mark: NodeMark, nodes: &[&str]) -> BTreeMap<LeaseId, LentLease> {
        let amounts = BTreeMap::from([("nvidia.com/gpu".to_owned(), 2)]);
        let nodes = nodes.iter().map(|name| (TEST_SALT.node_id(name), amounts.clone())).collect();
        BTreeMap::from([(
            LeaseId(7),
            LentLease { pods: PodsOf::Namespace, mark, resource: "nvidia.com/gpu".to_owned(), is_wanted: true, nodes },
        )])
    }

    fn node(name: &str, labels: &[(&str, &str)], capacity: &[(&str, u64)]) -> NodeFacts {
        NodeFacts {
            name: name.to_owned(),
            labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            capacity: capacity.iter().map(|(key, amount)| ((*key).to_owned(), *amount)).collect(),
            ..NodeFacts::default()
        }
    }

    #[test]
    fn a_node_made_again_lacks_the_marks_of_its_leases() {
        const PLACES: (&str, u64) = ("lease.comity.dev/lease-7", 10_000);
        const GPUS: (&str, u64) = ("gpus.lease.comity.dev/lease-7", 2);
        let label = [("lease.comity.dev/lease-7", "true")];
        let (one, two) = (&["a"][..], &["a", "b"][..]);
        for (mark, placed, node, is_missing) in [
            (NodeMark::Nothing, one, node("a", &[], &[]), false),
            (NodeMark::Label, two, node("a", &[], &[]), true),
            (NodeMark::Label, two, node("a", &label, &[]), true),
            (NodeMark::Label, two, node("a", &[], &[GPUS]), true),
            (NodeMark::Label, two, node("a", &label, &[GPUS]), false),
            (NodeMark::Resource, one, node("a", &[], &[]), true),
            (NodeMark::Resource, one, node("a", &[], &[PLACES]), false),
            // A kubelet that starts again without its checkpoint sets foreign resources to zero.
            (NodeMark::Resource, one, node("a", &[], &[("lease.comity.dev/lease-7", 0)]), true),
            (NodeMark::Resource, two, node("a", &[], &[PLACES]), true),
            (NodeMark::Resource, two, node("a", &[], &[PLACES, GPUS]), false),
            (NodeMark::Resource, one, node("another", &[], &[]), false),
        ] {
            let found = missing(&[&node], &lease(mark, placed), &TEST_SALT);
            assert_eq!(!found.is_empty(), is_missing, "{mark:?} {placed:?} {node:?}");
        }
    }
}
