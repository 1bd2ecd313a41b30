//! Records failures of a donor's nodes and devices, and quarantines those that fail repeatedly.

use std::collections::BTreeSet;

use comity_types::{ClusterId, NodeId};

use crate::model::inventory::{NodeMap, Offer};
use crate::state::Records;
use crate::state::timers::Due;
use crate::state::transition::Transition;

impl Transition<'_> {
    /// Records the failures that a new whole offer reports for nodes also present in the current one.
    pub(super) fn note_health_of_offer(&mut self, id: &ClusterId, offer: &Offer) {
        self.note_health(id, &offer.nodes);
        let now = self.now;
        let Records { clusters, derived, .. } = self.records();
        if let Some(cluster) = clusters.get_mut(id) {
            let is_lent = |node: &NodeId| derived.occupancy.node(id, node).is_some();
            cluster.health.note_gone(offer, derived.occupancy.lent_nodes(id), is_lent, now);
        }
    }

    /// Records the failures that a revision reports for the nodes it changes.
    pub(super) fn note_health_of_nodes(&mut self, id: &ClusterId, nodes: &NodeMap) {
        self.note_health(id, nodes);
        self.set_health_timer(id);
    }

    /// Records that these nodes have left the offer.
    pub(super) fn note_gone_nodes(&mut self, id: &ClusterId, gone: &BTreeSet<NodeId>) {
        let now = self.now;
        let Records { clusters, derived, .. } = self.records();
        let Some(cluster) = clusters.get_mut(id) else { return };
        let Some(offer) = &cluster.offer else { return };
        let is_lent = |node: &NodeId| derived.occupancy.node(id, node).is_some();
        cluster.health.note_gone(offer, gone.iter(), is_lent, now);
        self.set_health_timer(id);
    }

    fn note_health(&mut self, id: &ClusterId, nodes: &NodeMap) {
        let now = self.now;
        let Some(cluster) = self.records().clusters.get_mut(id) else { return };
        let Some(held) = &cluster.offer else { return };
        for (node, after) in nodes {
            cluster.health.note_node(node, held.nodes.get(node), Some(after), now);
        }
    }

    /// Ends quarantines that are over, so that these parts may be used again.
    pub(crate) fn end_quarantines(&mut self, id: &ClusterId) {
        let (now, mut freed) = (self.now, Vec::new());
        self.change_cluster(id, |cluster| freed = cluster.health.expire(now));
        let Records { clusters, derived, policy, .. } = self.records();
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
        self.records().derived.timers.set(Due::Health(id.clone()), due);
    }
}
