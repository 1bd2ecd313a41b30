//! Peerings and their legal moves.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::model::id::{ClusterId, LeaseId};
use crate::model::keys::{KeyBundle, Side};
use crate::model::time::Timestamp;

/// Where a peering stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeeringState {
    /// Both sides are asked for their keys.
    Proposed,
    /// One side's keys are here.
    Keys,
    /// Both keys are here; the pre-shared key travels and is proved.
    Authenticating,
    /// Tunnels are coming up.
    Establishing,
    /// Both sides saw the tunnel's handshake.
    Established,
    /// Idle for too long.
    Draining,
    /// Nothing is left.
    Closed,
    /// A step failed; tried again with fresh keys at `retry_at`.
    Failed,
}

impl PeeringState {
    /// The table of legal moves.
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

    /// Whether a new lease may run over it.
    #[must_use]
    pub fn accepts_leases(self) -> bool {
        !matches!(self, Self::Draining | Self::Closed)
    }

    /// Whether a step is under way that has a deadline.
    #[must_use]
    pub fn is_handshaking(self) -> bool {
        matches!(self, Self::Proposed | Self::Keys | Self::Authenticating | Self::Establishing)
    }
}

/// The trust and network relation between one origin and one donor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peering {
    /// Borrows.
    pub origin: ClusterId,
    /// Lends.
    pub donor: ClusterId,
    /// Where it stands.
    pub state: PeeringState,
    /// Counts handshakes, from 1.
    pub epoch: u32,
    /// When the current step must be done.
    pub deadline: Option<Timestamp>,
    /// When a failed handshake is tried again.
    pub retry_at: Option<Timestamp>,
    /// Failures in a row, for the pause before the next try.
    pub failures: u32,
    /// The origin's keys of this epoch.
    pub origin_keys: Option<KeyBundle>,
    /// The donor's keys of this epoch.
    pub donor_keys: Option<KeyBundle>,
    /// Sides that reported the tunnel to stand in this epoch.
    pub established: BTreeSet<Side>,
    /// Sides that reported everything taken down.
    pub closed: BTreeSet<Side>,
    /// Leases that run over it and are not ended.
    pub leases: BTreeSet<LeaseId>,
    /// Since when no lease runs over it.
    pub idle_since: Option<Timestamp>,
    /// Round-trip time in microseconds as the origin saw it; zero if unknown.
    pub rtt_us: u64,
    /// For people.
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
