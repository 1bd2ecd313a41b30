//! How the start and the end of a lease affect its request.

use comity_types::{EndReason, LeaseId, LeaseState, RequestId, RequestState};

use crate::apply::consequences::exclusions::is_evicted;
use crate::feasibility::gpu_types::gpu_type_of;
use crate::feasibility::idle::serves_without;
use crate::model::limits::MAX_ATTEMPTS;
use crate::model::reclaim::ReclaimReason;
use crate::model::time::Timestamp;
use crate::state::gang::{self, Fate};
use crate::state::transition::Transition;

impl Transition<'_> {
    /// Handles a lease that became active. All leases of a gang expire together: their common term starts when the last
    /// of the initial leases is active, at `begins`, and later ones adopt it.
    pub(crate) fn align_gang_terms(&mut self, id: LeaseId, begins: Timestamp) {
        let state = self.state();
        let Some(lease) = state.leases.get(&id) else { return };
        if let Some(old) = lease.moved_from
            && let Some((reason, why)) = self.end_of_migrated(old)
        {
            self.end_lease(old, reason, &why);
            return;
        }
        let state = self.state();
        let Some(lease) = state.leases.get(&id) else { return };
        let Some(request) = state.requests.get(&lease.request).filter(|request| !request.parts.is_empty()) else {
            return;
        };
        let late = lease.joins || lease.moved_from.is_some();
        if request.leases().all(|own| own != id) || !late && !gang::has_started(state, request) {
            return;
        }
        let others = gang::parts(state, request).filter(|(other, lease)| *other != id && lease.state.is_in_force());
        let first_end = others.filter_map(|(_, lease)| lease.expires_at).min();
        let ends = if late { first_end } else { Some(begins.after(lease.term)) };
        let all: Vec<LeaseId> = gang::parts(state, request)
            .filter(|(other, lease)| if late { *other == id } else { lease.state.is_in_force() })
            .map(|(id, _)| id)
            .collect();
        for part in all {
            self.change_lease(part, |lease| lease.expires_at = ends.or(lease.expires_at));
        }
    }

    /// Notes the type of a lease's GPUs in its request, if the checkpoints of its work need the same type from now on.
    pub(crate) fn pin_gpu_type(&mut self, id: LeaseId) {
        let state = self.state();
        let Some(lease) = state.leases.get(&id) else { return };
        let number = lease.request;
        if state.requests.get(&number).is_some_and(|request| request.spec.seeks_one_gpu_type()) {
            let gpu_type = gpu_type_of(state, &lease.placement);
            self.change_request(number, |request| request.spec.gpus.gpu_type = gpu_type);
        }
    }

    /// Whether a lease moves only to make room for another request, its term has not expired, and its replacement is
    /// not usable yet. Such a lease does not end.
    pub(crate) fn must_outlast_migration(&self, id: LeaseId) -> bool {
        let Some(lease) = self.state().leases.get(&id) else { return false };
        let migration = lease.reclaim.as_ref().is_some_and(|it| matches!(it.reason, ReclaimReason::Migration { .. }));
        let usable = |next: LeaseId| self.state().leases.get(&next).is_some_and(|next| next.state.is_in_force());
        let runs_out = lease.expires_at.is_some_and(|at| at <= self.now());
        migration && lease.state == LeaseState::Reclaiming && !runs_out && !lease.moved_to.is_some_and(usable)
    }

    /// The end of a lease that moved to make room, if its work was saved before its new place was usable.
    fn end_of_migrated(&self, old: LeaseId) -> Option<(EndReason, String)> {
        let lease = self.state().leases.get(&old).filter(|lease| lease.state == LeaseState::Reclaiming)?;
        let reclaim = lease.reclaim.as_ref().filter(|it| matches!(it.reason, ReclaimReason::Migration { .. }))?;
        let saved = lease.checkpointed_at.is_some_and(|at| at >= reclaim.since);
        saved.then(|| (reclaim.end_reason(), format!("reclaimed: {}; its work was saved", reclaim.reason)))
    }

    /// Detaches an ending lease from its request. The request continues, with `next` if that takes over, or ends too.
    pub(crate) fn detach_from_request(
        &mut self,
        request: RequestId,
        id: LeaseId,
        was: LeaseState,
        next: Option<LeaseId>,
        message: &str,
    ) {
        let (Some(found), Some(lease)) = (self.state().requests.get(&request), self.state().leases.get(&id)) else {
            return;
        };
        if found.state != RequestState::Placed {
            return;
        }
        let (donor, reason) = (lease.placement.donor.clone(), lease.end_reason.unwrap_or(EndReason::Released));
        if found.leases().all(|own| own != id) {
            // The lease was to replace another one that is still in force.
            if reason.retries() && !reason.was_served() {
                self.change_request(request, |request| request.avoid(donor, reason));
            }
            return;
        }
        if let Some(next) = next {
            self.replace_part(request, id, next);
        } else if gang::fate_of_request(self.state(), found, id, lease, was) == Fate::Continues {
            let first = gang::first_lease_without(self.state(), found, id);
            self.change_request(request, |request| {
                request.lease = first;
                request.parts.remove(&id);
                first.iter().for_each(|first| _ = request.parts.remove(first));
                request.message = format!("goes on without {id}: {message}");
                if !reason.was_served() {
                    request.avoid(donor, reason);
                }
            });
        } else {
            self.end_or_requeue(request, id, message);
        }
    }

    /// Puts `next` in the place of lease `id`. If it holds a whole gang, the other leases end.
    fn replace_part(&mut self, request: RequestId, id: LeaseId, next: LeaseId) {
        let Some(found) = self.state().requests.get(&request) else { return };
        let others: Vec<LeaseId> = found.leases().filter(|own| *own != id).collect();
        let moved_whole = gang::moved_as_a_whole(self.state(), found, next);
        let now = self.now();
        if self.state().leases.get(&next).is_some_and(|lease| lease.idle_since.is_some()) {
            // Its work ran on the lease that it replaces.
            self.change_lease(next, |lease| lease.restart_idle_time(now));
        }
        self.change_request(request, |request| {
            if request.lease == Some(id) {
                request.lease = Some(next);
            } else {
                request.parts.remove(&id);
                request.parts.insert(next);
            }
            request.message = format!("moved to {next}");
            if moved_whole {
                request.parts.clear();
            }
        });
        if moved_whole {
            let message = format!("its gang moved to {next}");
            others.into_iter().for_each(|other| self.end_lease(other, EndReason::NotNeeded, &message));
        }
    }

    /// Ends a request, or queues it again, because its lease `id` ends. Its other leases end as well.
    fn end_or_requeue(&mut self, request: RequestId, id: LeaseId, message: &str) {
        let (Some(found), Some(lease)) = (self.state().requests.get(&request), self.state().leases.get(&id)) else {
            return;
        };
        let others: Vec<LeaseId> = found.leases().filter(|own| *own != id).collect();
        let (donor, reason) = (lease.placement.donor.clone(), lease.end_reason.unwrap_or(EndReason::Released));
        let evicted = Some(&found.spec.origin).filter(|origin| is_evicted(self.state(), origin));
        let message = match evicted {
            Some(origin) if reason.retries() => format!("{message}, and cluster {origin} was evicted"),
            _ => message.to_owned(),
        };
        // The donor of a drained lease may fail before the deadline. Nothing waits for an evicted origin.
        let ends = evicted.is_some() || lease.ends_its_request();
        let reason = if reason.retries() && ends { EndReason::Cancelled } else { reason };
        let others_may_serve = reason == EndReason::OriginRefused && serves_without(self.state(), &found.spec, &donor);
        let now = self.now();
        self.change_request(request, |request| {
            request.parts.clear();
            message.clone_into(&mut request.message);
            request.state = match reason {
                EndReason::Released | EndReason::Expired | EndReason::NotNeeded | EndReason::Idle => {
                    RequestState::Completed
                }
                EndReason::Cancelled | EndReason::OriginRevoked => RequestState::Cancelled,
                EndReason::OriginFailed => RequestState::Failed,
                EndReason::Reclaimed
                | EndReason::Preempted
                | EndReason::DeviceLost
                | EndReason::NodeLost
                | EndReason::DonorLost
                | EndReason::DonorRevoked => {
                    // The request was served before, so its count of attempts starts again.
                    request.attempts = 0;
                    if request.spec.start_by.is_some_and(|deadline| deadline <= now) {
                        request.message = format!("{message}, and it may not start again after its start_by");
                        RequestState::Failed
                    } else {
                        RequestState::Queued
                    }
                }
                EndReason::OriginRefused => {
                    request.avoid(donor, reason);
                    // Each donor is refused once, so this ends without a limit of attempts.
                    request.attempts = request.attempts.saturating_sub(1);
                    if others_may_serve {
                        RequestState::Queued
                    } else {
                        request.message = format!("{message}, and no other donor may serve it");
                        RequestState::Failed
                    }
                }
                EndReason::HoldExpired | EndReason::DonorFailed | EndReason::PartFailed => {
                    if request.attempts < MAX_ATTEMPTS {
                        request.try_again(donor, reason, now);
                        return;
                    }
                    request.avoid(donor, reason);
                    RequestState::Failed
                }
            };
        });
        let why = format!("{id} of the same gang ends: {message}");
        for other in others {
            self.end_lease(other, gang::end_reason_of_other_parts(reason), &why);
        }
    }
}
