//! Member clusters.

use std::collections::BTreeMap;
use std::sync::Arc;

use comity_types::{ClusterId, InstitutionId};
use serde::{Deserialize, Serialize};

use crate::model::health::Health;
use crate::model::inventory::{Offer, stored_offer};
use crate::model::limits::{MAX_GENERATION_STEP, MAX_REFUSED_DONORS, REFUSAL_KEPT_MS};
use crate::model::refusal::{Code, Refusal};
use crate::model::revocation::Exclusion;
use crate::model::time::{Millis, Timestamp};

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
    /// Donors that its own policy refused, with the time of the last refusal.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refused_donors: BTreeMap<ClusterId, Timestamp>,
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

    /// Donors that its own policy refused within [`REFUSAL_KEPT_MS`]. New requests try others first.
    pub fn refused_lately(&self, now: Timestamp) -> impl Iterator<Item = &ClusterId> {
        self.refused_donors.iter().filter(move |(_, at)| is_recent(**at, now)).map(|(donor, _)| donor)
    }

    /// Remembers that its own policy refused a donor. Of too many donors the one that it refused first is forgotten.
    pub(crate) fn note_refused_donor(&mut self, donor: ClusterId, now: Timestamp) {
        self.refused_donors.retain(|_, at| is_recent(*at, now));
        self.refused_donors.insert(donor, now);
        let first = self.refused_donors.iter().min_by_key(|(_, at)| **at).map(|(donor, _)| donor.clone());
        if let Some(first) = first.filter(|_| self.refused_donors.len() > MAX_REFUSED_DONORS) {
            self.refused_donors.remove(&first);
        }
    }
}

fn is_recent(at: Timestamp, now: Timestamp) -> bool {
    now.since(at) < Millis(REFUSAL_KEPT_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_bounded_and_expire() {
        let name = |number: u64| ClusterId::parse(&format!("donor-{number}"), "cluster").expect("a label");
        let mut cluster = Cluster {
            institution: InstitutionId::parse("polytechnic", "institution").expect("a label"),
            identity_key: String::new(),
            joined_at: Timestamp(0),
            certificate_not_after: Timestamp(0),
            void_before: 0,
            evicted: None,
            connected: true,
            since: Timestamp(0),
            offer: None,
            withdrawn_generation: 0,
            health: Health::default(),
            last_fencing_token: 0,
            refused_donors: BTreeMap::new(),
            revision: 0,
        };
        let most = MAX_REFUSED_DONORS as u64;
        for number in 0..most {
            cluster.note_refused_donor(name(number), Timestamp(number));
        }
        // Again, so that another one is the first.
        cluster.note_refused_donor(name(0), Timestamp(most));
        cluster.note_refused_donor(name(most), Timestamp(most + 1));
        assert_eq!(cluster.refused_donors.len(), MAX_REFUSED_DONORS);
        let held = [0, 1, 2, most].map(|number| cluster.refused_donors.contains_key(&name(number)));
        assert_eq!(held, [true, false, true, true]);

        let last = Timestamp(most + 1).after(Millis(REFUSAL_KEPT_MS - 1));
        assert_eq!(cluster.refused_lately(last).collect::<Vec<_>>(), [&name(most)]);
        assert_eq!(cluster.refused_lately(last.after(Millis(1))).count(), 0);
        cluster.note_refused_donor(name(7), last.after(Millis(1)));
        assert_eq!(cluster.refused_donors.len(), 1);
    }
}
