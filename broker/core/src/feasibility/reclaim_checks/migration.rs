//! Migration: moves leases aside so that a request fits that only fragmentation keeps out.
//!
//! Its cost is bounded. At most [`MAX_MIGRATION_MOVES`] leases move for a request. Each is preemptible, saves
//! checkpoints, has been active for [`MIN_MOVE_INTERVAL`] since it began or last moved, and has no higher priority than
//! the request.
//! Each has its new place, alongside that of the request, before it is reclaimed; it ends only once that place is
//! usable, and nobody else gets that place until then. A request qualifies once it has waited for `reserve_after`, and
//! only where total free capacity suffices. A donor migrates leases for one request at a time.

use comity_types::{ClusterId, LeaseId, LeaseState, RequestId};

use crate::feasibility::donors::best::best;
use crate::feasibility::donors::promise::unknown_promises;
use crate::feasibility::donors::spread::Found;
use crate::feasibility::fit::cutting::MigValues;
use crate::feasibility::fit::{Wanted, fit};
use crate::feasibility::reclaim_checks::preemption::{departing_leases, is_making_room, priority};
use crate::feasibility::release::{fits_when_gone, last_end, start_after_reclaims};
use crate::feasibility::snapshot::Snapshot;
use crate::feasibility::verdict::FeasiblePlacement;
use crate::model::demand::RequestSpec;
use crate::model::lease::Lease;
use crate::model::reclaim::ReclaimReason;
use crate::model::request::Request;
use crate::model::time::{Millis, Timestamp};
use crate::state::gang::Role;
use crate::state::gpu_time::kept_end;
use crate::state::{State, gang};

/// Leases moved per request.
pub(crate) const MAX_MIGRATION_MOVES: usize = 2;
/// A lease moves at most once in this time.
pub(crate) const MIN_MOVE_INTERVAL: Millis = Millis::from_hours(1);

/// The places of a request and of the leases that move for it.
pub(crate) struct MigrationPlacements<'a> {
    pub(crate) requested: FeasiblePlacement,
    pub(crate) moved: Vec<(&'a Request, Found)>,
}

/// Whether request `by` has waited long enough, and whether moving these leases is permitted and makes it fit.
pub(crate) fn migration_holds(
    snapshot: &Snapshot<'_>,
    by: RequestId,
    donor: &ClusterId,
    moves: &[(LeaseId, &Lease)],
) -> bool {
    let state = snapshot.state;
    let Some(request) = state.requests.get(&by).filter(|request| request.waits()) else { return false };
    let waited = state.log_time.since(request.waits_since()) >= state.settings().reserve_after;
    let busy = is_making_room(state, donor);
    let value = priority_value(snapshot, &request.spec);
    waited
        && !busy
        && request.spec.allows(donor)
        && moves.len() <= MAX_MIGRATION_MOVES
        && moves.iter().all(|(_, lease)| may_be_moved(state, lease, value))
        && has_enough_free(snapshot, &request.spec, donor)
        && plan_moves(snapshot, &request.spec, donor, moves).is_some()
}

/// Whether `lease`, which is being reclaimed for `by`, still is in its way and has a place to go.
pub(crate) fn migration_still_needed(state: &State, by: RequestId, id: LeaseId, lease: &Lease) -> bool {
    let request = state.requests.get(&by).filter(|request| request.waits() && request.room_at.is_some());
    let (Some(request), Some(snapshot)) = (request, Snapshot::new(state)) else { return false };
    let donor = &lease.placement.donor;
    let departing = || departing_leases(state, donor);
    let start = last_end(state, departing());
    let Some(candidate) = fits_when_gone(&snapshot, &request.spec, donor, departing(), start) else { return false };
    let others = departing().filter(|(other, _)| *other != id);
    if fits_when_gone(&snapshot, &request.spec, donor, others, start).is_some() {
        return false;
    }
    lease.moved_to.is_some()
        || places_for_moved(&snapshot, &request.spec, (&candidate, start), &[(id, lease)]).is_some()
}

pub(crate) fn priority_value(snapshot: &Snapshot<'_>, spec: &RequestSpec) -> u32 {
    snapshot.bundle.priority_value(spec.priority.as_ref().map(comity_types::PriorityName::as_str))
}

/// Whether a lease may move for a request of priority `value`.
pub(crate) fn may_be_moved(state: &State, lease: &Lease, value: u32) -> bool {
    let Some(request) = state.requests.get(&lease.request) else { return false };
    let settled = lease.active_at.is_some_and(|since| state.log_time.since(since) >= MIN_MOVE_INTERVAL);
    // A request with a move in progress must not move again.
    let is_stationary = request.chains(state).all(|chain| chain.len() == 1);
    lease.state == LeaseState::Active
        && settled
        && is_stationary
        && request.parts.is_empty()
        && request.spec.preemptible.is_some_and(|preemptible| preemptible.checkpoint)
        && priority(state, lease) <= value
}

/// Whether a donor's total free capacity suffices for the request.
pub(crate) fn has_enough_free(snapshot: &Snapshot<'_>, spec: &RequestSpec, donor: &ClusterId) -> bool {
    let capacity = snapshot.state.derived.capacities.get(donor).map_or(0, |capacity| capacity.gpu_milli);
    capacity.saturating_sub(snapshot.lent_milli(donor)) >= spec.least_milli()
}

/// When a request starts for which these leases move.
pub(crate) fn start_after_moves(state: &State, donor: &ClusterId, moves: &[(LeaseId, &Lease)]) -> Timestamp {
    // The notice does not depend on the request.
    let reason = ReclaimReason::Migration { by: RequestId(0) };
    start_after_reclaims(state, donor, moves.iter().map(|(_, lease)| *lease), &reason)
}

/// The placement of `spec`, which starts at `start`, once `moves` and all departing leases are gone.
pub(crate) fn placement_without(
    snapshot: &Snapshot<'_>,
    spec: &RequestSpec,
    donor: &ClusterId,
    moves: &[(LeaseId, &Lease)],
    start: Timestamp,
) -> Option<FeasiblePlacement> {
    let gone = departing_leases(snapshot.state, donor).chain(moves.iter().copied());
    fits_when_gone(snapshot, spec, donor, gone, start)
}

/// The places of `spec` and of the moved leases. `None` if `spec` still does not fit, if a move is superfluous, or if a
/// moved lease finds no place.
pub(crate) fn plan_moves<'a>(
    snapshot: &Snapshot<'a>,
    spec: &RequestSpec,
    donor: &ClusterId,
    moves: &[(LeaseId, &Lease)],
) -> Option<MigrationPlacements<'a>> {
    let start = start_after_moves(snapshot.state, donor, moves);
    let requested = placement_without(snapshot, spec, donor, moves, start)?;
    let needed = |(id, _): &(LeaseId, &Lease)| {
        let rest: Vec<(LeaseId, &Lease)> = moves.iter().filter(|(other, _)| other != id).copied().collect();
        placement_without(snapshot, spec, donor, &rest, start).is_none()
    };
    if moves.len() > 1 && !moves.iter().all(needed) {
        return None;
    }
    let moved = places_for_moved(snapshot, spec, (&requested, start), moves)?;
    Some(MigrationPlacements { requested, moved })
}

/// New places for `moves`, found while each still holds its old place and `candidate` is taken from `start` on; `None` if any has none.
fn places_for_moved<'a>(
    snapshot: &Snapshot<'a>,
    spec: &RequestSpec,
    (candidate, start): (&FeasiblePlacement, Timestamp),
    moves: &[(LeaseId, &Lease)],
) -> Option<Vec<(&'a Request, Found)>> {
    let mut snapshot = snapshot.clone();
    snapshot.take_from(start, spec, candidate);
    let mut mig_values = MigValues::default();
    let place = |(id, lease): &(LeaseId, &Lease)| {
        let request = snapshot.state.requests.get(&lease.request)?;
        snapshot.exclude(lease);
        snapshot.kept_end = kept_end(snapshot.state, request, Role::Replaces(*id));
        // A donor that failed the request may fail it again, and reclaims would repeat for nothing.
        let mut spec = gang::whole_replacement_spec(&request.spec);
        spec.deny_donors.extend(request.failed_donors.iter().cloned());
        let mut fitter = |snapshot: &Snapshot<'_>, donor: &ClusterId, wanted: &Wanted<'_>| {
            fit(snapshot, donor, wanted, &mut mig_values)
        };
        let found = best(&snapshot, &spec, Some(request), unknown_promises(snapshot.state, &spec), &mut fitter)?;
        for part in &found {
            snapshot.take(&spec, &part.class, part.agreement.as_deref(), &part.placement);
        }
        snapshot.kept_end = None;
        Some((request, found))
    };
    moves.iter().map(place).collect()
}
