//! Peerings and their legal transitions.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::model::id::{ClusterId, LeaseId};
use crate::model::keys::{KeyBundle, Side};
use crate::model::time::Timestamp;

/// State of a peering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeeringState {
    /// Waits for both sides' keys.
    Proposed,
    /// One side has sent its keys.
    Keys,
    /// Both sides have sent their keys; the pre-shared key is exchanged and proved.
    Authenticating,
    /// Tunnels are coming up.
    Establishing,
    /// Both sides have seen the tunnel's handshake.
    Established,
    /// Idle for too long.
    Draining,
    /// Everything is removed.
    Closed,
    /// A step failed; retried with fresh keys at `retry_at`.
    Failed,
}

impl PeeringState {
    /// The table of legal transitions.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        use PeeringState::{Authenticating, Closed, Draining, Established, Establishing, Failed, Keys, Proposed};
        matches!(
            (self, next),
            (Proposed, Keys | Failed | Draining)
                | (Keys, Authenticating | Failed | Draining)
                | (Authenticating, Establishing | Failed | Draining)
                | (Establishing, Established | Failed | Draining)
                | (Established, Failed | Draining)
                | (Failed, Proposed | Draining)
                | (Draining, Closed)
        )
    }

    /// Whether it accepts new leases.
    #[must_use]
    pub fn accepts_leases(self) -> bool {
        !matches!(self, Self::Draining | Self::Closed)
    }

    /// Whether a step with a deadline is in progress.
    #[must_use]
    pub fn is_handshaking(self) -> bool {
        matches!(self, Self::Proposed | Self::Keys | Self::Authenticating | Self::Establishing)
    }
}

/// The trust and network relation between one origin and one donor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peering {
    /// The borrower.
    pub origin: ClusterId,
    /// The lender.
    pub donor: ClusterId,
    /// Its state.
    pub state: PeeringState,
    /// Number of the current handshake, from 1.
    pub epoch: u32,
    /// Deadline of the current step.
    pub deadline: Option<Timestamp>,
    /// When to retry a failed handshake.
    pub retry_at: Option<Timestamp>,
    /// Consecutive failures, which determine the pause before the next retry.
    pub failures: u32,
    /// The origin's keys of this epoch.
    pub origin_keys: Option<KeyBundle>,
    /// The donor's keys of this epoch.
    pub donor_keys: Option<KeyBundle>,
    /// Sides that reported the tunnel up in this epoch.
    pub established: BTreeSet<Side>,
    /// Sides that reported everything removed.
    pub closed: BTreeSet<Side>,
    /// Leases that use it and have not ended.
    pub leases: BTreeSet<LeaseId>,
    /// Since when no lease uses it.
    pub idle_since: Option<Timestamp>,
    /// Round-trip time in microseconds as measured by the origin; zero if unknown.
    pub rtt_us: u64,
    /// Status message for people.
    pub message: String,
    /// Revision that last changed it.
    pub revision: u64,
}

impl Peering {
    /// Which side `cluster` is.
    #[must_use]
    pub fn side_of(&self, cluster: &ClusterId) -> Option<Side> {
        if *cluster == self.origin {
            Some(Side::Origin)
        } else if *cluster == self.donor {
            Some(Side::Donor)
        } else {
            None
        }
    }
}
