//! When and where a request could start, for people: under the ends of leases, beside what is reserved for another
//! request, within its own start window, and when what is quarantined comes back.

use std::collections::BTreeSet;

use crate::explain::answer::Explanation;
use crate::feasibility::reclaim_checks::preemption::{preempting_priority, yields_to_priority};
use crate::feasibility::snapshot::{HeldCapacity, Snapshot};
use crate::model::demand::RequestSpec;
use crate::model::id::{ClusterId, RequestId};
use crate::model::lease::Lease;
use crate::model::reclaim::ReclaimReason;
use crate::model::request::Request;
use crate::model::time::Timestamp;
use crate::scheduler::plan::Plan;
use crate::scheduler::planning::Planning;
use crate::scheduler::preempt::{Room, cheapest_room_after};
use crate::scheduler::reserve::{earliest_start, held_after_reclaims, lease_end, lease_ends};
use crate::state::notice::notice;

/// When, and at which donors.
pub(crate) type Outlook = (Timestamp, Vec<ClusterId>);

/// The earliest start of `request` in `snapshot`, where leases end or are being reclaimed by `plan`, and what else is
/// `held` ends: of what `run` keeps free for others it takes nothing before that has ended too. If nothing is being
/// reclaimed for it yet, it may be later. `None`: no end makes room.
pub(crate) fn beside_kept<'p>(
    run: &'p Planning<'_, '_>,
    plan: &Plan,
    snapshot: &Snapshot<'p>,
    mut held: Vec<HeldCapacity<'p>>,
    (request, frees_room): (&Request, bool),
) -> Option<Outlook> {
    let mut snapshot = snapshot.clone();
    run.reserved_for_others(request).for_each(|kept| kept.take(&mut snapshot, &mut held));
    let all = held_after_reclaims(snapshot.state, &plan.reclaims).into_iter().chain(held.iter().cloned()).collect();
    let found = alone(&snapshot, all, &request.spec);
    let later = if frees_room { None } else { by_room_later(&snapshot, &held, plan, request) };
    match (found, later) {
        (Some(found), Some(later)) => Some(if later.0 < found.0 { later } else { found }),
        (found, later) => found.or(later),
    }
}

/// When `request` starts by preemption that is of no use yet: once those have ended that do not yield to it, it gives
/// notice to the others.
fn by_room_later<'p>(
    snapshot: &Snapshot<'p>,
    held: &[HeldCapacity<'p>],
    plan: &Plan,
    request: &Request,
) -> Option<Outlook> {
    let state = snapshot.state;
    let value = preempting_priority(state, request)?;
    let leases = lease_ends(state, &plan.reclaims);
    // Those that yield are in nobody's way.
    let end_or_yield = |lease: &Lease, end| if yields_to_priority(state, lease, value) { state.log_time } else { end };
    let yielding = leases.iter().map(|(_, lease, end)| HeldCapacity {
        end: end_or_yield(lease, *end),
        counts: lease.as_use(),
        placement: &lease.placement,
    });
    let (from, _) = alone(snapshot, yielding.chain(held.iter().cloned()).collect(), &request.spec)?;
    let from = from.max(request.spec.not_before.unwrap_or_default());
    if from <= state.log_time {
        // Notice would be given now, were it of use.
        return None;
    }
    let mut snapshot = snapshot.clone();
    held.iter().filter(|held| held.end <= from).for_each(|held| snapshot.release(held));
    let mut gone = BTreeSet::new();
    for (id, lease, end) in leases.iter().filter(|(.., end)| *end <= from) {
        snapshot.release(&HeldCapacity { end: *end, counts: lease.as_use(), placement: &lease.placement });
        gone.insert(*id);
    }
    let Room { donor, victims, .. } = cheapest_room_after(&snapshot, request, &BTreeSet::new(), &gone)?;
    // For whom makes no difference to the notice.
    let by = ReclaimReason::Preempted { by: RequestId(0) };
    let end = |lease: &Lease| from.after(notice(state, lease, &by)).min(lease_end(lease, state.log_time));
    let start = victims.iter().map(|victim| end(victim.lease)).max()?;
    Some((start, vec![donor.clone()]))
}

/// The same where nothing is kept for others.
pub(crate) fn alone<'p>(
    snapshot: &Snapshot<'p>,
    mut held: Vec<HeldCapacity<'p>>,
    spec: &RequestSpec,
) -> Option<Outlook> {
    held.sort_by_key(|held| held.end);
    earliest_start(snapshot, &held, spec).map(|start| (start.at, start.donors()))
}

/// The same as the request may have it: never before its start window opens, and sooner where a quarantine ends before
/// leases do.
pub(crate) fn as_asked(spec: &RequestSpec, explanation: &Explanation, found: Option<Outlook>) -> Option<Outlook> {
    let verdicts = explanation.donors.iter().filter(|_| !spec.spread_donors);
    let back = verdicts.filter_map(|it| Some((it.obstacle.as_ref()?.until?, it.donor.clone()))).min();
    let back = back.map(|(at, donor)| (at, vec![donor]));
    let sooner = match (found, back) {
        (Some(found), Some(back)) => Some(if back.0 < found.0 { back } else { found }),
        (found, back) => found.or(back),
    };
    sooner.map(|(at, donors)| (at.max(spec.not_before.unwrap_or_default()), donors))
}
