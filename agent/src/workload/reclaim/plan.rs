//! Who has to be told what, and whose work is saved: a pure function of a look.

use std::collections::{BTreeMap, BTreeSet};

use super::pod::PodFacts;
use super::view::{LeaseView, ReclaimNotice, ReclaimView};
use crate::workload::burst::{Note, PodRef};

/// Pods that were bound just before a lease was reclaimed are seen a little late.
const SETTLED_AFTER_MS: u64 = 5_000;

/// What a pod is told: by its annotations, and by one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The pod.
    pub pod: PodRef,
    /// When its lease ends and why, as its annotations say; `None` takes them off again. An answer to an earlier notice
    /// goes with either.
    pub marks: Option<(String, String)>,
    /// The event.
    pub note: Note,
}

/// What to do now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReclaimPlan {
    /// Who is told what.
    pub notices: Vec<Notice>,
    /// Leases that are being reclaimed and of which nothing runs that is not saved.
    pub saved: BTreeSet<String>,
    /// When to look again though nothing changes.
    pub look_again_ms: Option<u64>,
}

/// What to do now.
#[must_use]
pub fn plan(view: &ReclaimView) -> ReclaimPlan {
    let mut plan = ReclaimPlan::default();
    let by_node: BTreeMap<&str, (&String, &LeaseView)> =
        view.leases.iter().map(|(id, lease)| (lease.node.as_str(), (id, lease))).collect();
    let mut unsaved: BTreeSet<&str> = BTreeSet::new();
    for pod in &view.pods {
        let Some((id, lease)) = by_node.get(pod.node.as_str()).filter(|_| !pod.is_finished) else { continue };
        let notice = notice(pod, id, lease.reclaim.as_ref());
        // An answer that came before the question is none.
        if pod.runs && (notice.is_some() || !pod.is_saved) {
            unsaved.insert(id);
        }
        plan.notices.extend(notice);
    }
    for (id, lease) in view.leases.iter().filter(|(_, lease)| lease.reclaim.is_some()) {
        let settled_ms = lease.noticed_ms.saturating_add(SETTLED_AFTER_MS);
        if unsaved.contains(id.as_str()) {
            continue;
        } else if settled_ms <= view.now_ms {
            plan.saved.insert(id.clone());
        } else {
            plan.look_again_ms = Some(plan.look_again_ms.map_or(settled_ms, |other| other.min(settled_ms)));
        }
    }
    plan
}

/// What a pod has to be told that it was not told yet.
fn notice(pod: &PodFacts, lease: &str, reclaim: Option<&ReclaimNotice>) -> Option<Notice> {
    let (marks, note) = match reclaim {
        Some(reclaim) => {
            let was_told =
                pod.told_at.as_ref() == Some(&reclaim.at) && pod.told_reason.as_ref() == Some(&reclaim.reason);
            (!was_told).then(|| (Some((reclaim.at.clone(), reclaim.reason.clone())), ends(lease, reclaim)))?
        }
        None => pod.is_told().then(|| (None, stays(lease)))?,
    };
    Some(Notice { pod: pod.pod.clone(), marks, note })
}

fn ends(lease: &str, reclaim: &ReclaimNotice) -> Note {
    let goes_on = match reclaim.moved_to.as_str() {
        "" => "another place is sought".to_owned(),
        next => format!("it goes on as {next}"),
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

fn stays(lease: &str) -> Note {
    Note {
        is_warning: false,
        reason: "ComityReclaimWithdrawn",
        text: format!("{lease} is no longer being reclaimed: the pod goes on"),
    }
}

#[cfg(test)]
mod tests;
