//! Member clusters.

use std::sync::Arc;

use comity_types::InstitutionId;
use serde::{Deserialize, Serialize};

use crate::model::health::Health;
use crate::model::inventory::{Offer, stored_offer};
use crate::model::revocation::Exclusion;
use crate::model::time::Timestamp;

/// A member cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// The institution that owns it.
    pub institution: InstitutionId,
    /// Public identity key, "ed25519:BASE64".
    pub identity_key: String,
    /// When it joined.
    pub joined_at: Timestamp,
    /// Expiry of its newest certificate.
    pub certificate_not_after: Timestamp,
    /// Certificates of earlier generations are void.
    #[serde(default)]
    pub void_before: u64,
    /// Since when it is evicted; `None` for a member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evicted: Option<Exclusion>,
    /// Whether its agent reports. The scheduler ignores the offer of a silent cluster; nothing is torn down because of
    /// silence.
    pub connected: bool,
    /// When `connected` last changed.
    pub since: Timestamp,
    /// Its offer, once it has made one. Shared, because the other fields change more often and a large offer is slow to
    /// copy.
    #[serde(with = "stored_offer::shared")]
    pub offer: Option<Arc<Offer>>,
    /// Recent failures of its nodes and devices.
    #[serde(default, skip_serializing_if = "Health::is_empty")]
    pub health: Health,
    /// The last fencing token issued for leases on this donor.
    pub last_fencing_token: u64,
    /// Revision that last changed it.
    pub revision: u64,
}
