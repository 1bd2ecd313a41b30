//! Nodes on which leases hold GPUs that pods of the donor's own may need.

use std::collections::BTreeMap;

use comity_agent_kubernetes::pod_request::Amounts;
use comity_agent_model::node_id::NodeSalt;

use super::pending_pod::PendingPod;
use crate::observe::lent_pods::{self, Guests};
use crate::observe::node_facts::NodeFacts;
use crate::observe::pod_facts::PodFacts;

/// Nodes and leases of the cluster.
#[derive(Clone, Copy)]
pub(crate) struct ClusterFacts<'a> {
    pub(crate) nodes: &'a [&'a NodeFacts],
    pub(crate) guests: &'a Guests,
    pub(crate) salt: &'a NodeSalt,
}

/// A node with GPUs.
pub(super) struct CountedNode<'a> {
    node: &'a NodeFacts,
    /// Amounts in use by all pods.
    used: Amounts,
    /// The part of that which no lease accounts for.
    local: Amounts,
}

impl CountedNode<'_> {
    /// Whether the pod fits beside all other pods.
    pub(super) fn fits_now(&self, pod: &PendingPod) -> bool {
        self.fits_beside(&self.used, pod)
    }

    fn fits_beside(&self, used: &Amounts, pod: &PendingPod) -> bool {
        let fits = |(name, wanted): (&String, &u64)| *wanted <= left(&self.node.allocatable, used, name);
        pod.requests.iter().all(fits)
    }

    /// Whether the pod may use the node, and fits there without the pods of leases.
    fn suits(&self, pod: &PendingPod) -> bool {
        self.fits_beside(&self.local, pod) && pod.terms.allow(self.node)
    }

    /// GPUs that the pod needs, and that the node lacks now.
    fn missing(&self, pod: &PendingPod) -> u64 {
        let missing =
            |(name, wanted): (&String, u64)| wanted.saturating_sub(left(&self.node.allocatable, &self.used, name));
        pod.gpus().map(missing).sum()
    }
}

fn left(allocatable: &Amounts, used: &Amounts, name: &str) -> u64 {
    let amount = |amounts: &Amounts| amounts.get(name).copied().unwrap_or(0);
    amount(allocatable).saturating_sub(amount(used))
}

/// Nodes with GPUs that a device plugin counts, by name. HAMi's nodes are left out: their resource counts no devices.
pub(super) struct Places<'a>(BTreeMap<&'a str, CountedNode<'a>>);

impl<'a> Places<'a> {
    pub(super) fn of(cluster: &ClusterFacts<'a>, pods: impl Iterator<Item = &'a PodFacts> + Clone) -> Self {
        let mut local = lent_pods::divide(pods.clone(), cluster.guests, cluster.salt).local;
        let with_gpus = cluster.nodes.iter().filter(|node| node.has_counted_gpus() && !node.is_virtual);
        let place = |node: &&'a NodeFacts| {
            let local = local.remove(node.name.as_str()).unwrap_or_default();
            (node.name.as_str(), CountedNode { node, used: Amounts::new(), local })
        };
        let mut places: BTreeMap<&str, CountedNode<'_>> = with_gpus.map(place).collect();
        for pod in pods {
            let Some(place) = places.get_mut(&*pod.node) else { continue };
            for (name, amount) in &pod.requests {
                add(&mut place.used, name, *amount);
            }
        }
        Self(places)
    }

    /// A node, if the pod may use it and fits there without the pods of leases.
    pub(super) fn suitable(&self, node: &str, pod: &PendingPod) -> Option<&CountedNode<'a>> {
        self.0.get(node).filter(|place| place.suits(pod))
    }

    /// The node on which the fewest leased GPUs are in the pod's way; `None` if the pod fits on a node now, or on none
    /// even without leases.
    pub(super) fn best(&self, pod: &PendingPod) -> Option<&'a str> {
        let suitable: Vec<&CountedNode<'a>> = self.0.values().filter(|place| place.suits(pod)).collect();
        if suitable.iter().any(|place| place.fits_now(pod)) {
            return None;
        }
        // A node that lacks only CPU or memory is no reason to end a lease of GPUs.
        let lacking = suitable.into_iter().map(|place| (place.missing(pod), place)).filter(|(missing, _)| *missing > 0);
        lacking.min_by_key(|(missing, place)| (*missing, &place.node.name)).map(|(_, place)| place.node.name.as_str())
    }

    /// Counts the pod on a node.
    pub(super) fn take(&mut self, node: &str, pod: &PendingPod) {
        let Some(place) = self.0.get_mut(node) else { return };
        for (name, amount) in &pod.requests {
            add(&mut place.used, name, *amount);
            add(&mut place.local, name, *amount);
        }
    }
}

fn add(amounts: &mut Amounts, name: &str, more: u64) {
    match amounts.get_mut(name) {
        Some(sum) => *sum = sum.saturating_add(more),
        None => drop(amounts.insert(name.to_owned(), more)),
    }
}
