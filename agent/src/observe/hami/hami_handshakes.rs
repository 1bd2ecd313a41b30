//! Nodes whose HAMi device plugin does not answer its scheduler.
//!
//! The scheduler writes `Requesting_TIME` on a node, in its own time zone, and the device plugin overwrites that within
//! half a minute. So the time is not read: what counts is how long the annotation has not changed.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::observe::node_facts::NodeFacts;

/// After this time HAMi's scheduler takes a device plugin for dead. Source: HAMi, docs/develop/protocol.md.
const ANSWER_TIME: Duration = Duration::from_secs(60);

/// Requests without an answer: the annotation, and since when it has been seen, by node.
#[derive(Debug, Default)]
pub(crate) struct HamiHandshakes {
    waiting: BTreeMap<String, (String, Instant)>,
}

impl HamiHandshakes {
    /// Notes the handshakes of all nodes.
    pub(crate) fn note<'a>(&mut self, nodes: impl IntoIterator<Item = &'a NodeFacts>, now: Instant) {
        let mut waiting = BTreeMap::new();
        for node in nodes {
            let Some(hami) = node.hami.as_ref().filter(|hami| hami.is_asked()) else { continue };
            let known = self.waiting.remove(&node.name).filter(|(text, _)| *text == hami.handshake);
            waiting.insert(node.name.clone(), known.unwrap_or_else(|| (hami.handshake.clone(), now)));
        }
        self.waiting = waiting;
    }

    /// When the next request has had no answer for too long, if any waits.
    pub(crate) fn next_late(&self, now: Instant) -> Option<Instant> {
        self.waiting.values().map(|(_, since)| *since + ANSWER_TIME).filter(|late| *late > now).min()
    }

    /// The node's facts, with whether its device plugin is silent.
    pub(crate) fn judged<'a>(&self, node: &'a NodeFacts, now: Instant) -> Cow<'a, NodeFacts> {
        let is_late = self.waiting.get(&node.name).is_some_and(|(_, since)| *since + ANSWER_TIME <= now);
        if !is_late {
            return Cow::Borrowed(node);
        }
        let mut node = node.clone();
        if let Some(hami) = &mut node.hami {
            hami.is_silent = true;
        }
        Cow::Owned(node)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::observe::hami::hami_annotations::HamiAnnotations;

    fn node(handshake: &str) -> NodeFacts {
        let hami = HamiAnnotations { handshake: handshake.to_owned(), ..HamiAnnotations::default() };
        NodeFacts { name: "gpu-1".to_owned(), hami: Some(hami), ..NodeFacts::default() }
    }

    #[test]
    fn a_request_is_late_when_it_has_not_changed_for_a_minute() {
        let (began, second) = (Instant::now(), Duration::from_secs(1));
        let mut handshakes = HamiHandshakes::default();
        let silent = |handshakes: &HamiHandshakes, text: &str, now| {
            handshakes.judged(&node(text), now).hami.as_ref().unwrap().is_silent
        };
        handshakes.note(&[node("Requesting_1")], began);
        assert_eq!(handshakes.next_late(began), Some(began + ANSWER_TIME));
        handshakes.note(&[node("Requesting_1")], began + second);
        assert!(!silent(&handshakes, "Requesting_1", began + ANSWER_TIME - second));
        assert!(silent(&handshakes, "Requesting_1", began + ANSWER_TIME));
        assert_eq!(handshakes.next_late(began + ANSWER_TIME), None);

        handshakes.note(&[node("Requesting_2")], began + ANSWER_TIME);
        assert!(!silent(&handshakes, "Requesting_2", began + ANSWER_TIME));
        handshakes.note(&[node("Reported_3")], began + ANSWER_TIME);
        assert_eq!(handshakes.next_late(began), None);
        assert!(!silent(&handshakes, "Reported_3", began + ANSWER_TIME * 9));
    }
}
