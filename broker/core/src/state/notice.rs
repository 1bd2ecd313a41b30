//! The length of a reclaim notice.

use crate::model::lease::Lease;
use crate::model::reclaim::ReclaimReason;
use crate::model::time::Millis;
use crate::state::State;

/// The notice that a lease gets when reclaimed for `reason`: the donor's notice period, and for a preemption or a
/// migration at least the period that the request asks for.
pub(crate) fn notice(state: &State, lease: &Lease, reason: &ReclaimReason) -> Millis {
    let bundle = state.policy.as_ref().map(|record| &record.bundle);
    let policy = bundle.map_or(0, |bundle| bundle.reclaim_grace_ms(lease.placement.donor.as_str()));
    let asked = state.requests.get(&lease.request).and_then(|request| request.spec.preemptible);
    match reason {
        ReclaimReason::Preempted { .. } | ReclaimReason::Migration { .. } => {
            Millis(policy.max(asked.map_or(0, |preemptible| preemptible.grace.0)))
        }
        ReclaimReason::LocalNeed
        | ReclaimReason::PolicyChanged { .. }
        | ReclaimReason::DeviceFailed { .. }
        | ReclaimReason::NodeFailed { .. }
        | ReclaimReason::DonorSilent
        | ReclaimReason::Revoked { .. }
        | ReclaimReason::UserRevoked { .. } => Millis(policy),
    }
}
