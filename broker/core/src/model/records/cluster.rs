//! Member clusters and the tokens by which they join.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::model::health::Health;
use crate::model::id::{ClusterId, InstitutionId};
use crate::model::inventory::{Offer, stored_offer};
use crate::model::time::Timestamp;

/// A member cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// Institution that owns it.
    pub institution: InstitutionId,
    /// Public identity key, "ed25519:BASE64".
    pub identity_key: String,
    /// When it joined.
    pub joined_at: Timestamp,
    /// End of its newest certificate.
    pub certificate_not_after: Timestamp,
    /// Whether its agent is heard. An unheard cluster's offer is not matched; nothing is torn down because of it.
    pub connected: bool,
    /// Since when `connected` is as it is.
    pub since: Timestamp,
    /// Its offer, once it made one. Shared, for the rest changes more often and a large offer takes long to copy.
    #[serde(default, with = "stored_offer::shared")]
    pub offer: Option<Arc<Offer>>,
    /// What is remembered of its nodes and devices that failed.
    #[serde(default, skip_serializing_if = "Health::is_empty")]
    pub health: Health,
    /// Last fencing token given out for leases on this donor.
    pub last_fencing_token: u64,
    /// Revision that last changed it.
    pub revision: u64,
}

/// A single-use join token that is outstanding. Only the hash of its secret is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invite {
    /// Cluster it is for.
    pub cluster: ClusterId,
    /// When it ends.
    pub expires_at: Timestamp,
}
