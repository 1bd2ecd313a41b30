//! Leases that are being reclaimed: why, until when, and what a request says about that.
//!
//! ```text
//! active ─▶ reclaiming ─▶ ending(reclaimed | preempted | donor-lost) ─▶ ended
//!    ▲          │  at the deadline, or as soon as the origin says that its work is saved
//!    └──────────┘  the reason has gone away
//! ```
//!
//! A lease whose device or node is gone ends at once (device-lost, node-lost): nothing of it runs any more.
//!
//! A lease that is being reclaimed stays in force until its deadline. Meanwhile its request is placed once more, as if
//! it waited: the new lease says which one it replaces (`moved_from`), has a fencing token and a handshake of its own,
//! and takes over the request when the old one ends. If it is being reclaimed itself before that, it is replaced in
//! turn. So what moves is the request, by its id; to agents, a lease is one placement under one id and token from
//! beginning to end, and none of them ever sees a lease change its donor.

use serde::{Deserialize, Serialize};

use crate::model::id::{NodeId, RequestId};
use crate::model::inventory::FaultClass;
use crate::model::lease::EndReason;
use crate::model::time::{Millis, Timestamp};

/// Why a lease is being reclaimed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReclaimReason {
    /// Local work of the donor takes more than what is lent leaves it, or its reserve is not kept free.
    LocalNeed,
    /// The policy in force, or what it says since a date has passed, does not allow such a lease any more.
    PolicyChanged {
        /// The code of the denial, as in "agreement-ended".
        code: String,
    },
    /// A request of higher priority needs its place.
    Preempted {
        /// Which one.
        by: RequestId,
    },
    /// A request that fits nowhere fits if this lease moves, and there is another place for it.
    Repair {
        /// Which one.
        by: RequestId,
    },
    /// A device of it failed.
    DeviceFailed {
        /// Its node.
        node: NodeId,
        /// Its number there.
        device: u32,
        /// How bad it is.
        class: FaultClass,
    },
    /// A node of it failed.
    NodeFailed {
        /// Which one.
        node: NodeId,
        /// Whether its cluster has it no more; else it does not answer, or failed too often lately.
        gone: bool,
    },
    /// Nothing was heard of its donor for so long that it is given up.
    DonorSilent,
}

impl ReclaimReason {
    /// The word for it in the API and in messages.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::LocalNeed => "local-need",
            Self::PolicyChanged { .. } => "policy-changed",
            Self::Preempted { .. } => "preempted",
            Self::Repair { .. } => "repair",
            Self::DeviceFailed { .. } => "device-failed",
            Self::NodeFailed { .. } => "node-failed",
            Self::DonorSilent => "donor-silent",
        }
    }

    /// The request that waits for the place, if it is being reclaimed for one.
    #[must_use]
    pub fn for_request(&self) -> Option<RequestId> {
        match self {
            Self::Preempted { by } | Self::Repair { by } => Some(*by),
            Self::LocalNeed
            | Self::PolicyChanged { .. }
            | Self::DeviceFailed { .. }
            | Self::NodeFailed { .. }
            | Self::DonorSilent => None,
        }
    }

    /// Whether the place of a lease has failed, rather than that somebody wants it.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::DeviceFailed { .. } | Self::NodeFailed { .. } | Self::DonorSilent)
    }

    /// Whether what ran there has ended already, so that no notice would help.
    #[must_use]
    pub fn leaves_no_time(&self) -> bool {
        matches!(self, Self::DeviceFailed { class: FaultClass::Lost, .. } | Self::NodeFailed { gone: true, .. })
    }

    /// How a lease ends for it at once: one that leaves no time, or one that is not in force yet.
    #[must_use]
    pub fn ends_at_once(&self) -> EndReason {
        match self {
            Self::LocalNeed | Self::PolicyChanged { .. } | Self::Repair { .. } => EndReason::Reclaimed,
            Self::Preempted { .. } => EndReason::Preempted,
            Self::DeviceFailed { .. } => EndReason::DeviceLost,
            Self::NodeFailed { .. } => EndReason::NodeLost,
            Self::DonorSilent => EndReason::DonorLost,
        }
    }
}

impl std::fmt::Display for ReclaimReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::LocalNeed => f.write_str("the donor needs it for local work"),
            Self::PolicyChanged { code } => write!(f, "policy does not allow it any more ({code})"),
            Self::Preempted { by } => write!(f, "{by} of higher priority needs its place"),
            Self::Repair { by } => write!(f, "{by} fits if it moves, and there is another place for it"),
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
        }
    }
}

/// A reclaim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reclaim {
    /// Why.
    pub reason: ReclaimReason,
    /// When notice was given.
    pub since: Timestamp,
    /// Notice given: at least what policy and, for a preemption, the request itself ask for.
    pub grace: Millis,
    /// When the lease ends, unless its work is saved before or the reason goes away.
    pub deadline: Timestamp,
}

impl Reclaim {
    /// How a lease ends that is not spared.
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
