//! Records failures of a donor's nodes and devices, and quarantines those that fail repeatedly.

use std::collections::BTreeSet;

use crate::apply::transition::{FailureMemory, Transition};
use crate::model::id::{ClusterId, NodeId};
use crate::model::inventory::{NodeMap, Offer};
use crate::state::State;
use crate::state::timers::Due;

impl Transition<'_> {
    /// Records the failures that a new whole offer reports for nodes also present in the current one.
    pub(crate) fn note_health_of_offer(&mut self, id: &ClusterId, offer: &Offer) {
        self.note_health(id, &offer.nodes);
        if self.failure_memory == FailureMemory::Off {
            return;
        }
        let State { clusters, derived, .. } = &mut *self.state;
        if let Some(cluster) = clusters.get_mut(id) {
            let is_lent = |node: &NodeId| derived.occupancy.node(id, node).is_some();
            cluster.health.note_gone(offer, derived.occupancy.lent_nodes(id), is_lent, self.now);
        }
    }

    /// Records the failures that a revision reports for the nodes it changes.
    pub(crate) fn note_health_of_nodes(&mut self, id: &ClusterId, nodes: &NodeMap) {
        self.note_health(id, nodes);
        self.set_health_timer(id);
    }

    /// Records that these nodes have left the offer.
    pub(crate) fn note_gone_nodes(&mut self, id: &ClusterId, gone: &BTreeSet<NodeId>) {
        let State { clusters, derived, .. } = &mut *self.state;
        let Some(cluster) = clusters.get_mut(id).filter(|_| self.failure_memory == FailureMemory::On) else { return };
        let Some(offer) = &cluster.offer else { return };
        let is_lent = |node: &NodeId| derived.occupancy.node(id, node).is_some();
        cluster.health.note_gone(offer, gone.iter(), is_lent, self.now);
        self.set_health_timer(id);
    }

    fn note_health(&mut self, id: &ClusterId, nodes: &NodeMap) {
        let Some(cluster) = self.state.clusters.get_mut(id).filter(|_| self.failure_memory == FailureMemory::On) else {
            return;
        };
        let Some(held) = &cluster.offer else { return };
        for (node, after) in nodes {
            cluster.health.note_node(node, held.nodes.get(node), Some(after), self.now);
        }
    }

    /// Ends quarantines that are over, so that these parts may be used again.
    pub(crate) fn end_quarantines(&mut self, id: &ClusterId) {
        let (now, mut freed) = (self.now, Vec::new());
        self.change_cluster(id, |cluster| freed = cluster.health.expire(now));
        let State { clusters, derived, policy, .. } = &mut *self.state;
        if let Some(cluster) = clusters.get(id) {
            for node in &freed {
                let has = cluster.offer.as_ref().and_then(|offer| offer.nodes.get(node));
                derived.note_node(id, node, has, has, &cluster.health, policy.as_ref());
            }
        }
        self.set_health_timer(id);
    }

    fn set_health_timer(&mut self, id: &ClusterId) {
        let due = self.state.clusters.get(id).and_then(|cluster| cluster.health.due());
        self.state.derived.timers.set(Due::Health(id.clone()), due);
    }
}
