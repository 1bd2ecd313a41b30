//! What follows when the leases of a revoked user's requests are drained or stopped.

use comity_types::{LeaseId, LeaseState, RequestId};

use crate::model::lease::Lease;
use crate::model::reclaim::ReclaimReason;
use crate::model::revocation::{LeaseTreatment, RevocationEffects};
use crate::state::State;
use crate::state::transition::Transition;

/// Whether the user with the SPIFFE id `user` submitted the request of a lease.
pub(crate) fn is_of(state: &State, user: &str, lease: &Lease) -> bool {
    state.requests.get(&lease.request).is_some_and(|request| request.submitted_by == user)
}

/// The user's leases that have not ended.
fn leases_of<'s>(state: &'s State, user: &'s str) -> impl Iterator<Item = (LeaseId, &'s Lease)> {
    state.live_leases().filter(move |(_, lease)| is_of(state, user, lease))
}

fn waiting_of(state: &State, user: &str) -> Vec<RequestId> {
    state.queued().filter(|(_, request)| request.submitted_by == user).map(|(id, _)| id).collect()
}

/// What ends of the requests that `user` submitted if their leases are drained or stopped.
pub(crate) fn effects_of(state: &State, user: &str) -> RevocationEffects {
    let leases = leases_of(state, user).map(|(_, lease)| lease).filter(|lease| !joins(lease));
    RevocationEffects::of(Vec::new(), leases, waiting_of(state, user).len())
}

/// Whether a lease is to add members to a running gang. It ends with the gang; ending it earlier would end the gang
/// without notice.
fn joins(lease: &Lease) -> bool {
    lease.joins && lease.state.is_held()
}

impl Transition<'_> {
    /// Cancels the waiting requests of a user, and drains or stops the leases of the other ones. Those requests end with
    /// their leases.
    pub(crate) fn treat_requests_of(&mut self, user: &str, treatment: LeaseTreatment) {
        if treatment == LeaseTreatment::Finish {
            return;
        }
        let waiting = waiting_of(self.state(), user);
        self.cancel_waiting(&waiting, &ReclaimReason::UserRevoked { by: None }.to_string());
        let leases: Vec<LeaseId> = leases_of(self.state(), user).map(|(id, _)| id).collect();
        leases.into_iter().for_each(|id| self.treat_own_lease(id, treatment));
    }

    fn treat_own_lease(&mut self, id: LeaseId, treatment: LeaseTreatment) {
        let Some(lease) = self.state().leases.get(&id) else { return };
        let by = lease.reclaim.as_ref().and_then(|reclaim| reclaim.reason.for_request());
        let reason = ReclaimReason::UserRevoked { by };
        match (lease.state, treatment) {
            (LeaseState::Ending | LeaseState::Ended, _) => {}
            _ if joins(lease) && treatment == LeaseTreatment::Drain => {}
            (LeaseState::Active | LeaseState::Suspect | LeaseState::Reclaiming, LeaseTreatment::Drain) => {
                self.drain_lease(id, reason);
            }
            _ => self.end_lease(id, reason.ends_at_once(), &reason.to_string()),
        }
    }
}
