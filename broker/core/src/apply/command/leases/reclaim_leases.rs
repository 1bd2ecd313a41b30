//! Starts reclaims, and cancels those that are no longer needed.

use comity_policy::DocRef;
use comity_types::{LeaseId, LeaseState, RequestId};
use serde::{Deserialize, Serialize};

use crate::apply::command::clusters::mark_clusters::refresh_suspicion;
use crate::feasibility::advance_reservations::check_kept::RESERVED;
use crate::feasibility::reclaim_checks::kept::KeptNeed;
use crate::feasibility::reclaim_checks::limit;
use crate::feasibility::reclaim_checks::reclaim_budget::is_limited;
use crate::feasibility::reclaim_checks::terms::withdrawal_of;
use crate::feasibility::{check_reclaims, is_still_needed};
use crate::model::limits::MAX_RECLAIMS_PER_COMMAND;
use crate::model::proposal::ProposedReclaim;
use crate::model::reclaim::{Reclaim, ReclaimReason};
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::model::time::Millis;
use crate::state::State;
use crate::state::notice::notice;
use crate::state::transition::Transition;

/// Cancels reclaims whose reason is gone, then starts new ones. Apply checks each again. The deadline follows from log
/// time and the notice that policy requires, so no proposal can shorten it. Leases whose device or node is gone, leases
/// that policy stops and leases not yet in force end at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReclaimLeases {
    /// Leases under reclaim that may stay.
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
        let checked = check_reclaims(transition.state(), &self.reclaims);
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
    let reclaimed = transition.state().leases.get(&id).is_some_and(|lease| lease.state == LeaseState::Reclaiming);
    if !reclaimed || is_still_needed(transition.state(), id) {
        let reason = format!("{id} is not reclaimed, or its reason holds");
        return Err(Refusal::new(Code::WrongState, reason, "look again").at("lease", id));
    }
    transition.cancel_reclaim(id);
    refresh_suspicion(transition, id);
    Ok(())
}

fn reclaim_lease(transition: &mut Transition<'_>, proposed: &ProposedReclaim) {
    let Some(lease) = transition.state().leases.get(&proposed.lease) else { return };
    let (request, donor, was) = (lease.request, lease.placement.donor.clone(), lease.state);
    // Its request still ends with it, if an earlier reclaim says so.
    let ends_request = lease.reclaim.as_ref().filter(|_| lease.ends_its_request()).map(Reclaim::end_reason);
    let grace = notice(transition.state(), lease, &proposed.reason);
    let (since, reason) = (transition.now(), proposed.reason.clone());
    transition.change_request(request, |request| request.reclaims = request.reclaims.saturating_add(1));
    if reason.leaves_no_time() || was.is_held() {
        if (was.is_in_force() || reason.is_stop()) && ends_request.is_none() {
            let (grace, reason) = (Millis(0), reason.clone());
            let reclaim = Some(Reclaim { reason, since, grace, deadline: since });
            transition.change_lease(proposed.lease, |lease| lease.reclaim = reclaim);
        }
        let end_reason = ends_request.unwrap_or(reason.ends_at_once());
        transition.end_lease(proposed.lease, end_reason, &reason.to_string());
        return;
    }
    if is_limited(&reason) {
        transition.note_reclaim(proposed.lease);
    }
    let reasons = documents_behind(transition.state(), proposed);
    transition.change_lease_because(proposed.lease, reasons, |lease| {
        lease.state = LeaseState::Reclaiming;
        lease.message = format!("reclaimed: {reason}");
        lease.reclaim = Some(Reclaim { reason, since, grace, deadline: since.after(grace) });
    });
    // The request was served, so its count of attempts starts again.
    transition.change_request(request, |request| request.attempts = 0);
    if let Some(by) = proposed.reason.for_request() {
        let (donor, message) = match &proposed.reason {
            ReclaimReason::BorrowedQuota { at, .. } => (
                at.clone(),
                format!("waiting for quota that others borrow; it is being reclaimed, and the request starts at {at}"),
            ),
            _ => {
                let message = format!("waiting for room at {donor}, where leases are being reclaimed for it");
                (donor, message)
            }
        };
        transition.change_request(by, |request| {
            request.message = message;
            request.room_at = Some(donor);
        });
    }
}

/// The documents behind a reclaim with notice: what withdraws or preempts the lease, and what sets the notice.
fn documents_behind(state: &State, proposed: &ProposedReclaim) -> Vec<DocRef> {
    let (Some(record), Some(lease)) = (&state.policy, state.leases.get(&proposed.lease)) else { return Vec::new() };
    let bundle = &record.bundle;
    let terms = bundle.clusters.get(lease.placement.donor.as_str());
    let priority_of = |id: RequestId| {
        let class = state.requests.get(&id)?.spec.priority.as_ref()?;
        Some(bundle.priorities.get(class.as_str())?.cite("value"))
    };
    let mut documents = match &proposed.reason {
        ReclaimReason::PolicyChanged { code, .. } if code == limit::CODE => {
            terms.map(|terms| terms.cite("maxLentGpus")).into_iter().collect()
        }
        ReclaimReason::PolicyChanged { code, .. } if code == RESERVED => {
            let need = KeptNeed::of(state, &lease.placement.donor, state.log_time);
            need.map_or_else(Vec::new, |need| need.documents())
        }
        ReclaimReason::PolicyChanged { .. } => {
            withdrawal_of(state, lease, state.log_time).map_or_else(Vec::new, |found| found.denial.by)
        }
        ReclaimReason::LocalNeed => terms.map(|terms| terms.cite("localReserveGpus")).into_iter().collect(),
        ReclaimReason::Preempted { by } => {
            [priority_of(*by), priority_of(lease.request)].into_iter().flatten().collect()
        }
        ReclaimReason::BorrowedQuota { by, .. } => {
            let claimant = state.requests.get(by).map(|request| request.spec.tenant.as_str());
            let tenants = claimant.into_iter().chain([lease.tenant.as_str()]);
            tenants.flat_map(|tenant| bundle.cohort_lines(tenant, lease.class.as_str())).collect()
        }
        ReclaimReason::Migration { .. }
        | ReclaimReason::DeviceFailed { .. }
        | ReclaimReason::NodeFailed { .. }
        | ReclaimReason::DonorSilent
        | ReclaimReason::Revoked { .. }
        | ReclaimReason::UserRevoked { .. } => Vec::new(),
    };
    documents.push(match terms.filter(|terms| terms.spec.reclaim_grace_ms.is_some()) {
        Some(terms) => terms.cite("reclaimGrace"),
        None => bundle.federation.cite("defaults.reclaimGrace"),
    });
    documents
}
