//! Changes of clusters, their offers and their join tokens.

use std::collections::BTreeSet;
use std::sync::Arc;

use comity_types::{ClusterId, MAX_FENCING_TOKEN_STEP, NodeId};

use crate::model::cluster::Cluster;
use crate::model::inventory::{NodeMap, Offer};
use crate::model::invite::Invite;
use crate::model::reply::Change;
use crate::state::Records;
use crate::state::timers::Due;
use crate::state::transition::Transition;

impl Transition<'_> {
    /// Adds a member.
    pub(crate) fn insert_cluster(&mut self, id: &ClusterId, mut cluster: Cluster) {
        cluster.revision = self.revision;
        self.records().clusters.insert(id.clone(), cluster);
        self.note(Change::Cluster(id.clone()));
    }

    /// Changes an existing cluster, but not its offer.
    pub(crate) fn change_cluster(&mut self, id: &ClusterId, change: impl FnOnce(&mut Cluster)) {
        let revision = self.revision;
        if let Some(cluster) = self.state.records.clusters.get_mut(id) {
            change(cluster);
            cluster.revision = revision;
            self.note(Change::Cluster(id.clone()));
        }
    }

    /// Continues above the highest fencing token that the donor says it admitted.
    ///
    /// Tokens that this group never issued come from a broker that was taken over, or from entries that a recovery
    /// lost; without a skip the donor would refuse the next leases, one after another. The other way round, the donor
    /// admits no token too far above its own. Then this group's number is of no use, whether somebody with the
    /// donor's certificate told it or the donor lost its state, and tokens go back to the donor's: it admits each only
    /// once.
    pub(crate) fn follow_fencing_tokens(&mut self, donor: &ClusterId, admitted: u64) {
        let Some(issued) = self.state().clusters.get(donor).map(|cluster| cluster.last_fencing_token) else { return };
        let is_out_of_reach = issued > admitted.saturating_add(MAX_FENCING_TOKEN_STEP);
        if issued < admitted || is_out_of_reach {
            let highest = issued.saturating_add(MAX_FENCING_TOKEN_STEP);
            self.change_cluster(donor, |cluster| cluster.last_fencing_token = admitted.min(highest));
        }
    }

    /// Remembers that an origin's own policy refused a donor.
    pub(crate) fn note_refused_donor(&mut self, origin: &ClusterId, donor: &ClusterId) {
        let now = self.now();
        self.change_cluster(origin, |cluster| cluster.note_refused_donor(donor.clone(), now));
    }

    /// Forgets that an origin's own policy refused a donor: a lease between them is active.
    pub(crate) fn forget_refused_donor(&mut self, origin: &ClusterId, donor: &ClusterId) {
        if self.state().clusters.get(origin).is_some_and(|cluster| cluster.refused_donors.contains_key(donor)) {
            self.change_cluster(origin, |cluster| _ = cluster.refused_donors.remove(donor));
        }
    }

    /// Replaces a cluster's offer and records the failures that the new one shows.
    pub(crate) fn replace_offer(&mut self, id: &ClusterId, offer: &Offer) {
        self.note_health_of_offer(id, offer);
        self.change_cluster(id, |cluster| cluster.offer = Some(Arc::new(offer.clone())));
        let Records { clusters, derived, policy, .. } = self.records();
        if let Some(cluster) = clusters.get(id) {
            derived.note_offer(id, cluster, policy.as_ref());
        }
    }

    /// Withdraws a cluster's offer. That takes a generation: the next offer has a higher one, because leases and
    /// indexes name them, and the agent sees that the broker has its last offer no more.
    pub(crate) fn withdraw_offer(&mut self, id: &ClusterId) {
        self.change_cluster(id, |cluster| {
            if let Some(offer) = cluster.offer.take() {
                cluster.withdrawn_generation = offer.generation.saturating_add(1);
            }
        });
        let Records { clusters, derived, policy, .. } = self.records();
        if let Some(cluster) = clusters.get(id) {
            derived.note_offer(id, cluster, policy.as_ref());
        }
    }

    /// Changes and removes some nodes of a cluster's offer, and records the failures that this shows. Takes time
    /// proportional to their number.
    pub(crate) fn revise_offer(&mut self, id: &ClusterId, generation: u64, nodes: &NodeMap, gone: &BTreeSet<NodeId>) {
        self.note_health_of_nodes(id, nodes);
        let Records { clusters, derived, policy, .. } = self.records();
        let Some(cluster) = clusters.get(id) else { return };
        let held = |node: &NodeId| cluster.offer.as_ref().and_then(|offer| offer.nodes.get(node));
        for (node, after) in nodes {
            derived.note_node(id, node, held(node), Some(after), &cluster.health, policy.as_ref());
        }
        for node in gone {
            derived.note_node(id, node, held(node), None, &cluster.health, policy.as_ref());
        }
        self.change_cluster(id, |cluster| {
            let Some(offer) = cluster.offer.as_mut().map(Arc::make_mut) else { return };
            offer.generation = generation;
            for (id, node) in nodes {
                let mut node = node.clone();
                if let Some(held) = offer.nodes.get(id) {
                    node.devices = node.devices.shared_with(&held.devices);
                }
                offer.nodes.insert(id.clone(), node);
            }
            for id in gone {
                offer.nodes.remove(id);
            }
        });
        self.note_gone_nodes(id, gone);
    }

    /// Stores a join token by the hash of its secret.
    pub(crate) fn insert_invite(&mut self, secret_sha256: &str, invite: Invite) {
        let due = Some(invite.expires_at);
        let subject = invite.subject.clone();
        let records = self.records();
        records.derived.timers.set(Due::Invite(secret_sha256.to_owned()), due);
        records.invites.insert(secret_sha256.to_owned(), invite);
        self.note(Change::Invite(subject));
    }

    /// Removes a join token that was used or revoked, or has expired.
    pub(crate) fn remove_invite(&mut self, secret_sha256: &str) {
        let records = &mut self.state.records;
        records.derived.timers.set(Due::Invite(secret_sha256.to_owned()), None);
        if let Some(invite) = records.invites.remove(secret_sha256) {
            self.note(Change::Invite(invite.subject));
        }
    }
}
