//! Handles reclaims within a plan: requests that wait for reclaimed room, and reclaimed leases that need a new place.
//!
//! Requests with reclaimed room are served first; until the leases are gone, that room is reserved for them. Reclaimed
//! leases get new places before anything new starts, because their work has progressed further.

use std::collections::BTreeSet;

use comity_types::{ClusterId, LeaseId, RequestId};

use crate::feasibility::reclaim_checks::borrowed_quota::departing_for;
use crate::feasibility::reclaim_checks::migration::migration_holds;
use crate::feasibility::reclaim_checks::preemption::{
    beneficiary_of, departing_leases, donors_of, may_preempt, reclaimed_for,
};
use crate::feasibility::release::{fits_when_gone, last_end};
use crate::feasibility::snapshot::Snapshot;
use crate::model::lease::Lease;
use crate::model::limits::MAX_RECLAIMS_PER_COMMAND;
use crate::model::proposal::ProposedReclaim;
use crate::model::reclaim::ReclaimReason;
use crate::model::request::Request;
use crate::model::time::Timestamp;
use crate::scheduler::find_migration::{Migration, migration_for};
use crate::scheduler::plan::Plan;
use crate::scheduler::plan_state::Holding;
use crate::scheduler::plan_state::misses::{Search, SearchBudget};
use crate::scheduler::plan_state::placed::Purpose;
use crate::scheduler::planning::Planning;
use crate::scheduler::preempt::{Room, cheapest_room};
use crate::scheduler::reserve::Start;
use crate::scheduler::return_quota::{QuotaReturn, cheapest_return};
use crate::scheduler::victims::VictimSet;
use crate::state::State;
use crate::state::gang::{Role, replacement_specs};
use crate::state::gpu_time::kept_end;
use crate::state::notice::end_if_reclaimed;

/// Requests waiting for reclaimed room that one plan serves.
const MAX_ROOM_WAITERS: usize = 16;
/// Reclaimed leases that one plan tries to re-place; those that end first come first.
const MAX_RELOCATIONS: usize = 64;

/// Requests that wait for borrowed quota.
fn waiting_for_quota(state: &State) -> usize {
    let reasons = state.departing().filter_map(|(_, lease)| Some(&lease.reclaim.as_ref()?.reason));
    let returns = reasons.filter(|reason| matches!(reason, ReclaimReason::BorrowedQuota { .. }));
    returns.filter_map(ReclaimReason::for_request).collect::<BTreeSet<RequestId>>().len()
}

impl<'a> Planning<'a, '_> {
    /// Serves requests for which leases were reclaimed, by priority, and reserves room for those that must wait.
    /// Returns the served requests in that order.
    pub(crate) fn serve_room_waiters(&mut self, limit: usize) -> Vec<RequestId> {
        let state = self.state();
        let value = |request: &Request| {
            self.plan_state
                .snapshot()
                .bundle
                .priority_value(request.spec.priority.as_ref().map(comity_types::PriorityName::as_str))
        };
        let waiting = state.derived.reclaimed_for.iter().filter_map(|id| Some((*id, state.requests.get(id)?)));
        let waiting = waiting.filter(|(_, request)| request.waits());
        let mut waiting: Vec<(RequestId, &Request)> = waiting.collect();
        waiting.sort_by_key(|(id, request)| (std::cmp::Reverse(value(request)), *id));
        let mut served = Vec::new();
        for (id, request) in waiting.into_iter().take(MAX_ROOM_WAITERS) {
            if self.plan_state.placed().len() >= limit {
                break;
            }
            if let Some(found) = self.find_unless_failed(request) {
                self.plan_state.place(id, request, found, Purpose::Serve);
                served.push(id);
            } else if let Some(donor) = &request.room_at {
                let departing = departing_for(self.plan_state.snapshot(), &request.spec, Some(donor));
                let reclaimed = departing.iter().filter(|(_, lease)| beneficiary_of(state, lease) == Some(id));
                let starts_by = last_end(state, reclaimed.copied());
                self.reserve_after_reclaims(request, donor, starts_by, &departing);
            }
        }
        served
    }

    /// Reserves the place of a request at `donor` once `departing` are gone, at `starts_by` at the latest; beside other
    /// reservations if it fits there. Does nothing if the request would not fit even then.
    fn reserve_after_reclaims(
        &mut self,
        request: &'a Request,
        donor: &ClusterId,
        starts_by: Timestamp,
        departing: &[(LeaseId, &Lease)],
    ) {
        let mut after = self.plan_state.snapshot().clone();
        departing.iter().for_each(|(id, lease)| after.release_lease(*id, lease));
        let place = |after: &Snapshot<'_>| fits_when_gone(after, &request.spec, donor, std::iter::empty(), starts_by);
        let mut beside = after.clone();
        self.plan_state.reserved().iter().for_each(|start| start.take(&mut beside));
        let candidate = place(&beside).or_else(|| place(&after));
        // No backfill, however short: a reclaim is justified only while its room is what the request lacks.
        let at = self.state().log_time;
        if let Some(candidate) = candidate {
            self.plan_state.reserve(request, Start { at, found: vec![candidate] }, starts_by);
        }
    }

    /// Proposes reclaims for a request that fits nowhere: a migration, else borrowed quota, else a preemption. Returns true
    /// if reclaims are proposed, or are in progress already.
    pub(crate) fn reclaim_for(&mut self, plan: &mut Plan, id: RequestId, request: &'a Request) -> bool {
        let state = self.state();
        let is_hypothetical = self.hypothetical.is_some_and(|it| it.id == id);
        let budget = if is_hypothetical { SearchBudget::Unlimited } else { SearchBudget::PerPlan };
        if request.room_at.is_some() && reclaimed_for(state, id).next().is_some() {
            return true;
        }
        let in_cohort = self.plan_state.snapshot().bundle.is_in_cohort(request.spec.tenant.as_str());
        // The next plan sees what this one takes back. No plan reserves room for more waiters.
        let may_return = in_cohort
            && !plan.reclaims.iter().any(|it| matches!(it.reason, ReclaimReason::BorrowedQuota { .. }))
            && waiting_for_quota(state) < MAX_ROOM_WAITERS;
        let may_preempt = may_preempt(state, request);
        let may_migration = self.has_waited(request, 1);
        let search = Search::Room(id, budget);
        if !(may_preempt || may_migration || may_return) || !self.plan_state.misses.may_search(&search) {
            return false;
        }
        let busy = donors_of(state, &plan.reclaims);
        let left = MAX_RECLAIMS_PER_COMMAND.saturating_sub(plan.reclaims.len());
        // A migration costs nobody anything, so it comes before preemption.
        let migration =
            if may_migration { migration_for(self.plan_state.snapshot(), &request.spec, &busy) } else { None };
        let migration = migration.filter(|migration| migration.moves.len() <= left);
        let quota_return = || {
            let snapshot = self.plan_state.snapshot();
            may_return.then(|| cheapest_return(snapshot, id, &request.spec, &plan.reclaims)).flatten()
        };
        let room = || {
            cheapest_room(self.plan_state.snapshot(), &request.spec, &plan.reclaims)
                .filter(|room| room.set.victims.len() <= left)
        };
        let (victims, reason): (Vec<LeaseId>, _) = if let Some(Migration { moves, places, .. }) = migration {
            let (at, reason) = (state.log_time, ReclaimReason::Migration { by: id });
            let starts_by = moves.iter().map(|(_, lease)| end_if_reclaimed(state, lease, &reason)).max().unwrap_or(at);
            self.plan_state.reserve(request, Start { at, found: vec![places.requested] }, starts_by);
            for (moved, found) in places.moved {
                self.plan_state.reserve(moved, Start { at, found }, at);
            }
            (moves.iter().map(|(lease, _)| *lease).collect(), reason)
        } else if let Some(QuotaReturn { donor, victims }) = quota_return() {
            let reason = ReclaimReason::BorrowedQuota { by: id, at: donor.clone() };
            let departing = departing_for(self.plan_state.snapshot(), &request.spec, Some(donor));
            let victims_held = victims.iter().map(|victim| (victim.id, victim.lease));
            let all: Vec<(LeaseId, &Lease)> = departing.into_iter().chain(victims_held).collect();
            let ends = victims.iter().map(|victim| end_if_reclaimed(state, victim.lease, &reason));
            let starts_by = ends.max().unwrap_or(state.log_time);
            self.reserve_after_reclaims(request, donor, starts_by, &all);
            (victims.iter().map(|victim| victim.id).collect(), reason)
        } else if let Some(Room { donor, set: VictimSet { victims, .. }, .. }) = room() {
            let victims_held = victims.iter().map(|victim| (victim.id, victim.lease));
            let all: Vec<(LeaseId, &Lease)> = departing_leases(state, donor).chain(victims_held).collect();
            let reason = ReclaimReason::Preempted { by: id };
            let ends = victims.iter().map(|victim| end_if_reclaimed(state, victim.lease, &reason));
            let starts_by = ends.max().unwrap_or(state.log_time);
            self.reserve_after_reclaims(request, donor, starts_by, &all);
            (victims.iter().map(|victim| victim.id).collect(), reason)
        } else {
            // A return that waits for the next plan was not searched.
            if may_return == in_cohort {
                self.plan_state.misses.record(search);
            }
            return false;
        };
        plan.reclaims.extend(victims.into_iter().map(|lease| ProposedReclaim { lease, reason: reason.clone() }));
        true
    }

    /// Drops migrations that later placements of this plan have invalidated.
    pub(crate) fn drop_invalid_migrations(&self, plan: &mut Plan) {
        let state = self.state();
        let asked = plan.reclaims.iter().filter(|reclaim| matches!(reclaim.reason, ReclaimReason::Migration { .. }));
        let by: BTreeSet<RequestId> = asked.filter_map(|reclaim| reclaim.reason.for_request()).collect();
        for by in by {
            let reason = ReclaimReason::Migration { by };
            let moves = plan.reclaims.iter().filter(|reclaim| reclaim.reason == reason);
            let moves: Vec<(LeaseId, &Lease)> =
                moves.filter_map(|reclaim| Some((reclaim.lease, state.leases.get(&reclaim.lease)?))).collect();
            let donor = moves.first().map(|(_, lease)| &lease.placement.donor);
            if !donor.is_some_and(|donor| migration_holds(self.plan_state.snapshot(), by, donor, &moves)) {
                plan.reclaims.retain(|reclaim| reclaim.reason != reason);
            }
        }
    }

    /// Places reclaimed leases again, those that end first before others. A replaced lease and its replacement count
    /// once against limits.
    pub(crate) fn replace_reclaimed(&mut self, limit: usize) {
        let state = self.state();
        let mut moving: Vec<(Option<Timestamp>, LeaseId, &'a Lease)> =
            state.reclaiming().map(|(id, lease)| (lease.due(), id, lease)).collect();
        moving.sort_by_key(|(due, id, _)| (*due, *id));
        for (_, id, lease) in moving.into_iter().take(MAX_RELOCATIONS) {
            let has_room = self.plan_state.placed().len() < limit;
            let Some(request) = state.requests.get(&lease.request).filter(|_| has_room) else {
                continue;
            };
            if !request.may_replace(state, id) {
                continue;
            }
            let chain = request.chain_of(state, id);
            let places = replacement_specs(state, request, id);
            let holding = Holding::Replaced(&chain, kept_end(state, request, Role::Replaces(id)));
            if let Some(found) = self.plan_state.find_for_holder(&places, request, holding) {
                self.plan_state.place(lease.request, request, found, Purpose::Replace(id, lease));
            }
        }
    }
}
