//! Repair: leases that move aside so that a request fits which does not because free room lies in pieces.
//!
//! What it may cost is bounded. At most [`MAX_MOVES`] leases move for a request; each says that it may be preempted and
//! when its work is saved, has been active for [`NO_MOVE_BEFORE`] since it began or moved last, and is of no higher
//! priority than the request; and each has its new place before it is being reclaimed, beside what the request gets. It
//! ends only once it is usable there; until then nobody else gets that place. A request asks for this only after it has
//! waited as long as capacity is reserved after, and only where enough is free in sum; at one donor for one request at
//! a time.

use crate::feasibility::donors::best::best;
use crate::feasibility::donors::promise::promising_nothing;
use crate::feasibility::donors::spread::Found;
use crate::feasibility::fit::cutting::MigValues;
use crate::feasibility::fit::{Wanted, fit};
use crate::feasibility::reclaim_checks::preemption::{for_whom, going, priority};
use crate::feasibility::release::fits_when_gone;
use crate::feasibility::snapshot::Snapshot;
use crate::feasibility::verdict::FeasiblePlacement;
use crate::model::demand::RequestSpec;
use crate::model::id::{ClusterId, LeaseId, RequestId};
use crate::model::lease::{Lease, LeaseState};
use crate::model::request::Request;
use crate::model::time::Millis;
use crate::state::{State, gang};

/// Leases that move for one request.
pub(crate) const MAX_MOVES: usize = 2;
/// A lease moves at most once in as long.
pub(crate) const NO_MOVE_BEFORE: Millis = Millis::from_hours(1);

/// Where a request fits once others have moved, and where each of these goes.
pub(crate) struct Places<'a> {
    pub(crate) own: FeasiblePlacement,
    pub(crate) others: Vec<(&'a Request, Found)>,
}

/// Whether request `by` waits for so long that others move for it, and these may, and let it in.
pub(crate) fn is_right(snapshot: &Snapshot<'_>, by: RequestId, donor: &ClusterId, moves: &[(LeaseId, &Lease)]) -> bool {
    let state = snapshot.state;
    let Some(request) = state.requests.get(&by).filter(|request| request.waits()) else { return false };
    let waited = state.log_time.since(request.waits_since()) >= state.settings().reserve_after;
    let busy = going(state, donor).any(|(_, lease)| for_whom(state, lease).is_some());
    let value = value(snapshot, &request.spec);
    waited
        && !busy
        && request.spec.allows(donor)
        && moves.len() <= MAX_MOVES
        && moves.iter().all(|(_, lease)| may_move(state, lease, value))
        && is_free_in_sum(snapshot, &request.spec, donor)
        && lets_in(snapshot, &request.spec, donor, moves).is_some()
}

/// Whether `lease`, which is being reclaimed for `by`, still is in the way of it and has a place to go.
pub(crate) fn is_still_right(state: &State, by: RequestId, (id, lease): (LeaseId, &Lease)) -> bool {
    let request = state.requests.get(&by).filter(|request| request.waits() && request.room_at.is_some());
    let (Some(request), Some(snapshot)) = (request, Snapshot::new(state)) else { return false };
    let donor = &lease.placement.donor;
    let gone = |with: bool| going(state, donor).filter(move |(other, _)| with || *other != id).map(|(_, lease)| lease);
    let Some(candidate) = fits_when_gone(&snapshot, &request.spec, donor, gone(true)) else { return false };
    if fits_when_gone(&snapshot, &request.spec, donor, gone(false)).is_some() {
        return false;
    }
    lease.moved_to.is_some() || moves_beside(&snapshot, &request.spec, &candidate, &[(id, lease)]).is_some()
}

pub(crate) fn value(snapshot: &Snapshot<'_>, spec: &RequestSpec) -> u32 {
    snapshot.bundle.priority_value(spec.priority.as_ref().map(crate::PriorityName::as_str))
}

/// Whether a lease may be asked to move for a request of priority `value`.
pub(crate) fn may_move(state: &State, lease: &Lease, value: u32) -> bool {
    let Some(request) = state.requests.get(&lease.request) else { return false };
    let settled = lease.active_at.is_some_and(|since| state.log_time.since(since) >= NO_MOVE_BEFORE);
    // A request that moves already is not made to move once more.
    let stands = request.chains(state).all(|chain| chain.len() == 1);
    lease.state == LeaseState::Active
        && settled
        && stands
        && request.parts.is_empty()
        && request.spec.preemptible.is_some_and(|preemptible| preemptible.checkpoint)
        && priority(state, lease) <= value
}

/// Whether what a donor lends not is as much as is asked for.
pub(crate) fn is_free_in_sum(snapshot: &Snapshot<'_>, spec: &RequestSpec, donor: &ClusterId) -> bool {
    let holds = snapshot.state.derived.capacities.get(donor).map_or(0, |holds| holds.gpu_milli);
    holds.saturating_sub(snapshot.lent_milli(donor)) >= spec.least_milli()
}

/// Where `spec` fits once these are gone, and what ends anyhow.
pub(crate) fn without(
    snapshot: &Snapshot<'_>,
    spec: &RequestSpec,
    donor: &ClusterId,
    moves: &[(LeaseId, &Lease)],
) -> Option<FeasiblePlacement> {
    let gone = going(snapshot.state, donor).map(|(_, lease)| lease).chain(moves.iter().map(|(_, lease)| *lease));
    fits_when_gone(snapshot, spec, donor, gone)
}

/// Where all go if `spec` fits without these leases, with each of them needed for it, and each has a place beside it.
pub(crate) fn lets_in<'a>(
    snapshot: &Snapshot<'a>,
    spec: &RequestSpec,
    donor: &ClusterId,
    moves: &[(LeaseId, &Lease)],
) -> Option<Places<'a>> {
    let own = without(snapshot, spec, donor, moves)?;
    let needed = |(id, _): &(LeaseId, &Lease)| {
        let rest: Vec<(LeaseId, &Lease)> = moves.iter().filter(|(other, _)| other != id).copied().collect();
        without(snapshot, spec, donor, &rest).is_none()
    };
    if moves.len() > 1 && !moves.iter().all(needed) {
        return None;
    }
    let others = moves_beside(snapshot, spec, &own, moves)?;
    Some(Places { own, others })
}

/// The new place of each of these, found while it still holds its old one, and `candidate` is taken; `None` if one has
/// none.
fn moves_beside<'a>(
    snapshot: &Snapshot<'a>,
    spec: &RequestSpec,
    candidate: &FeasiblePlacement,
    moves: &[(LeaseId, &Lease)],
) -> Option<Vec<(&'a Request, Found)>> {
    let mut snapshot = snapshot.clone();
    let (class, agreement) = (&candidate.class, candidate.agreement.as_deref());
    snapshot.take(spec.tenant.as_str(), class, agreement, &candidate.placement);
    let mut mig_values = MigValues::default();
    let place = |(_, lease): &(LeaseId, &Lease)| {
        let request = snapshot.state.requests.get(&lease.request)?;
        snapshot.without(lease);
        // Who failed it before may fail it again: it would be reclaimed for nothing, over and over.
        let mut spec = gang::whole_replacement_spec(&request.spec);
        spec.deny_donors.extend(request.failed_donors.iter().cloned());
        let mut fitter = |snapshot: &Snapshot<'_>, donor: &ClusterId, wanted: &Wanted<'_>| {
            fit(snapshot, donor, wanted, &mut mig_values)
        };
        let found = best(&snapshot, &spec, Some(request), promising_nothing(snapshot.state, &spec), &mut fitter)?;
        for part in &found {
            snapshot.take(spec.tenant.as_str(), &part.class, part.agreement.as_deref(), &part.placement);
        }
        Some((request, found))
    };
    moves.iter().map(place).collect()
}
