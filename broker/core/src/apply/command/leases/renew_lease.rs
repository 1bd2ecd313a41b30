//! Renews a lease.

use comity_types::LeaseId;
use serde::{Deserialize, Serialize};

use crate::feasibility::check_renewal;
use crate::feasibility::check_renewal::{Renewed, renewed_with};
use crate::model::lease::Lease;
use crate::model::limits::{MAX_LEASE_MS, MIN_LEASE_MS};
use crate::model::meter::Meter;
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::model::time::{Millis, Timestamp};
use crate::state::State;
use crate::state::transition::Transition;

/// Starts a new term now, if policy allows its length; for a gang, on all its leases. A lease ends earlier than before
/// only if the renewal says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewLease {
    /// The lease.
    pub lease: LeaseId,
    /// Length of the new term; zero keeps the current length.
    pub duration: Millis,
    /// Whether the lease may end earlier than before.
    pub may_shorten: bool,
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
        if is_gang_without_start(lease) {
            let reason = format!("{} waits for the other leases of its gang, and its term has not begun", self.lease);
            return Err(
                Refusal::new(Code::WrongState, reason, "renew it once all of them are active").at("lease", self.lease)
            );
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
        let state = transition.state();
        state.check_borrower(&lease.origin, &lease.tenant)?;
        state.institutions_of_borrower(lease).try_for_each(|name| state.check_institution(name))?;
        let now = transition.now();
        let Renewed { in_force: all, waiting } = renewed_with(state, self.lease);
        let end = now.after(term);
        for id in &all {
            // Each donor of a gang decides for all its leases, because they end together.
            state.leases.get(id).map_or(Ok(()), |lease| state.check_part(&lease.placement.donor))?;
            check_renewal(state, *id, term)?;
            self.check_end(state, *id, end)?;
        }
        for id in all {
            transition.change_lease(id, |lease| {
                lease.term = term;
                lease.expires_at = Some(end);
            });
        }
        for id in waiting {
            transition.change_lease(id, |lease| lease.ends_by = Some(end));
        }
        Ok(ReplyBody::Lease(self.lease))
    }

    /// Refuses an end before the present one unless the renewal may shorten the lease.
    fn check_end(&self, state: &State, id: LeaseId, end: Timestamp) -> Result<(), Refusal> {
        let present = state.leases.get(&id).and_then(|lease| lease.expires_at);
        match present {
            Some(present) if end < present && !self.may_shorten => Err(Refusal::new(
                Code::WrongState,
                format!("{id} would end at {} instead of {}", end.to_second(), present.to_second()),
                "renew it with a longer duration_ms, or set may_shorten to let it end earlier",
            )
            .at("may_shorten", self.may_shorten)),
            _ => Ok(()),
        }
    }
}

/// Whether a lease is active and its gang has not begun to work.
fn is_gang_without_start(lease: &Lease) -> bool {
    matches!(lease.meter, Meter::Waits { .. }) && lease.moved_from.is_none() && !lease.joins
}
