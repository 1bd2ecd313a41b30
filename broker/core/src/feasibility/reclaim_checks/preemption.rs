//! Decides which requests may preempt, and which leases yield to them.

use std::collections::BTreeSet;

use comity_types::{ClusterId, LeaseId, LeaseState, RequestId};

use crate::model::demand::RequestSpec;
use crate::model::lease::Lease;
use crate::model::policy_record::PolicyRecord;
use crate::model::proposal::ProposedReclaim;
use crate::model::reclaim::ReclaimReason;
use crate::model::request::Request;
use crate::state::State;

/// The priority value of a lease's request.
pub(crate) fn priority(state: &State, lease: &Lease) -> u32 {
    let class = state.requests.get(&lease.request).and_then(|request| request.spec.priority.as_ref());
    let value = |record: &PolicyRecord| record.bundle.priority_value(class.map(comity_types::PriorityName::as_str));
    state.policy.as_ref().map_or(0, value)
}

/// Leases of a donor that still occupy capacity and will soon free it: those ending or being reclaimed.
pub(crate) fn departing_leases<'a>(
    state: &'a State,
    donor: &'a ClusterId,
) -> impl Iterator<Item = (LeaseId, &'a Lease)> {
    state.leases_of(donor).filter(move |(_, lease)| lease.placement.donor == *donor && lease.departs())
}

/// The waiting request for which a lease is being reclaimed.
pub(crate) fn beneficiary_of(state: &State, lease: &Lease) -> Option<RequestId> {
    let by = lease.reclaim.as_ref()?.reason.for_request()?;
    state.requests.get(&by).filter(|request| request.room_at.is_some() && request.waits()).map(|_| by)
}

/// The leases that are being reclaimed for a request, and depart still.
pub(crate) fn reclaimed_for(state: &State, id: RequestId) -> impl Iterator<Item = (LeaseId, &Lease)> {
    state.departing().filter(move |(_, lease)| beneficiary_of(state, lease) == Some(id))
}

/// Whether a donor is making room for a waiting request, or will serve one for which leases elsewhere are reclaimed.
pub(crate) fn is_making_room(state: &State, donor: &ClusterId) -> bool {
    let serves = |id: &RequestId| {
        let is_there = state.requests.get(id).is_some_and(|request| request.room_at.as_ref() == Some(donor));
        is_there && reclaimed_for(state, *id).next().is_some()
    };
    departing_leases(state, donor).any(|(_, lease)| beneficiary_of(state, lease).is_some())
        || state.derived.reclaimed_for.iter().any(serves)
}

/// Whether leases of a donor yield to a waiting request or move aside for it.
pub(crate) fn is_yielding(state: &State, donor: &ClusterId) -> bool {
    departing_leases(state, donor).any(|(_, lease)| {
        let reason = lease.reclaim.as_ref().map(|reclaim| &reclaim.reason);
        let returns_quota = matches!(reason, Some(ReclaimReason::BorrowedQuota { .. }));
        !returns_quota && beneficiary_of(state, lease).is_some()
    })
}

/// The donors of planned reclaims, and those where they let a request start.
pub(crate) fn donors_of<'a>(state: &'a State, planned: &'a [ProposedReclaim]) -> BTreeSet<&'a ClusterId> {
    let donors = planned.iter().flat_map(|reclaim| {
        let at = match &reclaim.reason {
            ReclaimReason::BorrowedQuota { at, .. } => Some(at),
            _ => None,
        };
        at.into_iter().chain(state.leases.get(&reclaim.lease).map(|lease| &lease.placement.donor))
    });
    donors.collect()
}

/// Whether a request of priority `value` may preempt `lease` now.
pub(crate) fn may_be_preempted(state: &State, lease: &Lease, value: u32) -> bool {
    matches!(lease.state, LeaseState::Active | LeaseState::Suspect) && yields_to_priority(state, lease, value)
}

/// Whether a request of priority `value` may preempt `lease` as soon as that is active.
pub(crate) fn yields_to_priority(state: &State, lease: &Lease, value: u32) -> bool {
    let request = state.requests.get(&lease.request);
    request.is_some_and(|request| request.spec.preemptible.is_some()) && priority(state, lease) < value
}

/// The priority value of a request, if its class may preempt.
pub(crate) fn preempting_priority(state: &State, spec: &RequestSpec) -> Option<u32> {
    let bundle = &state.policy.as_ref()?.bundle;
    let class = bundle.priorities.get(spec.priority.as_ref()?.as_str())?;
    class.spec.may_preempt.then_some(class.spec.value)
}

/// Whether a request may preempt.
pub(crate) fn may_preempt(state: &State, request: &Request) -> bool {
    preempting_priority(state, &request.spec).is_some()
}
