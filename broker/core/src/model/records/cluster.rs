//! Member clusters.

use std::sync::Arc;

use comity_types::InstitutionId;
use serde::{Deserialize, Serialize};

use crate::model::health::Health;
use crate::model::inventory::{Offer, stored_offer};
use crate::model::limits::MAX_GENERATION_STEP;
use crate::model::refusal::{Code, Refusal};
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
    /// Generation of the last withdrawal of an offer; 0 before the first one.
    #[serde(default, skip_serializing_if = "is_none_yet")]
    pub withdrawn_generation: u64,
    /// Recent failures of its nodes and devices.
    #[serde(default, skip_serializing_if = "Health::is_empty")]
    pub health: Health,
    /// The last fencing token issued for leases on this donor.
    pub last_fencing_token: u64,
    /// Revision that last changed it.
    pub revision: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_none_yet(generation: &u64) -> bool {
    *generation == 0
}

impl Cluster {
    /// Generation of its offer or, without one, of the withdrawal; 0 before the first offer.
    #[must_use]
    pub fn offer_generation(&self) -> u64 {
        self.offer.as_ref().map_or(self.withdrawn_generation, |offer| offer.generation)
    }

    /// Checks the generation of its next offer.
    pub(crate) fn check_generation(&self, generation: u64) -> Result<(), Refusal> {
        let last = self.offer_generation();
        if generation <= last {
            return Err(Refusal::new(
                Code::StaleGeneration,
                format!("offer generation {generation} is not above {last}, the last one"),
                "advertise with a higher generation; the welcome message says which one was the last",
            )
            .at("offer.generation", generation));
        }
        if generation > last.saturating_add(MAX_GENERATION_STEP) {
            return Err(Refusal::invalid(
                "offer.generation",
                generation,
                &format!("is too far above {last}, the last one"),
                "count on from the generation in the welcome message",
            ));
        }
        Ok(())
    }
}
