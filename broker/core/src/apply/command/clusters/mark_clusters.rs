//! Marks clusters as connected or silent.

use comity_types::{ClusterId, LeaseId, LeaseState};
use serde::{Deserialize, Serialize};

use crate::model::reply::{Reply, ReplyBody};
use crate::state::transition::Transition;

/// The failure detector's findings. Silence makes leases suspect and keeps new work away; it tears nothing down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkClusters {
    /// Clusters that report again.
    pub heard: Vec<ClusterId>,
    /// Clusters that were silent for too long.
    pub silent: Vec<ClusterId>,
}

impl MarkClusters {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        for id in &self.heard {
            mark(transition, id, Liveness::Connected);
        }
        for id in &self.silent {
            mark(transition, id, Liveness::Silent);
        }
        Ok(ReplyBody::Done)
    }
}

#[derive(Clone, Copy)]
enum Liveness {
    Connected,
    Silent,
}

fn mark(transition: &mut Transition<'_>, id: &ClusterId, liveness: Liveness) {
    let connected = matches!(liveness, Liveness::Connected);
    if transition.state().clusters.get(id).is_none_or(|cluster| cluster.connected == connected) {
        return;
    }
    if connected && transition.state().check_part(id).is_err() {
        // A last word of a stream that is being ended.
        return;
    }
    let now = transition.now();
    transition.change_cluster(id, |cluster| {
        cluster.connected = connected;
        cluster.since = now;
    });
    let leases: Vec<LeaseId> = transition.state().leases_of(id).map(|(lease, _)| lease).collect();
    for lease in leases {
        refresh_suspicion(transition, lease);
    }
}

/// Makes a lease in force active if both its clusters are connected, suspect otherwise.
pub(crate) fn refresh_suspicion(transition: &mut Transition<'_>, id: LeaseId) {
    let Some(lease) = transition.state().leases.get(&id) else { return };
    let silent: Vec<&str> = [&lease.origin, &lease.placement.donor]
        .into_iter()
        .filter(|cluster| !transition.state().clusters.get(*cluster).is_some_and(|cluster| cluster.connected))
        .map(ClusterId::as_str)
        .collect();
    let message = format!("no word from {}", silent.join(" and "));
    let now = transition.now();
    match (lease.state, silent.is_empty()) {
        (LeaseState::Active, false) => transition.change_lease(id, |lease| {
            lease.state = LeaseState::Suspect;
            lease.message = message;
        }),
        (LeaseState::Suspect, true) => transition.change_lease(id, |lease| {
            lease.state = LeaseState::Active;
            lease.restart_idle_time(now);
            lease.message.clear();
        }),
        _ => {}
    }
}
