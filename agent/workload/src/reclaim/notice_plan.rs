//! Plans notices to pods, and finds leases whose work is saved. Pure.

use std::collections::{BTreeMap, BTreeSet};

use comity_types::LeaseId;

use super::bound_pod::BoundPod;
use super::reclaim_snapshot::{LeaseView, ReclaimNotice, ReclaimSnapshot};
use crate::burst::{Note, PodRef};

/// A watch may show pods this much later that were bound just before the reclaim.
const LATE_BINDING_MS: u64 = 5_000;

/// A notice to a pod: its annotations and one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The pod.
    pub pod: PodRef,
    /// Deadline and reason for its annotations; `None` removes them. Either removes an earlier answer.
    pub marks: Option<(String, String)>,
    /// The event.
    pub note: Note,
}

/// Result of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReclaimPlan {
    /// Notices to write.
    pub notices: Vec<Notice>,
    /// Leases under reclaim on which every running pod is saved.
    pub saved: BTreeSet<LeaseId>,
    /// When to plan again even if nothing changes, in milliseconds since 1970.
    pub wake_at_ms: Option<u64>,
}

/// Plans notices and saved leases.
#[must_use]
pub fn plan(snapshot: &ReclaimSnapshot) -> ReclaimPlan {
    let mut plan = ReclaimPlan::default();
    let by_node: BTreeMap<&str, (LeaseId, &LeaseView)> =
        snapshot.leases.iter().map(|(id, lease)| (lease.node.as_str(), (*id, lease))).collect();
    let mut unsaved: BTreeSet<LeaseId> = BTreeSet::new();
    for pod in &snapshot.pods {
        let Some(&(id, lease)) = by_node.get(pod.node.as_str()).filter(|_| !pod.is_finished) else { continue };
        let notice = notice(pod, id, lease.reclaim.as_ref());
        // An answer from before the notice does not count.
        if pod.runs && (notice.is_some() || !pod.is_saved) {
            unsaved.insert(id);
        }
        plan.notices.extend(notice);
    }
    for (id, lease) in snapshot.leases.iter().filter(|(_, lease)| lease.reclaim.is_some()) {
        let settled_ms = lease.noticed_ms.saturating_add(LATE_BINDING_MS);
        if unsaved.contains(id) {
            continue;
        } else if settled_ms <= snapshot.now_ms {
            plan.saved.insert(*id);
        } else {
            plan.wake_at_ms = Some(plan.wake_at_ms.map_or(settled_ms, |other| other.min(settled_ms)));
        }
    }
    plan
}

/// The notice that a pod lacks, if any.
fn notice(pod: &BoundPod, lease: LeaseId, reclaim: Option<&ReclaimNotice>) -> Option<Notice> {
    let (marks, note) = match reclaim {
        Some(reclaim) => {
            let was_notified = pod.notified_deadline.as_ref() == Some(&reclaim.at)
                && pod.notified_reason.as_ref() == Some(&reclaim.reason);
            (!was_notified)
                .then(|| (Some((reclaim.at.clone(), reclaim.reason.clone())), reclaim_event(lease, reclaim)))?
        }
        None => pod.is_notified().then(|| (None, withdrawn_event(lease)))?,
    };
    Some(Notice { pod: pod.pod.clone(), marks, note })
}

fn reclaim_event(lease: LeaseId, reclaim: &ReclaimNotice) -> Note {
    let goes_on = match reclaim.moved_to {
        None => "another place is sought".to_owned(),
        Some(next) => format!("it continues as {next}"),
    };
    Note {
        is_warning: true,
        reason: "ComityReclaim",
        text: format!(
            "{lease} ends at {}, {}; {goes_on}. Save your work and end, or annotate the pod {}=true",
            reclaim.at,
            if reclaim.message.is_empty() { &reclaim.reason } else { &reclaim.message },
            super::CHECKPOINTED,
        ),
    }
}

fn withdrawn_event(lease: LeaseId) -> Note {
    Note {
        is_warning: false,
        reason: "ComityReclaimWithdrawn",
        text: format!("{lease} is no longer being reclaimed: the pod continues"),
    }
}

#[cfg(test)]
mod tests;
