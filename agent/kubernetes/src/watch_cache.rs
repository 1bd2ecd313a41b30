//! A cache of watched objects, reduced to the facts that are kept.
//!
//! `kube::runtime::reflector` keeps whole objects, and does not show whether a change matters. A cluster has tens of
//! thousands of pods, and nodes report every few seconds; so only the facts are kept and compared.

use std::collections::BTreeMap;

use kube::runtime::watcher::Event;

/// Facts by key. During a relist the old facts stay until the new list is complete, so that readers never see a partial
/// list.
#[derive(Debug)]
pub struct WatchCache<F> {
    facts: BTreeMap<String, F>,
    incoming: Option<BTreeMap<String, F>>,
    complete: bool,
}

impl<F> Default for WatchCache<F> {
    fn default() -> Self {
        Self { facts: BTreeMap::new(), incoming: None, complete: false }
    }
}

impl<F: PartialEq> WatchCache<F> {
    /// Applies an event; `reduce` returns an object's key and the facts to keep, if any. True if the facts changed or
    /// became complete.
    pub fn take<K>(&mut self, event: Event<K>, mut reduce: impl FnMut(&K) -> Option<(String, Option<F>)>) -> bool {
        match event {
            Event::Init => {
                self.incoming = Some(BTreeMap::new());
                false
            }
            Event::InitApply(object) => {
                if let (Some((key, Some(fact))), Some(incoming)) = (reduce(&object), self.incoming.as_mut()) {
                    incoming.insert(key, fact);
                }
                false
            }
            Event::InitDone => {
                let incoming = self.incoming.take().unwrap_or_default();
                let changed = !self.complete || incoming != self.facts;
                (self.facts, self.complete) = (incoming, true);
                changed
            }
            Event::Apply(object) => match reduce(&object) {
                Some((key, Some(fact))) => {
                    let same = self.facts.get(&key) == Some(&fact);
                    self.facts.insert(key, fact);
                    !same
                }
                Some((key, None)) => self.facts.remove(&key).is_some(),
                None => false,
            },
            Event::Delete(object) => reduce(&object).is_some_and(|(key, _)| self.facts.remove(&key).is_some()),
        }
    }

    /// Whether a first list is complete.
    pub const fn is_complete(&self) -> bool {
        self.complete
    }

    /// The facts of one object.
    pub fn get(&self, key: &str) -> Option<&F> {
        self.facts.get(key)
    }

    /// All facts, ordered by key.
    pub fn facts(&self) -> impl Iterator<Item = &F> + Clone {
        self.facts.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduce((key, fact): &(&str, i32)) -> Option<(String, Option<i32>)> {
        Some(((*key).to_owned(), (*fact >= 0).then_some(*fact)))
    }

    fn facts(mirror: &WatchCache<i32>) -> Vec<i32> {
        mirror.facts().copied().collect()
    }

    #[test]
    fn a_relist_replaces_everything_at_once() {
        let mut mirror = WatchCache::default();
        assert!(!mirror.take(Event::Init, reduce) && !mirror.take(Event::InitApply(("a", 1)), reduce));
        assert!(!mirror.is_complete());
        assert!(mirror.take(Event::InitDone, reduce) && mirror.is_complete());
        assert!(mirror.take(Event::Apply(("b", 2)), reduce));
        mirror.take(Event::Init, reduce);
        mirror.take(Event::InitApply(("c", 3)), reduce);
        assert_eq!(facts(&mirror), [1, 2]);
        assert!(mirror.take(Event::InitDone, reduce));
        assert_eq!(facts(&mirror), [3]);
    }

    #[test]
    fn only_changes_count() {
        let mut mirror = WatchCache::default();
        mirror.take(Event::InitDone::<(&str, i32)>, reduce);
        assert!(mirror.take(Event::Apply(("a", 1)), reduce));
        assert!(!mirror.take(Event::Apply(("a", 1)), reduce));
        assert!(mirror.take(Event::Apply(("a", -1)), reduce));
        assert!(!mirror.take(Event::Delete(("a", 1)), reduce));
        assert!(facts(&mirror).is_empty());
    }
}
