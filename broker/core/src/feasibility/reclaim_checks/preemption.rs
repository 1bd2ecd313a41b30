//! Which requests may preempt, and which leases yield to them.

use crate::model::id::{ClusterId, LeaseId, RequestId};
use crate::model::lease::{Lease, LeaseState};
use crate::model::policy_record::PolicyRecord;
use crate::model::request::Request;
use crate::state::State;

/// The value of the priority class of a lease's request.
pub(crate) fn priority(state: &State, lease: &Lease) -> u32 {
    let class = state.requests.get(&lease.request).and_then(|request| request.spec.priority.as_ref());
    let value = |record: &PolicyRecord| record.bundle.priority_value(class.map(crate::PriorityName::as_str));
    state.policy.as_ref().map_or(0, value)
}

/// Leases of a donor that still take room and give it back soon: those that end and those that are being reclaimed.
pub(crate) fn going<'a>(state: &'a State, donor: &'a ClusterId) -> impl Iterator<Item = (LeaseId, &'a Lease)> {
    state.leases_of(donor).filter(move |(_, lease)| {
        lease.placement.donor == *donor
            && lease.occupies()
            && matches!(lease.state, LeaseState::Ending | LeaseState::Reclaiming)
    })
}

/// The waiting request that a lease makes room for.
pub(crate) fn for_whom(state: &State, lease: &Lease) -> Option<RequestId> {
    let by = lease.reclaim.as_ref()?.reason.for_request()?;
    state.requests.get(&by).filter(|request| request.room_at.is_some() && request.waits()).map(|_| by)
}

/// Whether `lease` may be preempted by a request of priority `value`.
pub(crate) fn may_be_preempted(state: &State, lease: &Lease, value: u32) -> bool {
    matches!(lease.state, LeaseState::Active | LeaseState::Suspect) && yields_to(state, lease, value)
}

/// Whether `lease` may be preempted so as soon as it is active.
pub(crate) fn yields_to(state: &State, lease: &Lease, value: u32) -> bool {
    let request = state.requests.get(&lease.request);
    request.is_some_and(|request| request.spec.preemptible.is_some()) && priority(state, lease) < value
}

/// The value of a request's priority class, if its requests may preempt.
pub(crate) fn preempts_as(state: &State, request: &Request) -> Option<u32> {
    let bundle = &state.policy.as_ref()?.bundle;
    let class = bundle.priorities.get(request.spec.priority.as_ref()?.as_str())?;
    class.spec.may_preempt.then_some(class.spec.value)
}

/// Whether a request may preempt.
pub(crate) fn preempts(state: &State, request: &Request) -> bool {
    preempts_as(state, request).is_some()
}
