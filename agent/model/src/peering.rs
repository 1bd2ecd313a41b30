//! A peering as the broker describes it to its agents.

use comity_proto::v1;
use comity_types::{ClusterId, InvalidId, PeeringId, PeeringState};

/// A peering of two clusters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peering {
    /// Its id.
    pub id: PeeringId,
    /// Borrowing cluster.
    pub origin: ClusterId,
    /// Lending cluster.
    pub donor: ClusterId,
    /// Its state; `None` if this version does not know it.
    pub state: Option<PeeringState>,
    /// Epoch of its keys.
    pub epoch: u32,
    /// Why its last handshake failed, or what it waits for; for people.
    pub message: String,
}

/// The broker's directive for a peering, and its knowledge of the other side.
#[derive(Clone, Debug, PartialEq)]
pub struct PeeringDirective {
    /// The peering.
    pub peering: Peering,
    /// The origin's keys of this epoch, once known.
    pub origin_keys: Option<v1::KeyBundle>,
    /// The donor's keys of this epoch, once known.
    pub donor_keys: Option<v1::KeyBundle>,
    /// Identity key with which the other cluster joined, "ed25519:BASE64".
    pub peer_identity_key: String,
    /// Institution of the other cluster.
    pub peer_institution: String,
    /// Whether this side reported its tunnel.
    pub reported_established: bool,
}

impl PeeringDirective {
    /// Converts a directive about `peering`, which was taken out of it.
    ///
    /// # Errors
    /// One of its ids is malformed.
    pub fn read(peering: &v1::Peering, directive: v1::PeeringDirective) -> Result<Self, InvalidId> {
        Ok(Self {
            peering: Peering {
                id: PeeringId::parse(&peering.id, "peering.id")?,
                origin: ClusterId::parse(&peering.origin, "peering.origin")?,
                donor: ClusterId::parse(&peering.donor, "peering.donor")?,
                state: peering.state().try_into().ok(),
                epoch: peering.epoch,
                message: peering.message.clone(),
            },
            origin_keys: directive.origin_keys,
            donor_keys: directive.donor_keys,
            peer_identity_key: directive.peer_identity_key,
            peer_institution: directive.peer_institution,
            reported_established: directive.reported_established,
        })
    }
}
