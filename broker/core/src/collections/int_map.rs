//! Open-addressing table with integer keys.

use crate::collections::interner::digest_of;

/// An integer key, or a pair of integers.
pub(crate) trait Key: Copy + Eq {
    /// Reserved value that marks a free slot of the table.
    const EMPTY: Self;

    /// The key as one integer. Different keys give different integers.
    fn to_u64(self) -> u64;
}

impl Key for u32 {
    const EMPTY: Self = Self::MAX;

    fn to_u64(self) -> u64 {
        u64::from(self)
    }
}

impl Key for (u32, u32) {
    const EMPTY: Self = (u32::MAX, u32::MAX);

    fn to_u64(self) -> u64 {
        u64::from(self.0) << 32 | u64::from(self.1)
    }
}

/// Map from integer keys to values. Open addressing, at most three quarters full.
#[derive(Clone, Debug)]
pub(crate) struct IntMap<K, V> {
    slots: Vec<(K, V)>,
    used: usize,
}

impl<K, V> Default for IntMap<K, V> {
    fn default() -> Self {
        Self { slots: Vec::new(), used: 0 }
    }
}

impl<K: Key, V: Copy + Default> IntMap<K, V> {
    pub(crate) fn get(&self, key: K) -> Option<V> {
        if self.slots.is_empty() {
            return None;
        }
        let (found, value) = self.slots[self.slot_of(key)];
        (found != K::EMPTY).then_some(value)
    }

    /// Inserts a key that the map does not contain yet.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        if 3 * self.slots.len() <= 4 * self.used {
            let slots = (2 * self.slots.len()).max(64);
            let past = std::mem::replace(&mut self.slots, vec![(K::EMPTY, V::default()); slots]);
            for entry in past.into_iter().filter(|(key, _)| *key != K::EMPTY) {
                let slot = self.slot_of(entry.0);
                self.slots[slot] = entry;
            }
        }
        let slot = self.slot_of(key);
        self.slots[slot] = (key, value);
        self.used += 1;
    }

    /// Number of keys.
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The slot of `key`, or the free slot where it belongs. One always exists: the table is at most three quarters
    /// full.
    fn slot_of(&self, key: K) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = usize::try_from(digest_of([key.to_u64()].into_iter())).unwrap_or(0) & mask;
        while self.slots[slot].0 != K::EMPTY && self.slots[slot].0 != key {
            slot = (slot + 1) & mask;
        }
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inserted_keys_are_found() {
        let mut map = IntMap::default();
        assert_eq!(map.get((0, 0)), None);
        let pairs = || (0..97_u32).flat_map(|one| (0..13_u32).map(move |other| (one * 31, other * 1_000)));
        for (pair, value) in pairs().zip(0_u32..) {
            assert_eq!(map.get(pair), None);
            map.insert(pair, value);
        }
        assert!(pairs().zip(0..).all(|(pair, value)| map.get(pair) == Some(value)));
        assert_eq!((map.len(), map.get((1, 1))), (97 * 13, None));
        map.clear();
        assert_eq!((map.len(), map.get((0, 0))), (0, None));
    }
}
