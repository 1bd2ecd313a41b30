//! Peerings.

use std::collections::BTreeSet;

use comity_types::{ClusterId, LeaseId, PeeringState, Side};
use serde::{Deserialize, Serialize};

use crate::model::keys::KeyBundle;
use crate::model::time::Timestamp;

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
