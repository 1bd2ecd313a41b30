//! Releases a lease.

use comity_types::{EndReason, LeaseId};
use serde::{Deserialize, Serialize};

use crate::model::refusal::Refusal;
use crate::model::reply::{Reply, ReplyBody};
use crate::state::transition::Transition;

/// Ends a lease at its owner's request. Releasing a lease that is already ending is a no-op.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseLease {
    /// The lease.
    pub lease: LeaseId,
}

impl ReleaseLease {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        if !transition.state().leases.contains_key(&self.lease) {
            return Err(Refusal::not_found("lease", self.lease, "lease"));
        }
        transition.end_lease(self.lease, EndReason::Released, "released by its owner");
        Ok(ReplyBody::Lease(self.lease))
    }
}
