//! Why leases end.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndReason {
    /// Its owner released it.
    Released,
    /// Its term ran out.
    Expired,
    /// Its request was cancelled.
    Cancelled,
    /// It did not become active within the hold.
    HoldExpired,
    /// The donor refused or could not deliver.
    DonorFailed,
    /// The origin could not use it.
    OriginFailed,
    /// The origin's own policy does not accept its donor.
    OriginRefused,
    /// Reclaimed for the donor's own reasons.
    Reclaimed,
    /// Reclaimed for a request of higher priority.
    Preempted,
    /// No longer needed: the reclaim of the lease that it was to replace was cancelled, or its gang moved as a whole.
    NotNeeded,
    /// Another part of its gang failed, and the gang cannot start or continue without it.
    PartFailed,
    /// One of its devices is gone, or failed before the lease was in force.
    DeviceLost,
    /// One of its nodes is gone, or failed before the lease was in force.
    NodeLost,
    /// Its donor was silent for too long.
    DonorLost,
    /// Its origin was evicted, or the origin's or tenant's institution is suspended.
    OriginRevoked,
    /// Its donor was evicted, or the donor's institution is suspended.
    DonorRevoked,
    /// It was idle for as long as its request or policy allows.
    Idle,
}

impl EndReason {
    /// Whether the request returns to the queue.
    #[must_use]
    pub fn retries(self) -> bool {
        matches!(self, Self::HoldExpired | Self::DonorFailed | Self::OriginRefused) || self.was_served()
    }

    /// Whether the lease was in use until its donor reclaimed it or failed.
    #[must_use]
    pub fn was_served(self) -> bool {
        matches!(
            self,
            Self::Reclaimed
                | Self::Preempted
                | Self::DeviceLost
                | Self::NodeLost
                | Self::DonorLost
                | Self::DonorRevoked
        )
    }

    /// The text form, as in "hold-expired".
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
            Self::HoldExpired => "hold-expired",
            Self::DonorFailed => "donor-failed",
            Self::OriginFailed => "origin-failed",
            Self::OriginRefused => "origin-refused",
            Self::Reclaimed => "reclaimed",
            Self::Preempted => "preempted",
            Self::NotNeeded => "not-needed",
            Self::PartFailed => "part-failed",
            Self::DeviceLost => "device-lost",
            Self::NodeLost => "node-lost",
            Self::DonorLost => "donor-lost",
            Self::OriginRevoked => "origin-revoked",
            Self::DonorRevoked => "donor-revoked",
            Self::Idle => "idle",
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
