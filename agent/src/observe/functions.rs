//! Virtual functions of RDMA networks: the configuration maps the device plugins' resource names to networks and to the
//! bandwidth of one function.

use std::collections::BTreeMap;

use comity_agent_kubernetes::pod_request::Amounts;
use comity_proto::v1::RdmaBandwidth;
use serde::{Deserialize, Serialize};

use super::node_facts::NodeFacts;
use super::not_offered::NotOffered;
use super::wiring::{MAX_GBITS, MAX_NETWORKS};

/// A Kubernetes resource that counts virtual functions of one network, as the SR-IOV network device plugin and the
/// shared RDMA device plugin do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RdmaResource {
    /// Its name, as in "nvidia.com/ib_vf" or "rdma/hca_shared_devices_a".
    pub resource: String,
    /// The network, by a name that means the same on all nodes.
    pub network: String,
    /// Gbit/s that one function carries.
    pub gbits: u32,
}

/// The networks that a node has functions of, and resources that are not offered. Networks in `written`, the owner's
/// annotation, take precedence. `local` is the node's local use.
pub(super) fn of(
    facts: &NodeFacts,
    local: &Amounts,
    resources: &[RdmaResource],
    written: &[RdmaBandwidth],
) -> (Vec<RdmaBandwidth>, Vec<NotOffered>) {
    let mut offered: BTreeMap<&str, RdmaBandwidth> = BTreeMap::new();
    let mut not_offered = Vec::new();
    let mut leave_out = |resource: &str, reason: String| {
        not_offered.push(NotOffered { node: facts.name.clone(), resource: resource.to_owned(), reason });
    };
    let taken = |resource: &str| local.get(resource).copied().unwrap_or(0);
    for RdmaResource { resource, network, gbits } in resources {
        let count = facts.allocatable.get(resource).copied().unwrap_or(0);
        if count == 0 {
            continue;
        }
        if written.iter().any(|written| written.network == *network) {
            let reason = format!(
                "the node's annotation sets the bandwidth of network {network} and takes precedence: remove it there, \
                 and leases get functions"
            );
            leave_out(resource, reason);
            continue;
        }
        if offered.len() + written.len() >= MAX_NETWORKS && !offered.contains_key(network.as_str()) {
            leave_out(resource, format!("the node has {MAX_NETWORKS} networks already, which is all that is offered"));
            continue;
        }
        let narrow = u32::try_from(count).ok();
        let all = narrow.and_then(|count| Some((count, count.checked_mul(*gbits).filter(|all| *all <= MAX_GBITS)?)));
        let Some((functions, all)) = all else {
            let reason =
                format!("{count} functions of {gbits} Gbit/s are more than the {MAX_GBITS} Gbit/s of one network");
            leave_out(resource, reason);
            continue;
        };
        let found = RdmaBandwidth {
            network: network.clone(),
            gbits: all,
            resource: resource.clone(),
            functions,
            local_functions: u32::try_from(taken(resource).min(count)).unwrap_or(functions),
        };
        let lesser = match offered.get(network.as_str()) {
            Some(known) if known.gbits >= all => Some(found),
            _ => offered.insert(network, found),
        };
        if let Some(lesser) = lesser {
            let reason = format!("another resource of the node has more of network {network}; only one is offered");
            leave_out(&lesser.resource, reason);
        }
    }
    (offered.into_values().collect(), not_offered)
}

/// Configured resources that no node counts: the name is wrong, or the device plugin is missing.
pub(super) fn uncounted(nodes: &[&NodeFacts], resources: &[RdmaResource]) -> Vec<NotOffered> {
    let is_seen = |mapped: &&RdmaResource| nodes.iter().any(|node| node.capacity.contains_key(&mapped.resource));
    let uncounted = resources.iter().filter(|mapped| !is_seen(mapped));
    let not_offered = uncounted.map(|mapped| NotOffered {
        node: String::new(),
        resource: mapped.resource.clone(),
        reason: "no node counts it; check rdma in the configuration, and allocatable of the nodes".to_owned(),
    });
    not_offered.collect()
}
