//! Records that the work of a lease is saved.

use comity_types::LeaseId;
use serde::{Deserialize, Serialize};

use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::state::transition::Transition;

/// Reports that the work on a lease has saved itself. A lease under reclaim ends at once, before its deadline, since
/// nothing is lost any more. Otherwise the lease loses less in a later reclaim, so the scheduler prefers it as a
/// victim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointLease {
    /// The lease.
    pub lease: LeaseId,
}

impl CheckpointLease {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let lease = transition
            .state()
            .leases
            .get(&self.lease)
            .ok_or_else(|| Refusal::not_found("lease", self.lease, "lease"))?;
        if !lease.state.is_in_force() {
            let reason = format!("{} is not in force", self.lease);
            return Err(Refusal::new(Code::WrongState, reason, "nothing of it runs that could be saved")
                .at("lease", self.lease));
        }
        record_checkpoint(transition, self.lease);
        Ok(ReplyBody::Lease(self.lease))
    }
}

/// Records the checkpoint of a lease in force, and ends the lease if it is being reclaimed.
pub(crate) fn record_checkpoint(transition: &mut Transition<'_>, id: LeaseId) {
    let now = transition.now();
    transition.change_lease(id, |lease| lease.checkpointed_at = Some(now));
    if transition.must_outlast_migration(id) {
        return;
    }
    let reclaim = transition.state().leases.get(&id).and_then(|lease| lease.reclaim.as_ref());
    if let Some((reason, why)) = reclaim.map(|reclaim| (reclaim.end_reason(), reclaim.reason.to_string())) {
        transition.end_lease(id, reason, &format!("reclaimed: {why}; its work was saved"));
    }
}
