//! One side's record of Liqo's key exchange in a peering.

use comity_agent_liqo::LiqoPeer;
use comity_agent_liqo::network::NetworkState;
use comity_types::{PeeringId, Side};
use serde::{Deserialize, Serialize};

use crate::record::SecretBlob;

/// The newest message of the exchange that this side sealed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedMessage {
    /// Epoch whose key it was sealed to.
    pub epoch: u32,
    /// When the broker deletes it unread, in milliseconds since 1970.
    pub expires_at_ms: u64,
    /// The broker refused it.
    pub refused: bool,
}

/// Why the exchange failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiqoFailure {
    /// For people, with the code before it.
    pub message: String,
    /// When it happened, in milliseconds since 1970.
    pub at_ms: u64,
}

/// The newest token that this side, the donor, made for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MintedToken {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// When the next one is due.
    pub next_ms: u64,
}

/// One side of the network between two Liqos.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkRecord {
    /// The other side's newest state.
    pub remote: Option<NetworkState>,
    /// The newest state that this side sent.
    #[serde(rename = "told")]
    pub sent: Option<NetworkState>,
    /// Its envelope.
    pub sealed: Option<SealedMessage>,
    /// Last sequence sealed, in any epoch.
    pub last_sequence: u64,
    /// Whether it is being taken down.
    pub leaving: bool,
}

/// One side of the exchange. It belongs to the peering and not to an epoch: keys of Liqo outlive the tunnel's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiqoRecord {
    /// The peering.
    pub peering: PeeringId,
    /// Which side this is.
    pub side: Side,
    /// The other side's cluster.
    pub cluster: String,
    /// Its Liqo cluster id.
    pub liqo_id: String,
    /// This side's Liqo cluster id.
    pub own_liqo_id: String,
    /// The challenge, encoded: made (donor) or opened (origin).
    pub challenge: Option<SecretBlob>,
    /// The origin's request to be a tenant, encoded: opened (donor) or made (origin).
    pub request: Option<SecretBlob>,
    /// The parameters of the origin's identity, encoded: made (donor) or opened (origin).
    pub identity: Option<SecretBlob>,
    /// Donor: the newest token, if the origin authenticates by token instead of a key exchange.
    pub minted: Option<MintedToken>,
    /// The network of the two Liqos, if it carries their pods.
    pub network: Option<NetworkRecord>,
    /// Whether this side's half is complete: the donor's tenant, or the origin's identity.
    pub done: bool,
    /// Last sequence sealed, in any epoch and step.
    pub last_sequence: u64,
    /// The newest message that was sealed.
    pub sealed: Option<SealedMessage>,
    /// Its last failure; cleared by a success.
    pub failed: Option<LiqoFailure>,
}

impl LiqoRecord {
    /// A new exchange.
    #[must_use]
    pub fn new(peering: PeeringId, side: Side, peer: &LiqoPeer, own_liqo_id: &str) -> Self {
        Self {
            peering,
            side,
            cluster: peer.cluster.clone(),
            liqo_id: peer.liqo_id.clone(),
            own_liqo_id: own_liqo_id.to_owned(),
            challenge: None,
            request: None,
            identity: None,
            minted: None,
            network: None,
            done: false,
            last_sequence: 0,
            sealed: None,
            failed: None,
        }
    }

    /// The network, unless it is being taken down.
    #[must_use]
    pub fn active_network(&self) -> Option<&NetworkRecord> {
        self.network.as_ref().filter(|network| !network.leaving)
    }

    /// The other side.
    #[must_use]
    pub fn peer(&self) -> LiqoPeer {
        LiqoPeer { peering: self.peering.to_string(), cluster: self.cluster.clone(), liqo_id: self.liqo_id.clone() }
    }
}
