//! Decides which requests may preempt, and which leases yield to them.

use comity_types::{ClusterId, LeaseId, LeaseState, RequestId};

use crate::model::demand::RequestSpec;
use crate::model::lease::Lease;
use crate::model::policy_record::PolicyRecord;
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
    state.leases_of(donor).filter(move |(_, lease)| lease.placement.donor == *donor && departs(lease))
}

/// Whether a lease still occupies capacity and will soon free it.
pub(crate) fn departs(lease: &Lease) -> bool {
    lease.occupies() && matches!(lease.state, LeaseState::Ending | LeaseState::Reclaiming)
}

/// The waiting request for which a lease is being reclaimed.
pub(crate) fn beneficiary_of(state: &State, lease: &Lease) -> Option<RequestId> {
    let by = lease.reclaim.as_ref()?.reason.for_request()?;
    state.requests.get(&by).filter(|request| request.room_at.is_some() && request.waits()).map(|_| by)
}

/// The leases that are being reclaimed for a request, and depart still.
pub(crate) fn reclaimed_for(state: &State, id: RequestId) -> impl Iterator<Item = (LeaseId, &Lease)> {
    let departs =
        |lease: &Lease| lease.occupies() && matches!(lease.state, LeaseState::Ending | LeaseState::Reclaiming);
    state.live_leases().filter(move |(_, lease)| departs(lease) && beneficiary_of(state, lease) == Some(id))
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
