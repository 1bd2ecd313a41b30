//! Whether a reclaim is right: what `apply` asks of a proposal, and whether one that was right still is.

use std::collections::BTreeSet;

use super::failed::{failing, may_fail};
use super::limit;
use super::need::{Need, gone_for_local_work};
use super::repair;
use super::room::{fits_when_gone, for_whom, going, may_be_preempted, preempts_as};
use super::terms::withdrawn;
use crate::command::ProposedReclaim;
use crate::id::{ClusterId, LeaseId, RequestId};
use crate::lease::{Lease, LeaseState};
use crate::reclaim::ReclaimReason;
use crate::refusal::{Code, Refusal};
use crate::scheduler::view::View;
use crate::state::State;

/// For each proposal, in order, whether it is right beside the others: its lease is in force and not reclaimed yet, its
/// reason holds, and without it the reason would not be met, or be met less.
#[must_use]
pub fn check_reclaims(state: &State, proposals: &[ProposedReclaim]) -> Vec<Result<(), Refusal>> {
    let mut seen = BTreeSet::new();
    let in_force: Vec<Result<&Lease, Refusal>> =
        proposals.iter().map(|proposed| callable(state, proposed, &mut seen)).collect();
    let group = |reason: &ReclaimReason, donor: &ClusterId| -> Vec<(LeaseId, &Lease)> {
        let alike = proposals.iter().zip(&in_force).filter(|(proposed, _)| proposed.reason == *reason);
        let leases = alike.filter_map(|(proposed, lease)| Some((proposed.lease, *lease.as_ref().ok()?)));
        leases.filter(|(_, lease)| lease.placement.donor == *donor).collect()
    };
    let check = |(proposed, lease): (&ProposedReclaim, &Result<&Lease, Refusal>)| {
        let lease = lease.as_ref().map_err(Clone::clone)?;
        let donor = &lease.placement.donor;
        let set = group(&proposed.reason, donor);
        let holds = match &proposed.reason {
            ReclaimReason::PolicyChanged { code } if code == limit::CODE => {
                // Those that are being reclaimed for other reasons at the same time go first.
                let gone = others(state, donor, proposals, &proposed.reason);
                relieves(&gone, &set, proposed.lease, &|gone| limit::over_milli(state, donor, gone))
            }
            ReclaimReason::PolicyChanged { code } => withdrawn(state, lease, state.log_time) == Some(code.as_str()),
            ReclaimReason::LocalNeed => Need::of(state, donor).is_some_and(|need| {
                let gone = others(state, donor, proposals, &proposed.reason);
                relieves(&gone, &set, proposed.lease, &|gone| need.short_milli(gone))
            }),
            reason @ (ReclaimReason::DeviceFailed { .. }
            | ReclaimReason::NodeFailed { .. }
            | ReclaimReason::DonorSilent) => failing(state, lease).as_ref() == Some(reason),
            ReclaimReason::Preempted { by } => {
                let asked = proposals.iter().filter(|other| other.reason == proposed.reason).count();
                asked == set.len() && makes_room(state, *by, donor, &set, proposed.lease)
            }
            ReclaimReason::Repair { by } => {
                let asked = proposals.iter().filter(|other| other.reason == proposed.reason).count();
                let view = View::new(state);
                asked == set.len() && view.is_some_and(|view| repair::is_right(&view, *by, donor, &set))
            }
        };
        if holds { Ok(()) } else { Err(not_needed(proposed)) }
    };
    proposals.iter().zip(&in_force).map(check).collect()
}

fn callable<'s>(
    state: &'s State,
    proposed: &ProposedReclaim,
    seen: &mut BTreeSet<LeaseId>,
) -> Result<&'s Lease, Refusal> {
    let id = proposed.lease;
    let lease = state.leases.get(&id).ok_or_else(|| Refusal::not_found("lease", id, "lease"))?;
    let may = if proposed.reason.is_failure() {
        may_fail(lease, &proposed.reason)
    } else {
        matches!(lease.state, LeaseState::Active | LeaseState::Suspect)
    };
    if !may || !seen.insert(id) {
        let reason = format!("{id} is not in force, or is being reclaimed already");
        return Err(Refusal::new(Code::WrongState, reason, "look again").at("lease", id));
    }
    Ok(lease)
}

fn not_needed(proposed: &ProposedReclaim) -> Refusal {
    let reason = format!("{} need not be reclaimed: {}", proposed.lease, proposed.reason.as_str());
    Refusal::new(Code::WrongState, reason, "look again").at("lease", proposed.lease)
}

/// Leases of a donor that go anyhow, and those proposed for reasons that come before `reason`.
fn others(
    state: &State,
    donor: &ClusterId,
    proposals: &[ProposedReclaim],
    reason: &ReclaimReason,
) -> BTreeSet<LeaseId> {
    let comes_before = |other: &ReclaimReason| match (other, reason) {
        (ReclaimReason::Preempted { .. } | ReclaimReason::Repair { .. }, _)
        | (_, ReclaimReason::Preempted { .. } | ReclaimReason::Repair { .. }) => false,
        (other, reason) if other.is_failure() || reason.is_failure() => !reason.is_failure(),
        (ReclaimReason::PolicyChanged { code }, _) => code != limit::CODE,
        (ReclaimReason::LocalNeed, ReclaimReason::PolicyChanged { code }) => code == limit::CODE,
        (_, _) => false,
    };
    let mut gone = gone_for_local_work(state, donor);
    let before = proposals.iter().filter(|other| comes_before(&other.reason)).map(|other| other.lease);
    gone.extend(before.filter(|id| state.leases.get(id).is_some_and(|lease| lease.placement.donor == *donor)));
    gone
}

/// Whether more is short if `lease`, of those that go, stays.
fn relieves(
    gone: &BTreeSet<LeaseId>,
    set: &[(LeaseId, &Lease)],
    lease: LeaseId,
    short: &dyn Fn(&BTreeSet<LeaseId>) -> u64,
) -> bool {
    let all: BTreeSet<LeaseId> = gone.iter().copied().chain(set.iter().map(|(id, _)| *id)).collect();
    let without: BTreeSet<LeaseId> = all.iter().copied().filter(|id| *id != lease).collect();
    short(&without) > short(&all)
}

/// Whether request `by` fits at `donor` once the set is gone, and would not if `lease` stayed.
fn makes_room(state: &State, by: RequestId, donor: &ClusterId, set: &[(LeaseId, &Lease)], lease: LeaseId) -> bool {
    let Some(request) = state.requests.get(&by).filter(|request| request.waits()) else { return false };
    let (Some(value), Some(view)) = (preempts_as(state, request), View::new(state)) else { return false };
    let busy = going(state, donor).any(|(_, lease)| for_whom(state, lease).is_some());
    if busy || set.iter().any(|(_, lease)| !may_be_preempted(state, lease, value)) {
        return false;
    }
    let fits = |without: Option<LeaseId>| {
        let set = set.iter().filter(|(id, _)| Some(*id) != without).map(|(_, lease)| *lease);
        let gone = going(state, donor).map(|(_, lease)| lease).chain(set);
        fits_when_gone(&view, &request.spec, donor, gone).is_some()
    };
    fits(None) && !fits(Some(lease))
}

/// Whether the reason for which a lease is being reclaimed still holds, so that it would do harm to let it stay.
#[must_use]
pub fn is_still_needed(state: &State, id: LeaseId) -> bool {
    let Some(lease) = state.leases.get(&id).filter(|lease| lease.state == LeaseState::Reclaiming) else {
        return false;
    };
    let Some(reclaim) = &lease.reclaim else { return false };
    let donor = &lease.placement.donor;
    let gone = || gone_for_local_work(state, donor);
    match &reclaim.reason {
        ReclaimReason::LocalNeed => Need::of(state, donor).is_none_or(|need| {
            // What else is being reclaimed for policy alone counts as gone: it does go.
            relieves(&gone(), &[], id, &|gone| need.short_milli(gone))
        }),
        ReclaimReason::PolicyChanged { code } if code == limit::CODE => {
            relieves(&gone(), &[], id, &|gone| limit::over_milli(state, donor, gone))
        }
        ReclaimReason::PolicyChanged { .. } => withdrawn(state, lease, state.log_time).is_some(),
        ReclaimReason::DeviceFailed { .. } | ReclaimReason::NodeFailed { .. } | ReclaimReason::DonorSilent => {
            failing(state, lease).is_some()
        }
        ReclaimReason::Preempted { by } => {
            let request = state.requests.get(by).filter(|request| request.waits() && request.room_at.is_some());
            let (Some(request), Some(view)) = (request, View::new(state)) else { return false };
            let fits = |without: Option<LeaseId>| {
                let gone = going(state, donor).filter(|(other, _)| Some(*other) != without).map(|(_, lease)| lease);
                fits_when_gone(&view, &request.spec, donor, gone).is_some()
            };
            fits(None) && !fits(Some(id))
        }
        ReclaimReason::Repair { by } => repair::is_still_right(state, *by, (id, lease)),
    }
}

/// Leases that are being reclaimed for a reason that has gone away. Sparing one may make another one needed again:
/// `apply` asks before each.
#[must_use]
pub fn spared(state: &State) -> Vec<LeaseId> {
    state.reclaiming().map(|(id, _)| id).filter(|id| !is_still_needed(state, *id)).collect()
}
