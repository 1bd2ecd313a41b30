//! The reclaim of one lease.

use comity_proto::v1;
use serde::Serialize;

use super::value::{non_empty, non_zero};
use crate::units::age;

/// Why and until when a lease is being reclaimed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reclaim {
    /// `local-need`, `policy-changed`, `preempted`, `migration`, `device-failed`, `node-failed`, `donor-silent`,
    /// `revoked`, or `unknown` if this version of `comity` does not know it.
    pub reason: &'static str,
    /// Code of the policy denial, for `policy-changed`.
    pub policy_code: Option<String>,
    /// Request that preempts the lease.
    pub by_request: Option<String>,
    /// Description of the failed device, node or donor.
    pub failed: Option<String>,
    /// When notice was given.
    pub since_ms: Option<u64>,
    /// When the lease ends, unless its work is saved before or the reason goes away.
    pub deadline_ms: Option<u64>,
}

impl From<v1::Reclaim> for Reclaim {
    fn from(reclaim: v1::Reclaim) -> Self {
        let reason = match reclaim.reason() {
            v1::ReclaimReason::Unspecified => "unknown",
            v1::ReclaimReason::LocalNeed => "local-need",
            v1::ReclaimReason::PolicyChanged => "policy-changed",
            v1::ReclaimReason::Preempted => "preempted",
            v1::ReclaimReason::Migration => "migration",
            v1::ReclaimReason::BorrowedQuota => "borrowed-quota",
            v1::ReclaimReason::DeviceFailed => "device-failed",
            v1::ReclaimReason::NodeFailed => "node-failed",
            v1::ReclaimReason::DonorSilent => "donor-silent",
            v1::ReclaimReason::Revoked => "revoked",
        };
        Self {
            reason,
            policy_code: non_empty(reclaim.policy_code),
            by_request: non_empty(reclaim.by_request),
            failed: non_empty(reclaim.failed),
            since_ms: non_zero(reclaim.since_ms),
            deadline_ms: non_zero(reclaim.deadline_ms),
        }
    }
}

impl Reclaim {
    /// For people: `preempted (req-9), deadline in 4m`.
    pub(crate) fn summary(&self, now_ms: u64) -> String {
        let detail = self.policy_code.as_ref().or(self.by_request.as_ref()).or(self.failed.as_ref());
        let detail = detail.map(|detail| format!(" ({detail})")).unwrap_or_default();
        format!("{}{detail}, deadline {}", self.reason, age(self.deadline_ms.unwrap_or(0), now_ms))
    }
}
