//! Reclaims: why, until when, and how the request continues.
//!
//! ```text
//! active ─▶ reclaiming ─▶ ending(reclaimed | preempted | donor-lost | donor-/origin-revoked | cancelled) ─▶ ended
//!    ▲          │  at the deadline, or once the origin reports that its work is saved
//!    └──────────┘  reclaim cancelled: the reason is gone
//! ```
//!
//! A lease whose device or node is gone ends at once (device-lost, node-lost), because its work has already stopped; so
//! does one whose permission policy withdraws with `onWithdrawal: stop`.
//!
//! A lease under reclaim stays in force until its deadline. Meanwhile the scheduler places its request again, as if it
//! were waiting. The new lease names the one it replaces (`moved_from`), has its own fencing token and handshake, and
//! takes over the request when the old lease ends. If the new lease is itself reclaimed before that, another lease
//! replaces it in turn. So the request moves and keeps its id. To agents, a lease is one placement under one id and
//! token from beginning to end; no lease ever changes its donor. The request of a revoked user, or of an origin that is
//! drained, does not move: it ends with its leases, as `cancelled`.

use comity_types::{ClusterId, EndReason, LeaseTreatment, NodeId, RequestId, Side};
use serde::{Deserialize, Serialize};

use crate::model::inventory::FaultClass;
use crate::model::time::{Millis, Timestamp};

/// Why a lease is being reclaimed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReclaimReason {
    /// The donor's local work needs capacity that is lent, or the donor's reserve is not free.
    LocalNeed,
    /// The policy in force no longer allows the lease, perhaps because one of its dates has passed.
    PolicyChanged {
        /// The code of the denial, as in "agreement-ended".
        code: String,
        /// What the policy demands: to drain or to stop it.
        treatment: LeaseTreatment,
    },
    /// A request of higher priority needs the capacity.
    Preempted {
        /// The request of higher priority.
        by: RequestId,
    },
    /// A blocked request fits if this lease moves, and the lease has another place to go.
    Migration {
        /// The blocked request.
        by: RequestId,
    },
    /// It is on quota that its tenant or institution borrows, and the member of the cohort that has it needs it back.
    BorrowedQuota {
        /// The request that is within its nominal quota.
        by: RequestId,
        /// The donor where that request will start; often not the lease's.
        at: ClusterId,
    },
    /// One of its devices failed.
    DeviceFailed {
        /// Its node.
        node: NodeId,
        /// The device's index on the node.
        device: u32,
        /// The fault's severity.
        class: FaultClass,
    },
    /// One of its nodes failed.
    NodeFailed {
        /// The failed node.
        node: NodeId,
        /// Whether the node has left the cluster. Otherwise it is not ready, or failed too often lately.
        gone: bool,
    },
    /// Its donor was silent for too long.
    DonorSilent,
    /// Its origin or donor was evicted, or the institution of one of them is suspended.
    Revoked {
        /// Whose part ends.
        side: Side,
        /// The request for which the lease was being reclaimed before: it still gets the capacity.
        by: Option<RequestId>,
    },
    /// The user who submitted its request was revoked.
    UserRevoked {
        /// The request for which the lease was being reclaimed before: it still gets the capacity.
        by: Option<RequestId>,
    },
}

impl ReclaimReason {
    /// Its name in the API and in messages.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::LocalNeed => "local-need",
            Self::PolicyChanged { .. } => "policy-changed",
            Self::Preempted { .. } => "preempted",
            Self::Migration { .. } => "migration",
            Self::BorrowedQuota { .. } => "borrowed-quota",
            Self::DeviceFailed { .. } => "device-failed",
            Self::NodeFailed { .. } => "node-failed",
            Self::DonorSilent => "donor-silent",
            Self::Revoked { .. } | Self::UserRevoked { .. } => "revoked",
        }
    }

    /// The request that waits for the capacity, if any.
    #[must_use]
    pub fn for_request(&self) -> Option<RequestId> {
        match self {
            Self::Preempted { by } | Self::Migration { by } | Self::BorrowedQuota { by, .. } => Some(*by),
            Self::Revoked { by, .. } | Self::UserRevoked { by } => *by,
            Self::LocalNeed
            | Self::PolicyChanged { .. }
            | Self::DeviceFailed { .. }
            | Self::NodeFailed { .. }
            | Self::DonorSilent => None,
        }
    }

    /// Whether a failure caused the reclaim, not demand for the capacity.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::DeviceFailed { .. } | Self::NodeFailed { .. } | Self::DonorSilent)
    }

    /// Whether the lease ends at once: its work has already stopped, so that notice is pointless, or policy stops it.
    #[must_use]
    pub fn leaves_no_time(&self) -> bool {
        match self {
            Self::DeviceFailed { class: FaultClass::Lost, .. } | Self::NodeFailed { gone: true, .. } => true,
            reason => reason.is_stop(),
        }
    }

    /// Whether policy stops the lease.
    #[must_use]
    pub fn is_stop(&self) -> bool {
        matches!(self, Self::PolicyChanged { treatment: LeaseTreatment::Stop, .. })
    }

    /// End reason of a lease that ends at once: its work has stopped, or it is not in force yet.
    #[must_use]
    pub fn ends_at_once(&self) -> EndReason {
        match self {
            Self::LocalNeed | Self::PolicyChanged { .. } | Self::Migration { .. } | Self::BorrowedQuota { .. } => {
                EndReason::Reclaimed
            }
            Self::Preempted { .. } => EndReason::Preempted,
            Self::DeviceFailed { .. } => EndReason::DeviceLost,
            Self::NodeFailed { .. } => EndReason::NodeLost,
            Self::DonorSilent => EndReason::DonorLost,
            Self::Revoked { side: Side::Donor, .. } => EndReason::DonorRevoked,
            Self::Revoked { side: Side::Origin, .. } => EndReason::OriginRevoked,
            Self::UserRevoked { .. } => EndReason::Cancelled,
        }
    }
}

impl std::fmt::Display for ReclaimReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::LocalNeed => f.write_str("the donor needs it for local work"),
            Self::PolicyChanged { code, treatment: _ } => write!(f, "policy does not allow it any more ({code})"),
            Self::Preempted { by } => write!(f, "{by} of higher priority needs its place"),
            Self::Migration { by } => write!(f, "{by} fits if it moves, and there is another place for it"),
            Self::BorrowedQuota { by, .. } => write!(f, "{by} needs the quota that it borrows"),
            Self::DeviceFailed { node, device, class } => {
                let how = match class {
                    FaultClass::Lost => "is gone",
                    FaultClass::Link => "has lost its NVLink",
                    FaultClass::Degraded | FaultClass::Application => "is not healthy",
                };
                write!(f, "device {device} of node {node} {how}")
            }
            Self::NodeFailed { node, gone: true } => write!(f, "node {node} is gone"),
            Self::NodeFailed { node, gone: false } => write!(f, "node {node} does not answer, or failed too often"),
            Self::DonorSilent => f.write_str("nothing is heard of the donor any more"),
            Self::Revoked { side, .. } => write!(f, "its {side} was evicted or suspended"),
            Self::UserRevoked { .. } => f.write_str("the user who submitted its request was revoked"),
        }
    }
}

/// A reclaim in progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reclaim {
    /// The reason.
    pub reason: ReclaimReason,
    /// When the notice began.
    pub since: Timestamp,
    /// Length of the notice: at least what policy and, for a preemption, the request require.
    pub grace: Millis,
    /// When the lease ends, unless its work is saved earlier or the reclaim is cancelled.
    pub deadline: Timestamp,
}

impl Reclaim {
    /// End reason of the lease, unless the reclaim is cancelled.
    #[must_use]
    pub fn end_reason(&self) -> EndReason {
        match &self.reason {
            ReclaimReason::DeviceFailed { .. } | ReclaimReason::NodeFailed { .. } if !self.reason.leaves_no_time() => {
                EndReason::Reclaimed
            }
            reason => reason.ends_at_once(),
        }
    }
}
