//! Renews a lease.

use comity_types::LeaseId;
use serde::{Deserialize, Serialize};

use crate::feasibility::check_renewal;
use crate::model::limits::{MAX_LEASE_MS, MIN_LEASE_MS};
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::model::time::Millis;
use crate::state::transition::Transition;
use crate::state::{State, gang};

/// Starts a new term now, if policy allows its length; for a gang, on all its leases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewLease {
    /// The lease.
    pub lease: LeaseId,
    /// Length of the new term; zero keeps the current length.
    pub duration: Millis,
}

impl RenewLease {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let lease = transition
            .state()
            .leases
            .get(&self.lease)
            .ok_or_else(|| Refusal::not_found("lease", self.lease, "lease"))?;
        if !lease.state.is_in_force() {
            return Err(Refusal::new(
                Code::WrongState,
                format!("{} is not active", self.lease),
                "only a lease in force can be renewed; submit a new request",
            )
            .at("lease", self.lease));
        }
        let term = if self.duration.0 == 0 { lease.term } else { self.duration };
        if !(MIN_LEASE_MS..=MAX_LEASE_MS).contains(&term.0) {
            return Err(Refusal::invalid(
                "duration_ms",
                term.0,
                "is out of range",
                format!("use {MIN_LEASE_MS} to {MAX_LEASE_MS}, or leave it out for the present term"),
            ));
        }
        let now = transition.now();
        let all = leases_of_gang(transition.state(), self.lease);
        for id in &all {
            check_renewal(transition.state(), *id, term)?;
        }
        for id in all {
            transition.change_lease(id, |lease| {
                lease.term = term;
                lease.expires_at = Some(now.after(term));
            });
        }
        Ok(ReplyBody::Lease(self.lease))
    }
}

/// The lease and the other leases of its gang in force: all must end at the same time, so they are renewed together.
fn leases_of_gang(state: &State, id: LeaseId) -> Vec<LeaseId> {
    let request = state.leases.get(&id).and_then(|lease| state.requests.get(&lease.request));
    let gang = request.filter(|request| request.leases().any(|own| own == id));
    let parts = gang.into_iter().flat_map(|request| gang::parts(state, request));
    let others = parts.filter(|(other, lease)| *other != id && lease.state.is_in_force()).map(|(other, _)| other);
    std::iter::once(id).chain(others).collect()
}
