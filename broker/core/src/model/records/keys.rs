//! Key bundles that the two sides of a peering exchange. The broker can read them and cannot alter them.

use comity_types::{ClusterId, PeeringId, Side};
use serde::{Deserialize, Serialize};

use crate::model::blob::Blob;
use crate::model::limits::{HPKE_PUBLIC_BYTES, MAX_ENDPOINT_BYTES, MAX_ENDPOINTS};
use crate::model::network::ClusterNetwork;
use crate::model::refusal::Refusal;

/// One side's keys for one epoch of a peering, signed by its cluster's identity key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyBundle {
    /// Peering.
    pub peering: PeeringId,
    /// Epoch.
    pub epoch: u32,
    /// The cluster that owns the keys.
    pub cluster: ClusterId,
    /// Its side.
    pub side: Side,
    /// WireGuard public key, 32 bytes.
    pub wireguard_public: Blob,
    /// HPKE public key (X-Wing), [`HPKE_PUBLIC_BYTES`] bytes.
    pub hpke_public: Blob,
    /// "host:port" candidates of its fabric endpoint.
    pub endpoints: Vec<String>,
    /// Identity key, "ed25519:BASE64".
    pub identity_key: String,
    /// The institution's signature over the identity key; may be empty.
    pub voucher: Blob,
    /// Signature of the identity key over the rest.
    pub signature: Blob,
    /// Network details that the other side needs for virtual nodes; `None` if the cluster supports none.
    pub network: Option<ClusterNetwork>,
}

impl KeyBundle {
    /// Checks form and bounds. The agents check the signatures, because they must not trust the broker.
    pub fn check(&self) -> Result<(), Refusal> {
        for (field, blob, len) in [
            ("key_bundle.wireguard_public", &self.wireguard_public, 32),
            ("key_bundle.hpke_public", &self.hpke_public, HPKE_PUBLIC_BYTES),
            ("key_bundle.signature", &self.signature, 64),
        ] {
            if blob.len() != len {
                return Err(Refusal::invalid(
                    field,
                    format!("{} bytes", blob.len()),
                    "has the wrong length",
                    format!("send {len} bytes"),
                ));
            }
        }
        if !self.voucher.is_empty() && self.voucher.len() != 64 {
            return Err(Refusal::invalid(
                "key_bundle.voucher",
                format!("{} bytes", self.voucher.len()),
                "has the wrong length",
                "send an Ed25519 signature of 64 bytes, or none",
            ));
        }
        if self.endpoints.is_empty() && self.side == Side::Donor || self.endpoints.len() > MAX_ENDPOINTS {
            return Err(Refusal::invalid(
                "key_bundle.endpoints",
                self.endpoints.len(),
                "candidates are too few or too many",
                format!("a donor names 1 to {MAX_ENDPOINTS}"),
            ));
        }
        for endpoint in &self.endpoints {
            let plain = endpoint.chars().all(|c| c.is_ascii_graphic());
            if endpoint.len() > MAX_ENDPOINT_BYTES || endpoint.rsplit_once(':').is_none() || !plain {
                return Err(Refusal::invalid("key_bundle.endpoints", endpoint, "is not host:port", "write host:port"));
            }
        }
        self.network.as_ref().map_or(Ok(()), ClusterNetwork::check)
    }
}
