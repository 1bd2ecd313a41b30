//! Leases that are called back: why, until when, and what a request says about that.
//!
//! ```text
//! active ─▶ reclaiming ─▶ ending(reclaimed | preempted) ─▶ ended
//!    ▲          │  at the deadline, or as soon as the origin says that its work is saved
//!    └──────────┘  the reason has gone away
//! ```
//!
//! A lease that is called back stays in force until its deadline. Meanwhile its request is placed once more, as if it
//! waited: the new lease says which one it replaces (`moved_from`), has a fencing token and a handshake of its own, and takes
//! over the request when the old one ends. So what moves is the request, by its id; to agents, a lease is one placement
//! under one id and token from beginning to end, and none of them ever sees a lease change its donor.

use serde::{Deserialize, Serialize};

use crate::id::RequestId;
use crate::lease::EndReason;
use crate::limits::MAX_GRACE_MS;
use crate::refusal::Refusal;
use crate::time::{Millis, Timestamp};

/// That a request may be preempted, and how. One that does not say is called back only for what concerns its donor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Preemptible {
    /// Notice that its work needs to save itself; the donor's `reclaimGrace`, if that is longer.
    pub grace: Millis,
    /// Whether its work says when it has saved itself. If it does, only what came later is lost.
    pub checkpoint: bool,
}

impl Preemptible {
    /// Checks the bound.
    ///
    /// # Errors
    /// Names the field, its value and what would do.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.grace.0 > MAX_GRACE_MS {
            let remedy = format!("use at most {MAX_GRACE_MS}, or 0 for the donor's own");
            return Err(Refusal::invalid("spec.preemptible.grace_ms", self.grace.0, "is too long a notice", remedy));
        }
        Ok(())
    }
}

/// Why a lease is called back.
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
        }
    }

    /// The request that waits for the place, if it is called back for one.
    #[must_use]
    pub fn for_request(&self) -> Option<RequestId> {
        match self {
            Self::Preempted { by } | Self::Repair { by } => Some(*by),
            Self::LocalNeed | Self::PolicyChanged { .. } => None,
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
        }
    }
}

/// A call back.
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
        match self.reason {
            ReclaimReason::LocalNeed | ReclaimReason::PolicyChanged { .. } | ReclaimReason::Repair { .. } => {
                EndReason::Reclaimed
            }
            ReclaimReason::Preempted { .. } => EndReason::Preempted,
        }
    }
}
