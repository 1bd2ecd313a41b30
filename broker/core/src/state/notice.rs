//! The length of a reclaim notice.

use comity_policy::Bundle;
use comity_types::ClusterId;

use crate::model::lease::Lease;
use crate::model::reclaim::ReclaimReason;
use crate::model::time::{Millis, Timestamp};
use crate::state::State;

/// Time before the notice of a lease that a schedule ends: proposals of reclaims take up to a minute and a half.
const SCHEDULE_LEAD: Millis = Millis::from_mins(2);

/// Time before the end of a schedule's permission at which a preemptible lease is reclaimed.
pub(crate) fn schedule_notice(bundle: &Bundle, donor: &ClusterId) -> Millis {
    Millis(bundle.reclaim_grace_ms(donor.as_str()).saturating_add(SCHEDULE_LEAD.0))
}

/// The notice that a lease gets when reclaimed for `reason`: the donor's notice period, and for a preemption, a
/// migration or borrowed quota at least the period that the request asks for; none if policy stops it.
pub(crate) fn notice(state: &State, lease: &Lease, reason: &ReclaimReason) -> Millis {
    let bundle = state.policy.as_ref().map(|record| &record.bundle);
    let policy = bundle.map_or(0, |bundle| bundle.reclaim_grace_ms(lease.placement.donor.as_str()));
    let asked = state.requests.get(&lease.request).and_then(|request| request.spec.preemptible);
    match reason {
        ReclaimReason::Preempted { .. } | ReclaimReason::Migration { .. } | ReclaimReason::BorrowedQuota { .. } => {
            Millis(policy.max(asked.map_or(0, |preemptible| preemptible.grace.0)))
        }
        reason if reason.is_stop() => Millis(0),
        ReclaimReason::LocalNeed
        | ReclaimReason::PolicyChanged { .. }
        | ReclaimReason::DeviceFailed { .. }
        | ReclaimReason::NodeFailed { .. }
        | ReclaimReason::DonorSilent
        | ReclaimReason::Revoked { .. }
        | ReclaimReason::UserRevoked { .. } => Millis(policy),
    }
}

/// The latest end of a lease if it is reclaimed now for `reason`.
pub(crate) fn end_if_reclaimed(state: &State, lease: &Lease, reason: &ReclaimReason) -> Timestamp {
    end_if_reclaimed_at(state, lease, reason, state.log_time)
}

/// The latest end of a lease if it is reclaimed at `at` for `reason`.
pub(crate) fn end_if_reclaimed_at(state: &State, lease: &Lease, reason: &ReclaimReason, at: Timestamp) -> Timestamp {
    at.after(notice(state, lease, reason)).min(lease.latest_end(state.log_time))
}
