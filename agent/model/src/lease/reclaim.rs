//! The reclaim of a lease.

use comity_proto::v1;

/// Reason and time limit of a reclaim. Times are in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reclaim {
    /// Its reason; `None` if this version does not know it.
    pub reason: Option<ReclaimReason>,
    /// When notice was given.
    pub since_ms: u64,
    /// When the lease ends at the latest, unless the reclaim is withdrawn.
    pub deadline_ms: u64,
}

/// Why a lease is reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimReason {
    /// The donor's local work needs the capacity.
    LocalNeed,
    /// Policy no longer allows the lease.
    PolicyChanged,
    /// A request of higher priority needs the place.
    Preempted,
    /// The lease moves, so that a waiting request fits.
    Migration,
    /// It is on borrowed quota that its owner needs.
    BorrowedQuota,
    /// One of its devices failed.
    DeviceFailed,
    /// One of its nodes is gone, does not answer or failed too often.
    NodeFailed,
    /// Its donor is silent.
    DonorSilent,
    /// Its origin or donor was evicted or suspended.
    Revoked,
}

impl ReclaimReason {
    /// The text form, as in "local-need".
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LocalNeed => "local-need",
            Self::PolicyChanged => "policy-changed",
            Self::Preempted => "preempted",
            Self::Migration => "migration",
            Self::BorrowedQuota => "borrowed-quota",
            Self::DeviceFailed => "device-failed",
            Self::NodeFailed => "node-failed",
            Self::DonorSilent => "donor-silent",
            Self::Revoked => "revoked",
        }
    }

    fn from_message(reason: v1::ReclaimReason) -> Option<Self> {
        Some(match reason {
            v1::ReclaimReason::Unspecified => return None,
            v1::ReclaimReason::LocalNeed => Self::LocalNeed,
            v1::ReclaimReason::PolicyChanged => Self::PolicyChanged,
            v1::ReclaimReason::Preempted => Self::Preempted,
            v1::ReclaimReason::Migration => Self::Migration,
            v1::ReclaimReason::BorrowedQuota => Self::BorrowedQuota,
            v1::ReclaimReason::DeviceFailed => Self::DeviceFailed,
            v1::ReclaimReason::NodeFailed => Self::NodeFailed,
            v1::ReclaimReason::DonorSilent => Self::DonorSilent,
            v1::ReclaimReason::Revoked => Self::Revoked,
        })
    }
}

impl From<v1::Reclaim> for Reclaim {
    fn from(reclaim: v1::Reclaim) -> Self {
        Self {
            reason: ReclaimReason::from_message(reclaim.reason()),
            since_ms: reclaim.since_ms,
            deadline_ms: reclaim.deadline_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_the_words_of_their_messages() {
        for message in (0..=8).map_while(|reason| v1::ReclaimReason::try_from(reason).ok()) {
            let word =
                message.as_str_name().trim_start_matches("RECLAIM_REASON_").to_ascii_lowercase().replace('_', "-");
            let reclaim = Reclaim::from(v1::Reclaim { reason: message.into(), ..v1::Reclaim::default() });
            assert_eq!(reclaim.reason.map_or("unspecified", ReclaimReason::as_str), word);
        }
    }
}
