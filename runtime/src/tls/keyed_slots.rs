//! Counts what is in use by key, with a limit for each key.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Counts<K> = Arc<Mutex<BTreeMap<K, usize>>>;

/// Slots in use by key. Keys without any take no memory. Clones share the counts.
#[derive(Debug, Clone)]
pub struct KeyedSlots<K> {
    counts: Counts<K>,
}

/// A key, and how many slots it may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotLimit<K> {
    /// The key.
    pub key: K,
    /// Its slots, at most.
    pub most: usize,
}

/// Slots in use; released on drop.
pub struct HeldSlots<K: Ord> {
    counts: Counts<K>,
    keys: Vec<K>,
}

impl<K: Ord + Clone> KeyedSlots<K> {
    /// Takes one slot of each key, or none.
    ///
    /// # Errors
    /// The first limit that is reached.
    pub fn take(&self, limits: impl IntoIterator<Item = SlotLimit<K>>) -> Result<HeldSlots<K>, SlotLimit<K>> {
        let mut held = HeldSlots { counts: Arc::clone(&self.counts), keys: Vec::new() };
        for limit in limits {
            // On an error, `held` is dropped without the lock and releases the earlier slots.
            let mut counts = lock(&self.counts);
            let count = counts.entry(limit.key.clone()).or_default();
            if *count >= limit.most {
                if *count == 0 {
                    counts.remove(&limit.key);
                }
                return Err(limit);
            }
            *count += 1;
            held.keys.push(limit.key);
        }
        Ok(held)
    }

    /// Slots in use by a key.
    #[must_use]
    pub fn in_use(&self, key: &K) -> usize {
        lock(&self.counts).get(key).copied().unwrap_or_default()
    }

    /// Whether no slot is in use.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        lock(&self.counts).is_empty()
    }
}

impl<K> Default for KeyedSlots<K> {
    fn default() -> Self {
        Self { counts: Counts::default() }
    }
}

impl<K: Ord> Drop for HeldSlots<K> {
    fn drop(&mut self) {
        let mut counts = lock(&self.counts);
        for key in &self.keys {
            if let Some(count) = counts.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(key);
                }
            }
        }
    }
}

impl<K: Ord + fmt::Debug> fmt::Debug for HeldSlots<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HeldSlots").field(&self.keys).finish()
    }
}

fn lock<K>(counts: &Counts<K>) -> MutexGuard<'_, BTreeMap<K, usize>> {
    // Each change is one number, so a panic elsewhere leaves nothing half done.
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn limit(key: &'static str, most: usize) -> SlotLimit<&'static str> {
        SlotLimit { key, most }
    }

    #[test]
    fn slots_come_back() {
        let slots = KeyedSlots::default();
        let held: Vec<_> = (0..3).map(|_| slots.take([limit("a", 3)]).unwrap()).collect();
        assert_eq!(slots.take([limit("a", 3)]).unwrap_err(), limit("a", 3));
        let other = slots.take([limit("b", 3)]).unwrap();
        assert_eq!((slots.in_use(&"a"), slots.in_use(&"b")), (3, 1));
        drop((held, other));
        assert!(slots.is_unused());
    }

    #[test]
    fn all_slots_are_taken_or_none() {
        let slots = KeyedSlots::default();
        let full = slots.take([limit("all", 1)]).unwrap();
        assert_eq!(slots.take([limit("a", 3), limit("all", 1), limit("b", 3)]).unwrap_err(), limit("all", 1));
        assert_eq!(slots.take([limit("a", 3), limit("none", 0)]).unwrap_err(), limit("none", 0));
        assert_eq!((slots.in_use(&"a"), slots.in_use(&"b"), slots.in_use(&"all")), (0, 0, 1));
        drop(full);
        assert!(slots.is_unused());
    }
}
