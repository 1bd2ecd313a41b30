//! Why leases end.

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
    /// Reclaimed for what concerns its donor.
    Reclaimed,
    /// Reclaimed for a request of higher priority.
    Preempted,
    /// It was to replace one that was reclaimed, and stays after all.
    NotNeeded,
    /// Another part of its gang failed, without which the gang does not start or go on.
    PartFailed,
    /// A device of it is gone, or failed before it was in force.
    DeviceLost,
    /// A node of it is gone, or failed before it was in force.
    NodeLost,
    /// Its donor was given up: nothing was heard of it for too long.
    DonorLost,
}

impl EndReason {
    /// Whether the request goes back to the queue to be tried elsewhere.
    #[must_use]
    pub fn retries(self) -> bool {
        matches!(self, Self::HoldExpired | Self::DonorFailed) || self.was_served()
    }

    /// Whether the request had what it asked for until its donor took it away or failed.
    #[must_use]
    pub fn was_served(self) -> bool {
        matches!(self, Self::Reclaimed | Self::Preempted | Self::DeviceLost | Self::NodeLost | Self::DonorLost)
    }
}
