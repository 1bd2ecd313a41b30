//! What follows when the leases of a revoked user's requests are drained or stopped.

use std::collections::BTreeSet;

use comity_types::{LeaseId, LeaseState, LeaseTreatment, RequestId};

use crate::model::lease::Lease;
use crate::model::reclaim::ReclaimReason;
use crate::model::revocation::RevocationEffects;
use crate::state::State;
use crate::state::transition::Transition;

/// The requests that a user submitted, as far as the caller who revokes the user may end them.
pub(crate) struct OwnRequests {
    /// SPIFFE id of the user.
    pub(crate) user: String,
    /// The institutions that the caller operates; `None` for a caller who may end the requests of all.
    pub(crate) operated: Option<BTreeSet<String>>,
}

impl OwnRequests {
    /// Whether a lease serves one of these requests.
    pub(crate) fn have(&self, state: &State, lease: &Lease) -> bool {
        let is_theirs =
            state.requests.get(&lease.request).is_some_and(|request| request.spec.submitted_by == self.user);
        is_theirs && self.are_of(Some(lease.institution.as_str()))
    }

    fn are_of(&self, institution: Option<&str>) -> bool {
        self.operated.as_ref().is_none_or(|operated| institution.is_some_and(|name| operated.contains(name)))
    }

    /// Their leases that have not ended.
    fn leases<'s>(&'s self, state: &'s State) -> impl Iterator<Item = (LeaseId, &'s Lease)> {
        state.live_leases().filter(|(_, lease)| self.have(state, lease))
    }

    /// Those that wait.
    fn waiting(&self, state: &State) -> Vec<RequestId> {
        let waiting = state.queued().filter(|(_, request)| {
            request.spec.submitted_by == self.user && self.are_of(state.institution_of_tenant(&request.spec.tenant))
        });
        waiting.map(|(id, _)| id).collect()
    }

    /// What ends of them if their leases are drained or stopped.
    pub(crate) fn effects(&self, state: &State) -> RevocationEffects {
        let leases = self.leases(state).map(|(_, lease)| lease).filter(|lease| !joins(lease));
        RevocationEffects::of(Vec::new(), leases, self.waiting(state).len())
    }
}

/// Whether a lease is to add members to a running gang. It ends with the gang; ending it earlier would end the gang
/// without notice.
fn joins(lease: &Lease) -> bool {
    lease.joins && lease.state.is_held()
}

impl Transition<'_> {
    /// Cancels those requests of a user that wait, and drains or stops the leases of the other ones. These end with
    /// their leases.
    pub(crate) fn treat_requests_of(&mut self, own: &OwnRequests, treatment: LeaseTreatment) {
        if treatment == LeaseTreatment::Finish {
            return;
        }
        let waiting = own.waiting(self.state());
        self.cancel_waiting(&waiting, &ReclaimReason::UserRevoked { by: None }.to_string());
        let leases: Vec<LeaseId> = own.leases(self.state()).map(|(id, _)| id).collect();
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
