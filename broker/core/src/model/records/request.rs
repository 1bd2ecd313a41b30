//! Offloading requests and their legal moves.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::model::demand::RequestSpec;
use crate::model::id::{ClusterId, LeaseId};
use crate::model::time::Timestamp;

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequestState {
    /// Waits for a donor.
    Queued,
    /// Has a lease that is not ended.
    Matched,
    /// Its lease ended as planned.
    Completed,
    /// Its owner took it back.
    Cancelled,
    /// It could not be served.
    Failed,
}

impl RequestState {
    /// The table of legal moves.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        use RequestState::{Cancelled, Completed, Failed, Matched, Queued};
        matches!(
            (self, next),
            (Queued, Matched | Cancelled | Failed) | (Matched, Queued | Completed | Cancelled | Failed)
        )
    }

    /// Whether nothing more will happen to it.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Cancelled | Self::Failed)
    }
}

/// An offloading request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// What is asked for, with defaults filled in.
    pub spec: RequestSpec,
    /// Where it stands.
    pub state: RequestState,
    /// Its current or last lease.
    pub lease: Option<LeaseId>,
    /// Further leases of a gang, besides `lease`: at other donors, or members that came later.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub parts: BTreeSet<LeaseId>,
    /// When it was submitted.
    pub submitted_at: Timestamp,
    /// SPIFFE id of who submitted it.
    pub submitted_by: String,
    /// W3C traceparent of its submission, so that what follows joins the same trace; empty if none.
    pub traceparent: String,
    /// Placements tried so far.
    pub attempts: u32,
    /// Donors that failed it; not tried again while others may serve.
    pub failed_donors: BTreeSet<ClusterId>,
    /// Whether its start window has not opened yet: it is not tried before.
    #[serde(default)]
    pub early: bool,
    /// Donor at which leases were reclaimed for it, while it waits.
    #[serde(default)]
    pub room_at: Option<ClusterId>,
    /// For people.
    pub message: String,
    /// Revision that last changed it.
    pub revision: u64,
}

impl Request {
    /// Whether it may be placed.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.state == RequestState::Queued && !self.early
    }

    /// Its leases, the first one first; of a request that is not matched, its last one.
    pub fn leases(&self) -> impl Iterator<Item = LeaseId> {
        self.lease.into_iter().chain(self.parts.iter().copied())
    }

    /// Since when it waits: its submission, or when its start window opened.
    #[must_use]
    pub fn waits_since(&self) -> Timestamp {
        self.spec.not_before.map_or(self.submitted_at, |opened| opened.max(self.submitted_at))
    }
}
