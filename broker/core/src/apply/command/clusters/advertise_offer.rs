//! Replaces a cluster's whole offer.

use comity_types::ClusterId;
use serde::{Deserialize, Serialize};

use crate::model::inventory::Offer;
use crate::model::refusal::Refusal;
use crate::model::reply::{Reply, ReplyBody};
use crate::state::transition::Transition;

/// Replaces a cluster's offer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdvertiseOffer {
    /// The donor.
    pub cluster: ClusterId,
    /// The new offer.
    pub offer: Offer,
}

impl AdvertiseOffer {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        self.offer.check(&self.cluster)?;
        transition.state().check_part(&self.cluster)?;
        let cluster = transition
            .state()
            .clusters
            .get(&self.cluster)
            .ok_or_else(|| Refusal::not_found("offer.cluster", &self.cluster, "cluster"))?;
        if cluster.offer.as_ref().is_some_and(|held| **held == self.offer) {
            return Ok(ReplyBody::Done);
        }
        cluster.check_generation(self.offer.generation)?;
        transition.replace_offer(&self.cluster, &self.offer);
        Ok(ReplyBody::Done)
    }
}
