//! Notifies agent streams that the desired state of their cluster changed. Only the newest revision counts: each
//! desired state is complete.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use comity_core::State;
use comity_core::reply::{Applied, Change};
use comity_types::ClusterId;
use tokio::sync::watch;

/// Last revision that touched each cluster with a stream; one entry per connected cluster.
#[derive(Debug, Default)]
pub struct ClustersTouched {
    senders: Mutex<BTreeMap<ClusterId, watch::Sender<u64>>>,
}

impl ClustersTouched {
    /// Follows a cluster.
    pub fn follow(&self, cluster: &ClusterId) -> watch::Receiver<u64> {
        self.lock().entry(cluster.clone()).or_insert_with(|| watch::Sender::new(0)).subscribe()
    }

    /// Removes clusters without followers.
    pub fn tidy(&self) {
        self.lock().retain(|_, sender| sender.receiver_count() > 0);
    }

    /// One entry was applied.
    pub fn applied(&self, state: &State, applied: &Applied) {
        let senders = self.lock();
        if senders.is_empty() {
            return;
        }
        if applied.changes.contains(&Change::Policy) {
            // Institution keys are part of every directive.
            senders.values().for_each(|sender| _ = sender.send_replace(applied.revision));
            return;
        }
        for cluster in touched(state, &applied.changes) {
            if let Some(sender) = senders.get(cluster) {
                sender.send_replace(applied.revision);
            }
        }
    }

    /// The state was replaced.
    pub fn restored(&self, state: &State) {
        self.lock().values().for_each(|sender| _ = sender.send_replace(state.revision));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ClusterId, watch::Sender<u64>>> {
        // Each change is one insertion or removal, so a panic elsewhere leaves nothing half done.
        self.senders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn touched<'a>(state: &'a State, changes: &'a [Change]) -> BTreeSet<&'a ClusterId> {
    let mut clusters = BTreeSet::new();
    for change in changes {
        match change {
            Change::Lease(id) => {
                if let Some(lease) = state.leases.get(id) {
                    clusters.extend([&lease.origin, &lease.placement.donor]);
                }
            }
            Change::Peering(id) => {
                if let Some(peering) = state.peerings.get(id) {
                    clusters.extend([&peering.origin, &peering.donor]);
                }
            }
            Change::Envelopes(cluster) => {
                clusters.insert(cluster);
            }
            // A cluster's own report does not change its desired state; joining again fails its peerings, which does.
            Change::Cluster(_) | Change::Request(_) | Change::Policy | Change::Invite(_) | Change::Revocations => {}
        }
    }
    clusters
}
