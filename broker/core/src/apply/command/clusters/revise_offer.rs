//! Changes some nodes of a cluster's offer.

use std::collections::BTreeSet;

use comity_types::{ClusterId, NodeId};
use serde::{Deserialize, Serialize};

use crate::model::inventory::offer_size::check_offer_size;
use crate::model::inventory::{Node, NodeMap, Offer, check_node_count};
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::state::transition::Transition;

/// A revision may change at most 1/4 of the nodes. Beyond that, sending the whole offer is shorter.
const REVISION_DIVISOR: usize = 4;

/// Changes some nodes of a cluster's offer and keeps the others. Costs time proportional to the number of changed
/// nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReviseOffer {
    /// The donor.
    pub cluster: ClusterId,
    /// Generation that this revision is based on; must equal the stored one.
    pub revises: u64,
    /// Generation after the revision; must be higher.
    pub generation: u64,
    /// Added or changed nodes, in their new form.
    pub nodes: NodeMap,
    /// Removed nodes.
    pub gone: BTreeSet<NodeId>,
}

impl ReviseOffer {
    /// The revision that turns `held` into `offer`. `None` if the agent must send the whole offer: deliveries or data
    /// changed, or too many nodes did.
    #[must_use]
    pub fn between(cluster: &ClusterId, held: &Offer, offer: &Offer) -> Option<Self> {
        if held.deliveries != offer.deliveries || held.data != offer.data {
            return None;
        }
        let gone: BTreeSet<NodeId> = held.nodes.keys().filter(|id| !offer.nodes.contains_key(*id)).cloned().collect();
        let changed = offer.nodes.iter().filter(|(id, node)| held.nodes.get(*id) != Some(*node));
        let nodes: NodeMap = changed.map(|(id, node)| (id.clone(), node.clone())).collect();
        ((nodes.len() + gone.len()) * REVISION_DIVISOR <= offer.nodes.len()).then(|| Self {
            cluster: cluster.clone(),
            revises: held.generation,
            generation: offer.generation,
            nodes,
            gone,
        })
    }

    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        transition.state().check_part(&self.cluster)?;
        let cluster = transition.state().clusters.get(&self.cluster);
        let held = cluster.and_then(|cluster| Some((cluster, cluster.offer.as_ref()?)));
        let (cluster, held) = held.ok_or_else(|| Refusal::not_found("offer.cluster", &self.cluster, "offer"))?;
        if self.is_applied(held) {
            return Ok(ReplyBody::Done);
        }
        cluster.check_generation(self.generation)?;
        self.check(held, transition.state().offer_bytes(&self.cluster))?;
        transition.revise_offer(&self.cluster, self.generation, &self.nodes, &self.gone);
        Ok(ReplyBody::Done)
    }

    /// Whether this revision was applied already: agents may report twice.
    fn is_applied(&self, held: &Offer) -> bool {
        held.generation == self.generation
            && self.nodes.iter().all(|(id, node)| held.nodes.get(id) == Some(node))
            && !self.gone.iter().any(|id| held.nodes.contains_key(id))
    }

    /// `bytes` is the size of the held offer.
    fn check(&self, held: &Offer, bytes: usize) -> Result<(), Refusal> {
        if self.revises != held.generation {
            return Err(Refusal::new(
                Code::StaleGeneration,
                format!(
                    "offer generation {} revises {}, and {} is held",
                    self.generation, self.revises, held.generation
                ),
                "advertise the whole offer with a higher generation; the welcome message says which one is held",
            )
            .at("offer.generation", self.generation));
        }
        if let Some(id) = self.gone.iter().find(|id| !held.nodes.contains_key(*id) || self.nodes.contains_key(*id)) {
            return Err(Refusal::invalid(
                "offer.gone",
                id,
                "is not a node of the offer, or is one that changed",
                "name nodes that the held offer has and this one has not",
            ));
        }
        for (id, node) in &self.nodes {
            node.check(id)?;
        }
        let new = self.nodes.keys().filter(|id| !held.nodes.contains_key(*id)).count();
        check_node_count(held.nodes.len() + new - self.gone.len(), &self.cluster)?;
        let replaced = self.nodes.keys().chain(&self.gone).filter_map(|id| held.nodes.get(id)).map(Node::bytes);
        let bytes = bytes.saturating_sub(replaced.sum());
        check_offer_size(bytes + self.nodes.values().map(Node::bytes).sum::<usize>(), &self.cluster)
    }
}
