//! Predicts when and where a request could start, given the ends of leases, reservations for others, its own start
//! window, and the ends of quarantines.

use std::collections::BTreeSet;

use comity_types::{ClusterId, RequestId};

use crate::explain::answer::Explanation;
use crate::explain::reclaims::Reclaims;
use crate::feasibility::held_capacity::HeldCapacity;
use crate::feasibility::reclaim_checks::preemption::{preempting_priority, yields_to_priority};
use crate::feasibility::snapshot::Snapshot;
use crate::model::demand::RequestSpec;
use crate::model::lease::Lease;
use crate::model::reclaim::ReclaimReason;
use crate::model::request::Request;
use crate::model::time::Timestamp;
use crate::scheduler::plan::Plan;
use crate::scheduler::planning::Planning;
use crate::scheduler::preempt::{Room, cheapest_room_after};
use crate::scheduler::reserve::{earliest_start, held_after_reclaims, lease_ends};
use crate::state::notice::end_if_reclaimed_at;

/// Start time and donors.
pub(crate) type Outlook = (Timestamp, Vec<ClusterId>);

/// The earliest start of `request` in `snapshot` as leases end, `plan` reclaims leases, and other capacity in `held` is
/// released. It delays no reservation in `planning`. Without reclaims for it yet, the request may also start by a later
/// preemption. `None` if no end makes room.
pub(crate) fn outlook_beside_reservations<'p>(
    planning: &'p Planning<'_, '_>,
    plan: &Plan,
    snapshot: &Snapshot<'p>,
    mut held: Vec<HeldCapacity<'p>>,
    request: &Request,
    reclaims: Option<&Reclaims>,
) -> Option<Outlook> {
    let mut snapshot = snapshot.clone();
    for reserved in planning.reserved_for_others(request) {
        reserved.take(&mut snapshot);
        held.extend(reserved.held(&snapshot));
    }
    let all = held_after_reclaims(snapshot.state, &plan.reclaims).into_iter().chain(held.iter().cloned()).collect();
    let found = outlook_alone(&snapshot, all, &request.spec);
    let later = if reclaims.is_some() { None } else { by_later_preemption(&snapshot, &held, plan, request) };
    match (found, later) {
        (Some(found), Some(later)) => Some(if later.0 < found.0 { later } else { found }),
        (found, later) => found.or(later),
    }
}

/// The start of `request` by a preemption that is useless now: once the leases that do not yield to it have ended, it
/// gives notice to those that do.
fn by_later_preemption<'p>(
    snapshot: &Snapshot<'p>,
    held: &[HeldCapacity<'p>],
    plan: &Plan,
    request: &Request,
) -> Option<Outlook> {
    let state = snapshot.state;
    let value = preempting_priority(state, &request.spec)?;
    let leases = lease_ends(state, &plan.reclaims);
    // Leases that yield block nobody.
    let end_or_yield = |lease: &Lease, end| if yields_to_priority(state, lease, value) { state.log_time } else { end };
    let yielding = leases.iter().map(|(id, lease, end)| HeldCapacity::of_lease(*id, lease, end_or_yield(lease, *end)));
    let (from, _) = outlook_alone(snapshot, yielding.chain(held.iter().cloned()).collect(), &request.spec)?;
    let from = from.max(request.opens_at().unwrap_or_default());
    if from <= state.log_time {
        // A useful preemption would have been planned already.
        return None;
    }
    let mut snapshot = snapshot.clone();
    held.iter().filter(|held| held.end <= from).for_each(|held| snapshot.release(held));
    let mut gone = BTreeSet::new();
    for (id, lease, _) in leases.iter().filter(|(.., end)| *end <= from) {
        snapshot.release_lease(*id, lease);
        gone.insert(*id);
    }
    let Room { donor, set, .. } = cheapest_room_after(&snapshot, &request.spec, &gone, from)?;
    // The notice does not depend on the request.
    let by = ReclaimReason::Preempted { by: RequestId(0) };
    let start = set.victims.iter().map(|victim| end_if_reclaimed_at(state, victim.lease, &by, from)).max()?;
    Some((start, vec![donor.clone()]))
}

/// The earliest start as `held` is released, regardless of reservations.
pub(crate) fn outlook_alone<'p>(
    snapshot: &Snapshot<'p>,
    mut held: Vec<HeldCapacity<'p>>,
    spec: &RequestSpec,
) -> Option<Outlook> {
    held.sort_by_key(|held| held.end);
    earliest_start(snapshot, &held, spec).map(|start| (start.at, start.donors()))
}

/// Adjusts an outlook: no earlier than the start window opens, and sooner if a quarantine ends before leases do.
pub(crate) fn adjusted_outlook(
    spec: &RequestSpec,
    explanation: &Explanation,
    found: Option<Outlook>,
) -> Option<Outlook> {
    let verdicts = explanation.donors.iter().filter(|_| !spec.spread_donors);
    let back = verdicts.filter_map(|it| Some((it.obstacle.as_ref()?.until?, it.donor.clone()))).min();
    let back = back.map(|(at, donor)| (at, vec![donor]));
    let sooner = match (found, back) {
        (Some(found), Some(back)) => Some(if back.0 < found.0 { back } else { found }),
        (found, back) => found.or(back),
    };
    sooner.map(|(at, donors)| (at.max(spec.not_before.unwrap_or_default()), donors))
}
