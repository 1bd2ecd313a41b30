//! Handles every deadline that has passed.

use comity_policy::{DenyCode, show_duration};
use comity_types::{EndReason, LeaseId, LeaseState, PeeringId, PeeringState, RequestId, RequestState};
use serde::{Deserialize, Serialize};

use crate::apply::command::clusters::mark_clusters::refresh_suspicion;
use crate::feasibility::check_renewal::renewal_obstacle;
use crate::model::lease::Lease;
use crate::model::limits::{MAX_EXPIRIES_PER_COMMAND, MAX_PASTS_KEPT};
use crate::model::policy_record::PolicyRecord;
use crate::model::reply::{Reply, ReplyBody};
use crate::state::timers::Due;
use crate::state::transition::Transition;
use crate::state::{State, gang};

/// Handles what is due at the entry's log time: ends of holds, terms and notices, idle leases, start windows of requests,
/// deadlines and retries of handshakes, idle peerings, unread envelopes, quarantines, join tokens and stored replies.
/// Also drops the oldest ended objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expire {}

impl Expire {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let due = transition.state().derived.timers.due(transition.now(), MAX_EXPIRIES_PER_COMMAND);
        let moved = u32::try_from(due.len()).unwrap_or(u32::MAX);
        for due in due {
            match due {
                Due::Lease(id) => expire_lease(transition, id),
                Due::IdleLeases(id) => release_idle(transition, id),
                Due::Peering(id) => expire_peering(transition, id),
                Due::Request(id) => expire_request(transition, id),
                Due::Envelope(key) => transition.remove_envelope(&key),
                Due::Invite(hash) => transition.remove_invite(&hash),
                Due::Idempotency(name) => transition.forget_reply(&name),
                Due::Health(cluster) => transition.end_quarantines(&cluster),
            }
        }
        transition.forget_ended();
        if transition.state().fairness.len() > MAX_PASTS_KEPT {
            transition.account_all_use();
        }
        Ok(ReplyBody::Expired { moved })
    }
}

fn expire_lease(transition: &mut Transition<'_>, id: LeaseId) {
    let Some(lease) = transition.state().leases.get(&id) else { return };
    match lease.state {
        LeaseState::Placed | LeaseState::Connecting => {
            let message = format!("not active within its hold: {}", unready_side(lease));
            transition.end_lease(id, EndReason::HoldExpired, &message);
        }
        LeaseState::Active | LeaseState::Suspect => {
            let message = format!("its term ran out{}", why_not_renewed(transition.state(), id, lease));
            transition.end_lease(id, EndReason::Expired, &message);
        }
        LeaseState::Reclaiming if transition.must_outlast_migration(id) => {
            // The lease was to move to make room for another request, but has no new place.
            transition.cancel_reclaim(id);
            refresh_suspicion(transition, id);
        }
        LeaseState::Reclaiming => {
            let reclaimed = lease.reclaim.as_ref().filter(|reclaim| reclaim.deadline <= transition.now());
            match reclaimed.map(|reclaim| (reclaim.end_reason(), reclaim.reason.to_string())) {
                Some((reason, why)) => transition.end_lease(id, reason, &format!("reclaimed: {why}")),
                None => transition.end_lease(id, EndReason::Expired, "its term ran out while it was reclaimed"),
            }
        }
        LeaseState::Ending | LeaseState::Ended => {}
    }
}

/// Tells of a quota of GPU-hours that allows no further term; empty if none is in the way.
fn why_not_renewed(state: &State, id: LeaseId, lease: &Lease) -> String {
    let limits = |record: &PolicyRecord| record.bundle.limits_gpu_time_of(lease.tenant.as_str());
    let limited = state.policy.as_ref().is_some_and(limits);
    let obstacle = limited.then(|| renewal_obstacle(state, id, lease.term)).flatten();
    let exhausted = obstacle.filter(|obstacle| obstacle.code == DenyCode::GpuHoursExhausted.as_str());
    exhausted.map_or_else(String::new, |it| format!("; a new one is not allowed: {} [{}]", it.reason, it.by.join(", ")))
}

/// Releases the leases of a request that have all been idle for as long as they may; the first one ends the others.
fn release_idle(transition: &mut Transition<'_>, id: RequestId) {
    let Some(request) = transition.state().requests.get(&id) else { return };
    // An expiry in the same command may have ended some.
    if gang::idle_due(transition.state(), request).is_none_or(|due| due > transition.now()) {
        return;
    }
    let Some((lease, limit)) =
        gang::parts(transition.state(), request).find_map(|(id, lease)| Some((id, lease.release_idle?)))
    else {
        return;
    };
    let message = format!("no work used it for {}", show_duration(limit.0));
    transition.end_lease(lease, EndReason::Idle, &message);
}

/// Opens or closes a start window, or ends the pause before a retry. A request placed in time meets its deadline; if its
/// hold fails after the deadline, it is not retried.
fn expire_request(transition: &mut Transition<'_>, id: RequestId) {
    let now = transition.now();
    transition.change_request(id, |request| {
        request.early = false;
        request.retry_at = None;
        if request.spec.start_by.is_some_and(|deadline| deadline <= now) {
            request.state = RequestState::Failed;
            "not placed by its latest start: no donor could serve it in time".clone_into(&mut request.message);
        } else {
            "waiting for a donor".clone_into(&mut request.message);
        }
    });
}

fn unready_side(lease: &Lease) -> &'static str {
    use crate::model::lease::SideState::Ready;
    match (lease.donor_side, lease.origin_side) {
        (Ready, Ready) => "nothing",
        (Ready, _) => "the origin did not reach the donor",
        (_, Ready) => "the donor did not prepare the delivery",
        _ => "neither side was ready",
    }
}

fn expire_peering(transition: &mut Transition<'_>, id: PeeringId) {
    let Some(peering) = transition.state().peerings.get(&id) else { return };
    let is_unused = peering.leases.is_empty();
    match peering.state {
        PeeringState::Proposed | PeeringState::Keys | PeeringState::Authenticating | PeeringState::Establishing => {
            let message = format!("step {} was not done in time", step_name(peering.state));
            transition.fail_peering(id, &message);
        }
        PeeringState::Established if is_unused => transition.drain_peering(id, "idle"),
        PeeringState::Failed if is_unused => transition.drain_peering(id, "failed, and no lease needs it"),
        PeeringState::Failed => {
            let deadline = transition.now().after(transition.settings().handshake_step);
            transition.change_peering(id, |peering| {
                peering.state = PeeringState::Proposed;
                peering.epoch = peering.epoch.saturating_add(1);
                peering.retry_at = None;
                peering.deadline = Some(deadline);
                "trying again with fresh keys".clone_into(&mut peering.message);
            });
        }
        PeeringState::Established | PeeringState::Draining | PeeringState::Closed => {}
    }
}

fn step_name(state: PeeringState) -> &'static str {
    match state {
        PeeringState::Proposed | PeeringState::Keys => "keys",
        PeeringState::Authenticating => "authenticate",
        _ => "establish",
    }
}
