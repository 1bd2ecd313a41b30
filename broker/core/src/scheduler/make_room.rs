//! What a plan does for leases that are being reclaimed and for those who need their room.
//!
//! A request for which leases were reclaimed is served first, and what it waits for is kept free of others until they
//! are gone. A lease that is being reclaimed is sought a new place for before anything new begins: its work is further
//! than theirs.

use std::collections::BTreeSet;

use crate::feasibility::reclaim_checks::preemption::{for_whom, going};
use crate::feasibility::reclaim_checks::repair::is_right;
use crate::feasibility::release::fits_when_gone;
use crate::model::id::{ClusterId, LeaseId, RequestId};
use crate::model::lease::Lease;
use crate::model::limits::MAX_RECLAIMS_PER_COMMAND;
use crate::model::proposal::{Aim, ProposedPlacement, ProposedReclaim};
use crate::model::reclaim::ReclaimReason;
use crate::model::request::Request;
use crate::model::time::Timestamp;
use crate::scheduler::find_repair::{Repair, repair_for};
use crate::scheduler::plan::Plan;
use crate::scheduler::planning::Planning;
use crate::scheduler::preempt::{Room, room_for};
use crate::scheduler::reserve::{Start, end_if_reclaimed, end_of};
use crate::state::gang::replacement_specs;

/// Requests for which one plan keeps room that is being made.
const MAX_ROOMS: usize = 16;
/// Leases that one plan seeks a new place for; those that end first come first.
const MAX_MOVES: usize = 64;
impl<'a> Planning<'a, '_> {
    /// Serves requests for which leases were reclaimed, by priority, and keeps free what the others wait for. Those
    /// that were placed, in that order.
    pub(crate) fn enter_rooms(&mut self, plan: &mut Plan, limit: usize) -> Vec<RequestId> {
        let state = self.snapshot.state;
        let value = |request: &Request| {
            self.snapshot.bundle.priority_value(request.spec.priority.as_ref().map(crate::PriorityName::as_str))
        };
        let waiting = state.derived.reclaimed_for.iter().filter_map(|id| Some((*id, state.requests.get(id)?)));
        let waiting = waiting.filter(|(_, request)| request.waits());
        let mut waiting: Vec<(RequestId, &Request)> = waiting.collect();
        waiting.sort_by_key(|(id, request)| (std::cmp::Reverse(value(request)), *id));
        let mut served = Vec::new();
        for (id, request) in waiting.into_iter().take(MAX_ROOMS) {
            if plan.placements.len() >= limit {
                break;
            }
            if let Some(found) = self.best(request) {
                let proposed = self.propose(id, request, found);
                plan.placements.push(proposed);
                served.push(id);
            } else if let Some(donor) = &request.room_at {
                let gone: Vec<&Lease> = going(state, donor).map(|(_, lease)| lease).collect();
                let its = gone.iter().filter(|lease| for_whom(state, lease) == Some(id));
                let begins = its.map(|lease| end_of(lease, state.log_time)).max().unwrap_or(state.log_time);
                self.keep_room(request, (donor, begins), &gone);
            }
        }
        served
    }

    /// Keeps free what a request gets at a donor once those are gone, which is then at the latest; nothing if it fits
    /// not even then.
    fn keep_room(&mut self, request: &'a Request, (donor, begins): (&ClusterId, Timestamp), gone: &[&Lease]) {
        let candidate = fits_when_gone(&self.snapshot, &request.spec, donor, gone.iter().copied());
        // Nobody passes, however short: leases are being reclaimed only as long as their room is what is missing.
        let at = self.snapshot.state.log_time;
        if let Some(candidate) = candidate {
            self.keep_free(request, Start { at, found: vec![candidate] }, begins);
        }
    }

    /// Proposes to call leases back for a request that may preempt and fits nowhere; true if that is done already, or
    /// is now.
    pub(crate) fn make_room(&mut self, plan: &mut Plan, id: RequestId, request: &'a Request) -> bool {
        let state = self.snapshot.state;
        if let Some(donor) = &request.room_at
            && going(state, donor).any(|(_, lease)| for_whom(state, lease) == Some(id))
        {
            return true;
        }
        let may_preempt = crate::feasibility::reclaim_checks::preemption::preempts(state, request);
        let may_repair = self.has_waited(request, 1);
        if !(may_preempt || may_repair)
            || !self.room_misses.try_for(id, self.hypothetical.is_some_and(|it| it.id == id))
        {
            return false;
        }
        let taken = plan.reclaims.iter().filter_map(|reclaim| state.leases.get(&reclaim.lease));
        let busy: BTreeSet<&ClusterId> = taken.map(|lease| &lease.placement.donor).collect();
        let left = MAX_RECLAIMS_PER_COMMAND.saturating_sub(plan.reclaims.len());
        // Nobody loses by a repair, so it comes first.
        let repair = if may_repair { repair_for(&self.snapshot, &request.spec, &busy) } else { None };
        let repair = repair.filter(|repair| repair.moves.len() <= left);
        let room = || room_for(&self.snapshot, request, &busy).filter(|room| room.victims.len() <= left);
        let (victims, reason): (Vec<LeaseId>, _) = if let Some(Repair { moves, places, .. }) = repair {
            let (at, reason) = (state.log_time, ReclaimReason::Repair { by: id });
            let begins = moves.iter().map(|(_, lease)| end_if_reclaimed(state, lease, &reason)).max().unwrap_or(at);
            self.keep_free(request, Start { at, found: vec![places.own] }, begins);
            for (moved, found) in places.others {
                self.keep_free(moved, Start { at, found }, at);
            }
            (moves.iter().map(|(lease, _)| *lease).collect(), reason)
        } else if let Some(Room { donor, victims, .. }) = room() {
            let goes = going(state, donor).map(|(_, lease)| lease);
            let all: Vec<&Lease> = goes.chain(victims.iter().map(|victim| victim.lease)).collect();
            let reason = ReclaimReason::Preempted { by: id };
            let ends = victims.iter().map(|victim| end_if_reclaimed(state, victim.lease, &reason));
            let begins = ends.max().unwrap_or(state.log_time);
            self.keep_room(request, (donor, begins), &all);
            (victims.iter().map(|victim| victim.id).collect(), reason)
        } else {
            self.room_misses.since.insert(id, state.log_time);
            return false;
        };
        plan.reclaims.extend(victims.into_iter().map(|lease| ProposedReclaim { lease, reason: reason.clone() }));
        true
    }

    /// Drops repairs that do not hold beside all that was placed after they were found.
    pub(crate) fn check_repairs(&self, plan: &mut Plan) {
        let state = self.snapshot.state;
        let asked = plan.reclaims.iter().filter(|reclaim| matches!(reclaim.reason, ReclaimReason::Repair { .. }));
        let by: BTreeSet<RequestId> = asked.filter_map(|reclaim| reclaim.reason.for_request()).collect();
        for by in by {
            let reason = ReclaimReason::Repair { by };
            let moves = plan.reclaims.iter().filter(|reclaim| reclaim.reason == reason);
            let moves: Vec<(LeaseId, &Lease)> =
                moves.filter_map(|reclaim| Some((reclaim.lease, state.leases.get(&reclaim.lease)?))).collect();
            let donor = moves.first().map(|(_, lease)| &lease.placement.donor);
            if !donor.is_some_and(|donor| is_right(&self.snapshot, by, donor, &moves)) {
                plan.reclaims.retain(|reclaim| reclaim.reason != reason);
            }
        }
    }

    /// Seeks a new place for leases that are being reclaimed, those first that end first. What is replaced counts
    /// against limits only once.
    pub(crate) fn move_reclaimed(&mut self, plan: &mut Plan, limit: usize) {
        let state = self.snapshot.state;
        let mut moving: Vec<(Option<Timestamp>, LeaseId, &'a Lease)> =
            state.reclaiming().map(|(id, lease)| (lease.due(), id, lease)).collect();
        moving.sort_by_key(|(due, id, _)| (*due, *id));
        for (_, id, lease) in moving.into_iter().take(MAX_MOVES) {
            let Some(request) = state.requests.get(&lease.request).filter(|_| plan.placements.len() < limit) else {
                continue;
            };
            if !request.may_replace(state, id) {
                continue;
            }
            let chain = request.chain_of(state, id);
            self.each_view(|snapshot| snapshot.without_chain(&chain));
            let places = replacement_specs(state, request, id);
            let found = places.iter().find_map(|spec| self.find(spec, Some(request)));
            self.each_view(|snapshot| snapshot.with_chain_again(&chain));
            if let Some(found) = found {
                self.each_view(|snapshot| snapshot.with_replaced(lease));
                let proposed = self.propose(lease.request, request, found);
                plan.placements.push(ProposedPlacement { aim: Aim::Replace(id), ..proposed });
            }
        }
    }
}
