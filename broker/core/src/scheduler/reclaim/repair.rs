//! Repair: leases that move aside so that a request fits which does not because free room lies in pieces.
//!
//! What it may cost is bounded. At most [`MAX_MOVES`] leases move for a request; each says that it may be preempted and
//! when its work is saved, has been active for [`NO_MOVE_BEFORE`] since it began or moved last, and is of no higher
//! priority than the request; and each has its new place before it is being reclaimed, beside what the request gets. It
//! ends only once it is usable there; until then nobody else gets that place. A request asks for this only after it has
//! waited as long as capacity is reserved after, and only where enough is free in sum; at one donor for one request at
//! a time.

use std::collections::BTreeSet;

use super::choose::{Victim, priority};
use super::room::{fits_when_gone, for_whom, going};
use crate::demand::RequestSpec;
use crate::gang;
use crate::id::{ClusterId, LeaseId, RequestId};
use crate::lease::{Lease, LeaseState};
use crate::request::Request;
use crate::scheduler::cutting::Worths;
use crate::scheduler::fit::{Wanted, fit};
use crate::scheduler::plan::{best, donors, promising_nothing};
use crate::scheduler::spread::Found;
use crate::scheduler::verdict::Candidate;
use crate::scheduler::view::View;
use crate::state::State;
use crate::time::Millis;

/// Leases that move for one request.
pub(crate) const MAX_MOVES: usize = 2;
/// A lease moves at most once in as long.
pub(crate) const NO_MOVE_BEFORE: Millis = Millis::from_hours(1);
/// Leases of one donor that are tried one by one, those that lose least first.
const MAX_ALONE: usize = 64;
/// Of these so many are tried in pairs.
const MAX_PAIRED: usize = 12;

/// Leases of one donor that move so that a request fits there.
pub(crate) struct Repair<'a> {
    pub(crate) donor: &'a ClusterId,
    pub(crate) moves: Vec<(LeaseId, &'a Lease)>,
    /// Where everybody goes.
    pub(crate) places: Places<'a>,
}

/// Where a request fits once others have moved, and where each of these goes.
pub(crate) struct Places<'a> {
    pub(crate) own: Candidate,
    pub(crate) others: Vec<(&'a Request, Found)>,
}

/// The fewest leases that let `spec` in by moving, those that lose the least work first; `None` if no [`MAX_MOVES`] do.
pub(crate) fn repair_for<'a>(view: &View<'a>, spec: &RequestSpec, busy: &BTreeSet<&ClusterId>) -> Option<Repair<'a>> {
    let state = view.state;
    let value = value(view, spec);
    let mut places: Vec<(&'a ClusterId, Vec<Victim<'a>>)> = Vec::new();
    for donor in state.clusters.keys().filter(|donor| donors(state, spec).any(|other| other == *donor)) {
        let taken = busy.contains(donor) || going(state, donor).any(|(_, lease)| for_whom(state, lease).is_some());
        if taken || !is_free_in_sum(view, spec, donor) {
            continue;
        }
        let leases = state.leases_of(donor).filter(|(_, lease)| lease.placement.donor == *donor);
        let may = leases.filter(|(_, lease)| may_move(state, lease, value));
        let mut may: Vec<Victim<'a>> = may.map(|(id, lease)| Victim::of(state, id, lease)).collect();
        may.sort_by(Victim::in_order);
        // It fits there as soon as what goes already is gone, or not even without all of these.
        let all: Vec<(LeaseId, &Lease)> = may.iter().map(|victim| (victim.id, victim.lease)).collect();
        if !may.is_empty() && without(view, spec, donor, &[]).is_none() && without(view, spec, donor, &all).is_some() {
            may.truncate(MAX_ALONE);
            places.push((donor, may));
        }
    }
    let mut alone: Vec<(&'a ClusterId, Victim<'a>)> =
        places.iter().flat_map(|(donor, may)| may.iter().map(move |victim| (*donor, *victim))).collect();
    alone.sort_by(|(_, one), (_, other)| one.in_order(other));
    for (donor, victim) in alone {
        let moves = vec![(victim.id, victim.lease)];
        if let Some(places) = lets_in(view, spec, donor, &moves) {
            return Some(Repair { donor, moves, places });
        }
    }
    for (donor, may) in &places {
        for (at, first) in may.iter().take(MAX_PAIRED).enumerate() {
            for second in may.iter().take(MAX_PAIRED).skip(at + 1) {
                let moves = vec![(first.id, first.lease), (second.id, second.lease)];
                if let Some(places) = lets_in(view, spec, donor, &moves) {
                    return Some(Repair { donor, moves, places });
                }
            }
        }
    }
    None
}

/// Whether request `by` waits for so long that others move for it, and these may, and let it in.
pub(crate) fn is_right(view: &View<'_>, by: RequestId, donor: &ClusterId, moves: &[(LeaseId, &Lease)]) -> bool {
    let state = view.state;
    let Some(request) = state.requests.get(&by).filter(|request| request.waits()) else { return false };
    let waited = state.log_time.since(request.waits_since()) >= state.settings().reserve_after;
    let busy = going(state, donor).any(|(_, lease)| for_whom(state, lease).is_some());
    let value = value(view, &request.spec);
    waited
        && !busy
        && request.spec.allows(donor)
        && moves.len() <= MAX_MOVES
        && moves.iter().all(|(_, lease)| may_move(state, lease, value))
        && is_free_in_sum(view, &request.spec, donor)
        && lets_in(view, &request.spec, donor, moves).is_some()
}

/// Whether `lease`, which is being reclaimed for `by`, still is in the way of it and has a place to go.
pub(super) fn is_still_right(state: &State, by: RequestId, (id, lease): (LeaseId, &Lease)) -> bool {
    let request = state.requests.get(&by).filter(|request| request.waits() && request.room_at.is_some());
    let (Some(request), Some(view)) = (request, View::new(state)) else { return false };
    let donor = &lease.placement.donor;
    let gone = |with: bool| going(state, donor).filter(move |(other, _)| with || *other != id).map(|(_, lease)| lease);
    let Some(candidate) = fits_when_gone(&view, &request.spec, donor, gone(true)) else { return false };
    if fits_when_gone(&view, &request.spec, donor, gone(false)).is_some() {
        return false;
    }
    lease.moved_to.is_some() || moves_beside(&view, &request.spec, &candidate, &[(id, lease)]).is_some()
}

fn value(view: &View<'_>, spec: &RequestSpec) -> u32 {
    view.bundle.priority_value(spec.priority.as_ref().map(crate::PriorityName::as_str))
}

/// Whether a lease may be asked to move for a request of priority `value`.
fn may_move(state: &State, lease: &Lease, value: u32) -> bool {
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
fn is_free_in_sum(view: &View<'_>, spec: &RequestSpec, donor: &ClusterId) -> bool {
    let holds = view.state.derived.capacities.get(donor).map_or(0, |holds| holds.gpu_milli);
    holds.saturating_sub(view.lent_milli(donor)) >= spec.least_milli()
}

/// Where `spec` fits once these are gone, and what ends anyhow.
fn without(view: &View<'_>, spec: &RequestSpec, donor: &ClusterId, moves: &[(LeaseId, &Lease)]) -> Option<Candidate> {
    let gone = going(view.state, donor).map(|(_, lease)| lease).chain(moves.iter().map(|(_, lease)| *lease));
    fits_when_gone(view, spec, donor, gone)
}

/// Where all go if `spec` fits without these leases, with each of them needed for it, and each has a place beside it.
fn lets_in<'a>(
    view: &View<'a>,
    spec: &RequestSpec,
    donor: &ClusterId,
    moves: &[(LeaseId, &Lease)],
) -> Option<Places<'a>> {
    let own = without(view, spec, donor, moves)?;
    let needed = |(id, _): &(LeaseId, &Lease)| {
        let rest: Vec<(LeaseId, &Lease)> = moves.iter().filter(|(other, _)| other != id).copied().collect();
        without(view, spec, donor, &rest).is_none()
    };
    if moves.len() > 1 && !moves.iter().all(needed) {
        return None;
    }
    let others = moves_beside(view, spec, &own, moves)?;
    Some(Places { own, others })
}

/// The new place of each of these, found while it still holds its old one, and `candidate` is taken; `None` if one has
/// none.
fn moves_beside<'a>(
    view: &View<'a>,
    spec: &RequestSpec,
    candidate: &Candidate,
    moves: &[(LeaseId, &Lease)],
) -> Option<Vec<(&'a Request, Found)>> {
    let mut view = view.clone();
    let (class, agreement) = (&candidate.class, candidate.agreement.as_deref());
    view.take(spec.tenant.as_str(), class, agreement, &candidate.placement);
    let mut worths = Worths::default();
    let place = |(_, lease): &(LeaseId, &Lease)| {
        let request = view.state.requests.get(&lease.request)?;
        view.without(lease);
        // Who failed it before may fail it again: it would be reclaimed for nothing, over and over.
        let mut spec = gang::elsewhere(&request.spec);
        spec.deny_donors.extend(request.failed_donors.iter().cloned());
        let mut fitter =
            |view: &View<'_>, donor: &ClusterId, wanted: &Wanted<'_>| fit(view, donor, wanted, &mut worths);
        let found = best(&view, &spec, Some(request), promising_nothing(view.state, &spec), &mut fitter)?;
        for part in &found {
            view.take(spec.tenant.as_str(), &part.class, part.agreement.as_deref(), &part.placement);
        }
        Some((request, found))
    };
    moves.iter().map(place).collect()
}
