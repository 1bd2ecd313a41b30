//! A lease gets a fresh term.

use serde::{Deserialize, Serialize};

use crate::id::LeaseId;
use crate::limits::{MAX_LEASE_MS, MIN_LEASE_MS};
use crate::log::{Reply, ReplyBody};
use crate::matcher;
use crate::refusal::{Code, Refusal};
use crate::time::Millis;
use crate::transition::Transition;

/// Starts a fresh term from now, if policy allows one of that length.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewLease {
    /// Which one.
    pub lease: LeaseId,
    /// Length of the term; zero: as before.
    pub duration: Millis,
}

impl RenewLease {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let lease =
            transition.state.leases.get(&self.lease).ok_or_else(|| Refusal::not_found("lease", self.lease, "lease"))?;
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
                format!("use 0, or {MIN_LEASE_MS} to {MAX_LEASE_MS}"),
            ));
        }
        matcher::check_renewal(transition.state, self.lease, term)?;
        let now = transition.now;
        transition.change_lease(self.lease, |lease| {
            lease.term = term;
            lease.expires_at = Some(now.after(term));
        });
        Ok(ReplyBody::Lease(self.lease))
    }
}
