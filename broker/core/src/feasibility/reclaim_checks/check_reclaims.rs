//! Checks of a proposed reclaim, which `apply` demands, and of a reclaim in progress.

use std::collections::BTreeSet;

use comity_types::{ClusterId, LeaseId, LeaseState, RequestId};

use crate::feasibility::advance_reservations::check_kept::RESERVED;
use crate::feasibility::reclaim_checks::failed::{failure_of, may_reclaim_urgently};
use crate::feasibility::reclaim_checks::kept::KeptNeed;
use crate::feasibility::reclaim_checks::need::{Need, freed_for_local_work};
use crate::feasibility::reclaim_checks::preemption::{
    departing_leases, is_making_room, may_be_preempted, preempting_priority,
};
use crate::feasibility::reclaim_checks::terms::{withdrawal_of, withdrawn};
use crate::feasibility::reclaim_checks::{borrowed_quota, kept, limit, migration, reclaim_budget};
use crate::feasibility::release::{fits_when_gone, last_end, start_after_reclaims};
use crate::feasibility::snapshot::Snapshot;
use crate::model::lease::Lease;
use crate::model::proposal::ProposedReclaim;
use crate::model::reclaim::ReclaimReason;
use crate::model::refusal::{Code, Refusal};
use crate::state::State;

/// Checks each proposal alongside the others: its lease is in force and not being reclaimed, its reason holds, and
/// without it the reason would not be satisfied, or less so; and no limit on reclaims forbids it.
#[must_use]
pub fn check_reclaims(state: &State, proposals: &[ProposedReclaim]) -> Vec<Result<(), Refusal>> {
    let mut seen = BTreeSet::new();
    let in_force: Vec<Result<&Lease, Refusal>> =
        proposals.iter().map(|proposed| reclaimable_lease(state, proposed, &mut seen)).collect();
    let beyond_limits = reclaim_budget::beyond_limits(state, proposals);
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
            ReclaimReason::PolicyChanged { code, .. } if code == limit::CODE => {
                // Leases reclaimed for other reasons at the same time count as gone.
                let gone = freed_before(state, donor, proposals, &proposed.reason);
                limit::reason(state, donor).as_ref() == Some(&proposed.reason)
                    && relieves(&gone, &set, proposed.lease, &|gone| limit::excess_milli(state, donor, gone))
            }
            ReclaimReason::PolicyChanged { code, .. } if code == RESERVED => {
                let gone = freed_before(state, donor, proposals, &proposed.reason);
                kept::may_reclaim(state, lease)
                    && proposed.reason == kept::reason()
                    && KeptNeed::of(state, donor, state.log_time)
                        .is_some_and(|need| relieves(&gone, &set, proposed.lease, &|gone| need.shortage_milli(gone)))
            }
            ReclaimReason::PolicyChanged { .. } => {
                let found = withdrawal_of(state, lease, state.log_time);
                found.is_some_and(|found| withdrawn(&found) == proposed.reason)
            }
            ReclaimReason::LocalNeed => Need::of(state, donor).is_some_and(|need| {
                let gone = freed_before(state, donor, proposals, &proposed.reason);
                relieves(&gone, &set, proposed.lease, &|gone| need.shortage_milli(gone))
            }),
            reason @ (ReclaimReason::DeviceFailed { .. }
            | ReclaimReason::NodeFailed { .. }
            | ReclaimReason::DonorSilent) => failure_of(state, lease).as_ref() == Some(reason),
            // A command of its own starts these.
            ReclaimReason::Revoked { .. } | ReclaimReason::UserRevoked { .. } => false,
            ReclaimReason::Preempted { by } => {
                let proposed_count = proposals.iter().filter(|other| other.reason == proposed.reason).count();
                proposed_count == set.len() && frees_room(state, *by, donor, &set, proposed.lease)
            }
            ReclaimReason::BorrowedQuota { by, at } => {
                let alike = proposals.iter().zip(&in_force).filter(|(other, _)| other.reason == proposed.reason);
                let set: Option<Vec<(LeaseId, &Lease)>> =
                    alike.map(|(other, lease)| Some((other.lease, *lease.as_ref().ok()?))).collect();
                set.is_some_and(|set| borrowed_quota::returns_quota(state, *by, at, &set, proposed.lease))
            }
            ReclaimReason::Migration { by } => {
                let proposed_count = proposals.iter().filter(|other| other.reason == proposed.reason).count();
                let snapshot = Snapshot::new(state);
                proposed_count == set.len()
                    && snapshot.is_some_and(|snapshot| migration::migration_holds(&snapshot, *by, donor, &set))
            }
        };
        if !holds {
            return Err(not_needed(proposed));
        }
        let limit = beyond_limits.get(&proposed.lease).filter(|_| reclaim_budget::is_limited(&proposed.reason));
        if let Some(limit) = limit {
            return Err(reclaim_budget::limited(proposed.lease, limit));
        }
        Ok(())
    };
    proposals.iter().zip(&in_force).map(check).collect()
}

fn reclaimable_lease<'s>(
    state: &'s State,
    proposed: &ProposedReclaim,
    seen: &mut BTreeSet<LeaseId>,
) -> Result<&'s Lease, Refusal> {
    let id = proposed.lease;
    let lease = state.leases.get(&id).ok_or_else(|| Refusal::not_found("lease", id, "lease"))?;
    let may = if proposed.reason.is_failure() || proposed.reason.is_stop() {
        may_reclaim_urgently(lease, &proposed.reason)
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

/// Leases of a donor that depart anyway, and those proposed for reasons that take precedence over `reason`.
fn freed_before(
    state: &State,
    donor: &ClusterId,
    proposals: &[ProposedReclaim],
    reason: &ReclaimReason,
) -> BTreeSet<LeaseId> {
    let comes_before = |other: &ReclaimReason| {
        let for_a_request = other.for_request().is_some() || reason.for_request().is_some();
        !for_a_request && precedence(other) < precedence(reason)
    };
    let mut gone = freed_for_local_work(state, donor);
    let before = proposals.iter().filter(|other| comes_before(&other.reason)).map(|other| other.lease);
    gone.extend(before.filter(|id| state.leases.get(id).is_some_and(|lease| lease.placement.donor == *donor)));
    gone
}

/// Reclaims of a lower number count as done for those of a higher one: the order in which the reclaimer proposes them.
fn precedence(reason: &ReclaimReason) -> u8 {
    match reason {
        reason if reason.is_failure() => 0,
        ReclaimReason::PolicyChanged { code, .. } if code == limit::CODE => 3,
        ReclaimReason::PolicyChanged { code, .. } if code == RESERVED => 4,
        ReclaimReason::PolicyChanged { .. } => 1,
        _ => 2,
    }
}

/// Whether the shortage grows if `lease`, one of those in `set` or `gone`, stays.
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
fn frees_room(state: &State, by: RequestId, donor: &ClusterId, set: &[(LeaseId, &Lease)], lease: LeaseId) -> bool {
    let Some(request) = state.requests.get(&by).filter(|request| request.waits()) else { return false };
    let (Some(value), Some(snapshot)) = (preempting_priority(state, &request.spec), Snapshot::new(state)) else {
        return false;
    };
    if is_making_room(state, donor) || set.iter().any(|(_, lease)| !may_be_preempted(state, lease, value)) {
        return false;
    }
    let reason = ReclaimReason::Preempted { by };
    let start = start_after_reclaims(state, donor, set.iter().map(|(_, lease)| *lease), &reason);
    let fits = |without: Option<LeaseId>| {
        let set = set.iter().filter(|(id, _)| Some(*id) != without).copied();
        let gone = departing_leases(state, donor).chain(set);
        fits_when_gone(&snapshot, &request.spec, donor, gone, start).is_some()
    };
    fits(None) && !fits(Some(lease))
}

/// Whether the reason of a reclaim in progress still holds, so that sparing the lease would do harm.
#[must_use]
pub fn is_still_needed(state: &State, id: LeaseId) -> bool {
    let Some(lease) = state.leases.get(&id).filter(|lease| lease.state == LeaseState::Reclaiming) else {
        return false;
    };
    let Some(reclaim) = &lease.reclaim else { return false };
    let donor = &lease.placement.donor;
    let gone = || freed_for_local_work(state, donor);
    match &reclaim.reason {
        ReclaimReason::LocalNeed => Need::of(state, donor).is_none_or(|need| {
            // Leases reclaimed for policy reasons count as gone, because they will leave.
            relieves(&gone(), &[], id, &|gone| need.shortage_milli(gone))
        }),
        ReclaimReason::PolicyChanged { code, .. } if code == limit::CODE => {
            limit::reason(state, donor).is_some()
                && relieves(&gone(), &[], id, &|gone| limit::excess_milli(state, donor, gone))
        }
        ReclaimReason::PolicyChanged { code, .. } if code == RESERVED => KeptNeed::of(state, donor, state.log_time)
            .is_some_and(|need| relieves(&gone(), &[], id, &|gone| need.shortage_milli(gone))),
        ReclaimReason::PolicyChanged { .. } => withdrawal_of(state, lease, state.log_time).is_some(),
        ReclaimReason::DeviceFailed { .. } | ReclaimReason::NodeFailed { .. } | ReclaimReason::DonorSilent => {
            failure_of(state, lease).is_some()
        }
        // Of either side: the one that the reason names may take part again while the other one does not.
        ReclaimReason::Revoked { .. } => state.drained_side(lease).is_some(),
        // A new certificate does not bring back what the old one may have been used for.
        ReclaimReason::UserRevoked { .. } => true,
        ReclaimReason::Preempted { by } => {
            let request = state.requests.get(by).filter(|request| request.waits() && request.room_at.is_some());
            let (Some(request), Some(snapshot)) = (request, Snapshot::new(state)) else { return false };
            let start = last_end(state, departing_leases(state, donor));
            let fits = |without: Option<LeaseId>| {
                let gone = departing_leases(state, donor).filter(|(other, _)| Some(*other) != without);
                fits_when_gone(&snapshot, &request.spec, donor, gone, start).is_some()
            };
            fits(None) && !fits(Some(id))
        }
        ReclaimReason::Migration { by } => migration::migration_still_needed(state, *by, id, lease),
        ReclaimReason::BorrowedQuota { by, at } => borrowed_quota::is_quota_still_needed(state, *by, at, id),
    }
}

/// Leases being reclaimed for reasons that no longer hold. Sparing one lease may renew the need for another, so `apply`
/// checks again before each.
#[must_use]
pub fn spared(state: &State) -> Vec<LeaseId> {
    state.reclaiming().map(|(id, _)| id).filter(|id| !is_still_needed(state, *id)).collect()
}
