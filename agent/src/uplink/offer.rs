//! Tracks generations of the offer, and whether the broker has the newest.

use std::sync::Arc;

use comity_proto::v1;
use comity_types::Delivery;

/// How far this process's own offers may be ahead of the broker's. They are a handful, on a stream that ends.
const MAX_AHEAD: u64 = 1_024;

/// Content of a cluster's offer.
#[derive(Clone, Debug, PartialEq)]
pub struct Offered {
    /// Its nodes.
    pub nodes: Arc<Vec<v1::Node>>,
    /// How it can deliver leases now.
    pub deliveries: Vec<Delivery>,
    /// Its datasets.
    pub data: Option<v1::DataSite>,
}

impl Offered {
    /// The offer of these nodes. A cluster that can deliver nothing shows its nodes as unschedulable: brokers take no
    /// offer without a delivery.
    #[must_use]
    pub fn new(nodes: Arc<Vec<v1::Node>>, deliveries: Vec<Delivery>, data: Option<v1::DataSite>) -> Self {
        if !deliveries.is_empty() {
            return Self { nodes, deliveries, data };
        }
        let closed = nodes.iter().map(|node| v1::Node { schedulable: false, ..node.clone() });
        Self { nodes: Arc::new(closed.collect()), deliveries: vec![Delivery::Namespace], data }
    }
}

/// The broker's answer to an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckOutcome {
    /// It is in the broker's log.
    Committed,
    /// The broker refused it for good.
    Refused,
}

/// State of the broker's copy of the offer.
#[derive(Debug, Default)]
pub struct OfferState {
    /// Highest generation that was used, by this process or before it.
    generation: u64,
    /// The generation and content that were sent last, and the message that carried them.
    sent: Option<(u64, Offered, u64)>,
    /// The generation that was acknowledged last.
    acked: u64,
}

impl OfferState {
    /// A stream connected, and the broker holds this generation.
    pub fn welcomed(&mut self, generation: u64) {
        // A number further ahead is of another broker, which may have said anything: this one would take its successor,
        // and once it had the highest, no offer any more.
        let is_own = self.generation.saturating_sub(generation) <= MAX_AHEAD;
        self.generation = if is_own { self.generation.max(generation) } else { generation };
        if self.acked != generation {
            // It lost the offer, or somebody else advertised: the offer is sent again.
            self.acked = 0;
            self.sent = None;
        } else if self.sent.as_ref().is_some_and(|(sent, _, _)| *sent != generation) {
            self.sent = None;
        }
    }

    /// The offer to send, if the broker lacks it.
    pub fn next(&mut self, cluster: &str, offered: &Offered, message_id: u64) -> v1::Offer {
        self.generation = self.generation.saturating_add(1);
        self.sent = Some((self.generation, offered.clone(), message_id));
        v1::Offer {
            cluster: cluster.to_owned(),
            generation: self.generation,
            nodes: offered.nodes.as_ref().clone(),
            deliveries: offered.deliveries.iter().map(|kind| v1::Delivery::from(*kind).into()).collect(),
            data: offered.data.clone(),
        }
    }

    /// Whether this must be sent.
    #[must_use]
    pub fn is_due(&self, offered: &Offered) -> bool {
        self.sent.as_ref().is_none_or(|(_, sent, _)| sent != offered)
    }

    /// Handles an acknowledgement; true if it was the offer's.
    pub fn settle(&mut self, message_id: u64, outcome: AckOutcome) -> bool {
        let Some((generation, _, _)) = self.sent.as_ref().filter(|(_, _, id)| *id == message_id) else { return false };
        if outcome == AckOutcome::Committed {
            self.acked = *generation;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(id: &str) -> Offered {
        let nodes = Arc::new(vec![v1::Node { id: id.to_owned(), ..v1::Node::default() }]);
        Offered { nodes, deliveries: vec![Delivery::Namespace], data: None }
    }

    #[test]
    fn generations_go_on_from_the_brokers() {
        let mut state = OfferState::default();
        state.welcomed(41);
        assert!(state.is_due(&nodes("a")));
        assert_eq!(state.next("c", &nodes("a"), 7).generation, 42);
        assert!(!state.is_due(&nodes("a")) && state.is_due(&nodes("b")));
        assert!(!state.settle(6, AckOutcome::Committed) && state.settle(7, AckOutcome::Committed));
        state.welcomed(42);
        assert!(!state.is_due(&nodes("a")), "the broker has it");
        state.welcomed(0);
        assert!(state.is_due(&nodes("a")), "the broker lost it");
        assert_eq!(state.next("c", &nodes("a"), 8).generation, 43);
    }

    #[test]
    fn broker_holds_an_offer_of_the_highest_generation() {
        let mut state = OfferState::default();
        state.welcomed(41);
        state.next("c", &nodes("a"), 7);
        for lie in [u64::MAX, u64::MAX - 1, 1 << 40] {
            state.welcomed(lie);
            state.next("c", &nodes("a"), 8);
            assert!(state.next("c", &nodes("b"), 9).generation > 1 << 40);
            state.welcomed(42);
            assert!(state.is_due(&nodes("b")));
            assert_eq!(state.next("c", &nodes("b"), 10).generation, 43, "an honest broker gets no such number");
        }
    }

    #[test]
    fn an_offer_that_was_not_acknowledged_is_sent_on_the_next_stream() {
        let mut state = OfferState::default();
        state.welcomed(0);
        state.next("c", &nodes("a"), 7);
        state.welcomed(0);
        assert!(!state.settle(7, AckOutcome::Refused) || state.is_due(&nodes("a")));
    }

    #[test]
    fn a_changed_delivery_is_sent_at_once() {
        let mut state = OfferState::default();
        state.welcomed(0);
        state.next("c", &nodes("a"), 7);
        let both = Offered { deliveries: vec![Delivery::Namespace, Delivery::VirtualNode], ..nodes("a") };
        assert!(state.is_due(&both));
        assert_eq!(state.next("c", &both, 8).deliveries, [1, 2]);
        assert!(!state.is_due(&both) && state.is_due(&nodes("a")));
    }

    #[test]
    fn a_cluster_that_can_deliver_nothing_shows_its_nodes_as_unschedulable() {
        let node = v1::Node { id: "n".to_owned(), schedulable: true, ..v1::Node::default() };
        let nodes = Arc::new(vec![node]);
        let offered = Offered::new(Arc::clone(&nodes), vec![Delivery::VirtualNode], None);
        assert_eq!((offered.nodes, offered.deliveries), (Arc::clone(&nodes), vec![Delivery::VirtualNode]));
        let closed = Offered::new(nodes, Vec::new(), None);
        assert_eq!(closed.deliveries, [Delivery::Namespace]);
        assert!(closed.nodes.iter().all(|node| !node.schedulable));
    }
}
