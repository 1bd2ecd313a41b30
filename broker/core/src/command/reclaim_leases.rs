//! Leases are being reclaimed, and some that were are spared.

use serde::{Deserialize, Serialize};

use super::mark_clusters::reconsider;
use crate::id::LeaseId;
use crate::lease::LeaseState;
use crate::limits::MAX_RECLAIMS_PER_COMMAND;
use crate::log::{Reply, ReplyBody};
use crate::reclaim::{Reclaim, ReclaimReason, notice};
use crate::refusal::{Code, Refusal};
use crate::scheduler;
use crate::time::Millis;
use crate::transition::Transition;

/// A lease to reclaim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProposedReclaim {
    /// Which one.
    pub lease: LeaseId,
    /// Why.
    pub reason: ReclaimReason,
}

/// Spares leases whose reason has gone away, then calls others back. Each is checked once more, and its deadline
/// follows from log time and the notice that policy asks for: no proposal can make it shorter. Leases whose place is
/// gone end at once, and so do those that are not in force yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReclaimLeases {
    /// Leases that are being reclaimed and may stay.
    pub spare: Vec<LeaseId>,
    /// Leases to reclaim.
    pub reclaims: Vec<ProposedReclaim>,
}

impl ReclaimLeases {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let asked = self.reclaims.len().max(self.spare.len());
        if asked > MAX_RECLAIMS_PER_COMMAND {
            let remedy = format!("propose at most {MAX_RECLAIMS_PER_COMMAND} of each");
            return Err(Refusal::invalid("reclaims", asked, "are too many for one command", remedy));
        }
        let (mut leases, mut spared, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for id in &self.spare {
            match spare(transition, *id) {
                Ok(()) => spared.push(*id),
                Err(refusal) => refused.push((*id, refusal)),
            }
        }
        let checked = scheduler::check_reclaims(transition.state, &self.reclaims);
        for (proposed, checked) in self.reclaims.iter().zip(checked) {
            match checked {
                Ok(()) => {
                    reclaim_lease(transition, proposed);
                    leases.push(proposed.lease);
                }
                Err(refusal) => refused.push((proposed.lease, refusal)),
            }
        }
        Ok(ReplyBody::Reclaimed { leases, spared, refused })
    }
}

fn spare(transition: &mut Transition<'_>, id: LeaseId) -> Result<(), Refusal> {
    let reclaimed = transition.state.leases.get(&id).is_some_and(|lease| lease.state == LeaseState::Reclaiming);
    if !reclaimed || scheduler::is_still_needed(transition.state, id) {
        let reason = format!("{id} is not reclaimed, or its reason holds");
        return Err(Refusal::new(Code::WrongState, reason, "look again").at("lease", id));
    }
    transition.keep_lease(id);
    reconsider(transition, id);
    Ok(())
}

fn reclaim_lease(transition: &mut Transition<'_>, proposed: &ProposedReclaim) {
    let Some(lease) = transition.state.leases.get(&proposed.lease) else { return };
    let (request, donor) = (lease.request, lease.placement.donor.clone());
    let grace = notice(transition.state, lease, &proposed.reason);
    let (since, reason) = (transition.now, proposed.reason.clone());
    if reason.leaves_no_time() || lease.state.is_held() {
        if lease.state.is_in_force() {
            let (grace, reason) = (Millis(0), reason.clone());
            let reclaim = Some(Reclaim { reason, since, grace, deadline: since });
            transition.change_lease(proposed.lease, |lease| lease.reclaim = reclaim);
        }
        transition.end_lease(proposed.lease, reason.ends_at_once(), &reason.to_string());
        return;
    }
    transition.change_lease(proposed.lease, |lease| {
        lease.state = LeaseState::Reclaiming;
        lease.message = format!("reclaimed: {reason}");
        lease.reclaim = Some(Reclaim { reason, since, grace, deadline: since.after(grace) });
    });
    // It was served: what is tried from now on counts again.
    transition.change_request(request, |request| request.attempts = 0);
    if let Some(by) = proposed.reason.for_request() {
        transition.change_request(by, |request| {
            request.message = format!("waiting for room at {donor}, where leases are being reclaimed for it");
            request.room_at = Some(donor);
        });
    }
}
