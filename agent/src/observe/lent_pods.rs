//! Divides pods into the donor's own use and the use of leases. Pure.
//!
//! The broker counts a lease's amounts on the nodes of its placement. Pods of the lease count as lent there up to these
//! amounts; the excess, and its pods on other nodes, are local use of those nodes, so that they are not lent twice. The
//! excess never counts as local use of capacity that is leased: the broker would call the leases of others back for it.
//!
//! A lease counts from its admission until a short time after its objects are removed, so that nothing flaps while it
//! starts or ends: its pods come later and go earlier. Pods of a lease that is not in force here count as local use:
//! the broker counts nothing for them.

pub(crate) mod held_devices;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use comity_agent_kubernetes::dynamic_resources::GpuClass;
use comity_agent_kubernetes::gpu_resource;
use comity_agent_kubernetes::pod_request::Amounts;
use comity_agent_model::lent::{LentLease, PodOwners};
use comity_agent_model::node_id::NodeSalt;
use comity_types::LeaseId;

use super::node_facts::NodeFacts;
use super::pod_facts::{GuestPod, GuestStage, PLACEHOLDER_NAMESPACE, PodFacts};

/// Namespaces of guests, and the leases in force.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guests {
    /// Namespaces of leases.
    pub(crate) lease_namespaces: BTreeMap<String, LeaseId>,
    /// Namespaces that Liqo made for pods of other clusters.
    pub(crate) liqo_namespaces: BTreeSet<String>,
    /// Leases in force.
    pub(crate) leases: Arc<BTreeMap<LeaseId, LentLease>>,
}

/// A pod of a lease that runs where the lease was not placed, or holds more than was placed there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriftedPod {
    /// Its lease.
    pub lease: LeaseId,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// The node that it runs on.
    pub node: String,
    /// Resource that counts the lease's GPUs.
    pub resource: String,
    /// Units of that resource that the lease has on this node.
    pub allowed: u64,
    /// Units that the pod holds.
    pub held: u64,
}

/// Use of all nodes.
#[derive(Debug, Default)]
pub(crate) struct NodeUse<'a> {
    /// Amounts that no lease accounts for, by node.
    pub(crate) local: BTreeMap<&'a str, Amounts>,
    /// The part of them that pods of leases hold beyond their leases.
    excess: BTreeMap<&'a str, Amounts>,
    /// Pods that no lease accounts for, and those beyond their leases.
    pub(crate) local_pods: Vec<&'a PodFacts>,
    /// Pods beyond their leases, the youngest of each lease first.
    pub(crate) drifted: Vec<DriftedPod>,
    /// Units that pods of a lease hold on a node.
    held: BTreeMap<(LeaseId, &'a str), u64>,
}

impl NodeUse<'_> {
    /// Local use of a node. What pods of leases hold beyond their leases counts only as far as it fits beside the leases
    /// and the other local use.
    pub(crate) fn local_use(&self, node: &NodeFacts, guests: &Guests, salt: &NodeSalt) -> Amounts {
        let name = node.name.as_str();
        let mut local = self.local.get(name).cloned().unwrap_or_default();
        let Some(excess) = self.excess.get(name) else { return local };
        let node_id = salt.node_id(name);
        let parts: Vec<_> = guests.leases.values().filter_map(|lease| lease.nodes.get(&node_id)).collect();
        for (resource, amount) in &mut local {
            let excess = excess.get(resource).copied().unwrap_or(0);
            let leased =
                parts.iter().filter_map(|part| part.get(resource)).fold(0, |sum: u64, n| sum.saturating_add(*n));
            let others = amount.saturating_sub(excess);
            let room = node.allocatable.get(resource).copied().unwrap_or(0).saturating_sub(leased);
            *amount = others.saturating_add(excess.min(room.saturating_sub(others)));
        }
        local
    }

    /// Leased GPUs that no pod of the lease uses, by lease and node, of the leases that are not ending. Devices of DRA
    /// drivers are not among them: no pod requests them by a resource.
    pub(crate) fn unused(&self, nodes: &[&str], guests: &Guests, salt: &NodeSalt) -> BTreeMap<(LeaseId, String), u64> {
        let is_counted = |lease: &LentLease| GpuClass::of_quota_name(&lease.resource).is_none();
        let wanted: Vec<_> = guests.leases.iter().filter(|(_, lease)| lease.is_wanted && is_counted(lease)).collect();
        let mut unused = BTreeMap::new();
        for node in nodes.iter().filter(|_| !wanted.is_empty()) {
            let node_id = salt.node_id(node);
            for (id, lease) in &wanted {
                let allowed = lease.nodes.get(&node_id).and_then(|amounts| amounts.get(&lease.resource));
                let held = self.held.get(&(**id, *node)).copied().unwrap_or(0);
                let left = allowed.map_or(0, |allowed| allowed.saturating_sub(held));
                if left > 0 {
                    unused.insert((**id, (*node).to_owned()), left);
                }
            }
        }
        unused
    }
}

/// Divides the pods.
pub(crate) fn divide<'a>(
    pods: impl IntoIterator<Item = &'a PodFacts>,
    guests: &Guests,
    salt: &NodeSalt,
) -> NodeUse<'a> {
    let owners = PodOwners::of(&guests.leases);
    let mut found = NodeUse::default();
    let mut of_leases: BTreeMap<(LeaseId, &str), Vec<CountedPod<'a>>> = BTreeMap::new();
    for pod in pods {
        if guests.is_placeholder(pod) {
            continue;
        }
        match guests.lease_of(pod, &owners) {
            Some((lease, guest)) => of_leases.entry((lease, &pod.node)).or_default().push(CountedPod { pod, guest }),
            None => {
                found.local_pods.push(pod);
                add(found.local.entry(&pod.node).or_default(), pod);
            }
        }
    }
    for ((id, node), mut pods) in of_leases {
        let lease = &guests.leases[&id];
        let allowed = lease.nodes.get(&salt.node_id(node));
        let mut total = Amounts::new();
        for CountedPod { pod, .. } in &pods {
            add(&mut total, pod);
        }
        found.held.insert((id, node), total.get(&lease.resource).copied().unwrap_or(0));
        let limit = |name: &String| allowed.and_then(|allowed| allowed.get(name)).copied().unwrap_or(0);
        for (name, amount) in total {
            let beyond = amount.saturating_sub(limit(&name));
            for amounts in [&mut found.local, &mut found.excess] {
                let sum = amounts.entry(node).or_default().entry(name.clone()).or_default();
                *sum = sum.saturating_add(beyond);
            }
        }
        // Pods that end make room for their successors, so they count last.
        pods.sort_by_key(|CountedPod { guest, .. }| (guest.stage == GuestStage::Ending, guest.created_ms, &guest.uid));
        let beyond = beyond(&pods, lease, allowed);
        found.local_pods.extend(beyond.iter().map(|CountedPod { pod, .. }| *pod));
        let drifted = beyond.into_iter().rev().map(|CountedPod { pod, guest }| {
            let resource = foreign_gpus(pod, lease).unwrap_or(&lease.resource);
            DriftedPod {
                lease: id,
                namespace: pod.namespace.to_string(),
                name: guest.name.clone(),
                uid: guest.uid.clone(),
                node: node.to_owned(),
                resource: resource.to_owned(),
                allowed: allowed.and_then(|allowed| allowed.get(resource)).copied().unwrap_or(0),
                held: pod.request(resource),
            }
        });
        found.drifted.extend(drifted);
    }
    found
}

/// A pod of a lease in force.
#[derive(Clone, Copy)]
struct CountedPod<'a> {
    pod: &'a PodFacts,
    guest: &'a GuestPod,
}

/// The GPUs of another class that a pod of a lease has.
fn foreign_gpus<'a>(pod: &'a PodFacts, lease: &LentLease) -> Option<&'a str> {
    let is_foreign = |name: &str| gpu_resource::counts_gpus(name) && name != lease.resource;
    pod.requests.iter().find(|(name, amount)| *amount > 0 && is_foreign(name)).map(|(name, _)| &**name)
}

/// The pods on the node, oldest first, that do not fit into the devices that the older ones leave, or have others.
fn beyond<'a>(
    pods: &[CountedPod<'a>],
    lease: &LentLease,
    allowed: Option<&BTreeMap<String, u64>>,
) -> Vec<CountedPod<'a>> {
    let devices = allowed.into_iter().flatten().filter(|(name, _)| gpu_resource::is_extended(name));
    let mut left: BTreeMap<&str, u64> = devices.map(|(name, amount)| (name.as_str(), *amount)).collect();
    let mut beyond = Vec::new();
    for pod in pods {
        let has_its_own = allowed.is_some() && foreign_gpus(pod.pod, lease).is_none();
        if has_its_own && left.iter().all(|(name, left)| pod.pod.request(name) <= *left) {
            for (name, left) in &mut left {
                *left -= pod.pod.request(name);
            }
        } else if pod.guest.stage != GuestStage::Nominated {
            beyond.push(*pod);
        }
    }
    beyond
}

impl Guests {
    /// All namespaces of guests.
    pub(crate) fn namespaces(&self) -> BTreeSet<String> {
        self.lease_namespaces.keys().chain(&self.liqo_namespaces).cloned().collect()
    }

    /// Whether a pod only holds a GPU for a lease in force, which accounts for it.
    fn is_placeholder(&self, pod: &PodFacts) -> bool {
        let guest = pod.guest.as_ref().filter(|_| *pod.namespace == *PLACEHOLDER_NAMESPACE.name);
        guest.and_then(|guest| guest.lease).is_some_and(|lease| self.leases.contains_key(&lease))
    }

    /// The lease in force that a pod belongs to.
    fn lease_of<'a>(&self, pod: &'a PodFacts, owners: &PodOwners<'_>) -> Option<(LeaseId, &'a GuestPod)> {
        let guest = pod.guest.as_deref()?;
        let lease = match self.lease_namespaces.get(&*pod.namespace) {
            Some(lease) => owners.by_namespace(*lease)?,
            // The label alone could hide local use.
            None if self.liqo_namespaces.contains(&*pod.namespace) => owners.by_user(guest.liqo_user.as_deref()?)?,
            None => return None,
        };
        Some((lease, guest))
    }
}

fn add(amounts: &mut Amounts, pod: &PodFacts) {
    for (name, amount) in &pod.requests {
        match amounts.get_mut(&**name) {
            Some(sum) => *sum = sum.saturating_add(*amount),
            None => drop(amounts.insert(name.to_string(), *amount)),
        }
    }
}

#[cfg(test)]
mod tests;
