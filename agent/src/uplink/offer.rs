//! The offer: generations that only grow, and whether the broker has the newest.

use std::sync::Arc;

use comity_proto::v1;

/// What is known of the broker's copy of the offer.
#[derive(Debug, Default)]
pub struct OfferState {
    /// Highest generation that was used, by this process or before it.
    generation: u64,
    /// The generation and nodes that were sent last, and the message that carried them.
    sent: Option<(u64, Arc<Vec<v1::Node>>, u64)>,
    /// The generation that was acknowledged last.
    acked: u64,
}

impl OfferState {
    /// A stream began: the broker holds this generation.
    pub fn welcomed(&mut self, generation: u64) {
        self.generation = self.generation.max(generation);
        if self.acked != generation {
            // It lost what it had, or somebody else advertised: all is sent again.
            self.acked = 0;
            self.sent = None;
        } else if self.sent.as_ref().is_some_and(|(sent, _, _)| *sent != generation) {
            self.sent = None;
        }
    }

    /// The offer to send, if the broker does not have these nodes.
    pub fn next(&mut self, cluster: &str, nodes: &Arc<Vec<v1::Node>>, message_id: u64) -> v1::Offer {
        self.generation += 1;
        self.sent = Some((self.generation, Arc::clone(nodes), message_id));
        v1::Offer {
            cluster: cluster.to_owned(),
            generation: self.generation,
            nodes: nodes.as_ref().clone(),
            deliveries: vec![v1::Delivery::Namespace.into()],
        }
    }

    /// Whether these nodes must be sent.
    #[must_use]
    pub fn is_due(&self, nodes: &Arc<Vec<v1::Node>>) -> bool {
        self.sent.as_ref().is_none_or(|(_, sent, _)| sent != nodes)
    }

    /// The broker's word on a message; true if it was the offer's.
    pub fn settle(&mut self, message_id: u64, refused: bool) -> bool {
        let Some((generation, _, _)) = self.sent.as_ref().filter(|(_, _, id)| *id == message_id) else { return false };
        if !refused {
            self.acked = *generation;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(id: &str) -> Arc<Vec<v1::Node>> {
        Arc::new(vec![v1::Node { id: id.to_owned(), ..v1::Node::default() }])
    }

    #[test]
    fn generations_go_on_from_the_brokers() {
        let mut state = OfferState::default();
        state.welcomed(41);
        assert!(state.is_due(&nodes("a")));
        assert_eq!(state.next("c", &nodes("a"), 7).generation, 42);
        assert!(!state.is_due(&nodes("a")) && state.is_due(&nodes("b")));
        assert!(!state.settle(6, false) && state.settle(7, false));
        state.welcomed(42);
        assert!(!state.is_due(&nodes("a")), "the broker has it");
        state.welcomed(0);
        assert!(state.is_due(&nodes("a")), "the broker lost it");
        assert_eq!(state.next("c", &nodes("a"), 8).generation, 43);
    }

    #[test]
    fn an_offer_that_was_not_acknowledged_is_sent_on_the_next_stream() {
        let mut state = OfferState::default();
        state.welcomed(0);
        state.next("c", &nodes("a"), 7);
        state.welcomed(0);
        assert!(!state.settle(7, true) || state.is_due(&nodes("a")));
    }
}
