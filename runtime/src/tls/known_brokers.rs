//! Brokers that a client knows: the configured ones, and others that a broker listed. A learnt address is trusted like
//! a configured one: TLS verifies the broker behind it.

use http::HeaderMap;
use tokio::sync::watch;

use super::endpoints::{BrokerEndpoints, MAX_ENDPOINTS};

/// Metadata of a broker's answer: client addresses of all brokers, comma-separated.
pub const BROKERS_METADATA: &str = "comity-brokers";

/// Brokers that a client knows. Clones share them.
#[derive(Debug, Clone)]
pub struct KnownBrokers {
    lists: watch::Sender<BrokerLists>,
    is_fixed: bool,
}

/// Configured and learnt addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerLists {
    configured: BrokerEndpoints,
    /// Without configured ones.
    learnt: Vec<String>,
}

impl BrokerLists {
    /// The addresses in the order of attempts: configured ones first.
    #[must_use]
    pub fn endpoints(&self) -> BrokerEndpoints {
        self.configured.with(&self.learnt)
    }

    /// The configured addresses.
    #[must_use]
    pub fn configured(&self) -> &BrokerEndpoints {
        &self.configured
    }

    /// The learnt addresses that are not configured.
    #[must_use]
    pub fn learnt(&self) -> &[String] {
        &self.learnt
    }

    fn learn(&mut self, all: &BrokerEndpoints) -> bool {
        let mut learnt: Vec<String> = Vec::new();
        for address in all.addresses() {
            if self.configured.addresses().len() + learnt.len() >= MAX_ENDPOINTS {
                break;
            }
            if !self.configured.addresses().contains(address) && !learnt.contains(address) {
                learnt.push(address.clone());
            }
        }
        let is_new = learnt != self.learnt;
        self.learnt = learnt;
        is_new
    }
}

impl KnownBrokers {
    /// Knows the configured brokers, and learns others.
    #[must_use]
    pub fn new(configured: BrokerEndpoints) -> Self {
        Self { lists: watch::Sender::new(BrokerLists { configured, learnt: Vec::new() }), is_fixed: false }
    }

    /// Replaces the learnt addresses by a broker's list of all brokers.
    pub fn learn(&self, all: &BrokerEndpoints) {
        if !self.is_fixed {
            self.lists.send_if_modified(|lists| lists.learn(all));
        }
    }

    /// Learns from the metadata of an answer. Ignores a list that is empty or invalid.
    pub(super) fn learn_from(&self, metadata: &HeaderMap) {
        let list = metadata.get(BROKERS_METADATA).and_then(|value| value.to_str().ok());
        if let Some(Ok(all)) = list.map(str::parse) {
            self.learn(&all);
        }
    }

    /// The present lists.
    #[must_use]
    pub fn lists(&self) -> BrokerLists {
        self.lists.borrow().clone()
    }

    /// The addresses in the order of attempts.
    #[must_use]
    pub fn endpoints(&self) -> BrokerEndpoints {
        self.lists.borrow().endpoints()
    }

    /// Follows changes.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<BrokerLists> {
        self.lists.subscribe()
    }
}

/// Exactly these brokers: nothing is learnt.
impl From<&BrokerEndpoints> for KnownBrokers {
    fn from(endpoints: &BrokerEndpoints) -> Self {
        Self { is_fixed: true, ..Self::new(endpoints.clone()) }
    }
}

impl From<&Self> for KnownBrokers {
    fn from(brokers: &Self) -> Self {
        brokers.clone()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn list(text: &str) -> BrokerEndpoints {
        text.parse().unwrap()
    }

    fn told(value: &'static str) -> HeaderMap {
        [(http::HeaderName::from_static(BROKERS_METADATA), http::HeaderValue::from_static(value))].into_iter().collect()
    }

    #[test]
    fn a_list_replaces_the_learnt_one_and_keeps_the_configured_one() {
        let known = KnownBrokers::new(list("b2:1,b1:1"));
        let mut changes = known.subscribe();
        known.learn(&list("b1:1,b2:1,b3:1,b4:1,b3:1"));
        assert_eq!(known.endpoints().to_string(), "b2:1,b1:1,b3:1,b4:1");
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        known.learn(&list("b3:1,b4:1"));
        assert!(!changes.has_changed().unwrap(), "the same list is no change");
        known.learn(&list("b5:1"));
        assert_eq!(
            (known.endpoints().to_string(), known.lists().learnt()),
            ("b2:1,b1:1,b5:1".to_owned(), &["b5:1".to_owned()][..])
        );
        known.learn(&list("b1:1"));
        assert_eq!(known.endpoints(), list("b2:1,b1:1"));
    }

    #[test]
    fn metadata_that_is_empty_or_invalid_teaches_nothing() {
        let known = KnownBrokers::new(list("b1:1"));
        known.learn_from(&told("b1:1,b2:1"));
        for odd in
            ["", ",", "b3", "b3:1,b 4:1", "b3:0", "b:1,b:1,b:1,b:1,b:1,b:1,b:1,b:1,b:1,b:1,b:1,b:1,b:1,b:1,b:1,b:1,b:1"]
        {
            known.learn_from(&told(odd));
            assert_eq!(known.endpoints(), list("b1:1,b2:1"), "{odd}");
        }
        known.learn_from(&HeaderMap::new());
        assert_eq!(known.endpoints(), list("b1:1,b2:1"));
    }

    #[test]
    fn the_union_is_bounded_and_a_fixed_list_stays() {
        let numbered = |name: &str| BrokerEndpoints::new((1..=10).map(|port| format!("{name}:{port}"))).unwrap();
        let known = KnownBrokers::new(numbered("a"));
        known.learn(&numbered("b"));
        assert_eq!((known.endpoints().addresses().len(), known.lists().learnt().len()), (MAX_ENDPOINTS, 6));
        let fixed = KnownBrokers::from(&list("b1:1"));
        fixed.learn(&list("b2:1"));
        assert_eq!(fixed.endpoints(), list("b1:1"));
    }
}
