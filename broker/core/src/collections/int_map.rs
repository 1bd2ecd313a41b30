//! Hash map with integer keys.

use hashbrown::HashTable;

use crate::collections::interner::digest_of;

/// An integer key, or a pair of integers.
pub(crate) trait Key: Copy + Eq {
    /// The key as one integer. Different keys give different integers.
    fn to_u64(self) -> u64;
}

impl Key for u32 {
    fn to_u64(self) -> u64 {
        u64::from(self)
    }
}

impl Key for (u32, u32) {
    fn to_u64(self) -> u64 {
        u64::from(self.0) << 32 | u64::from(self.1)
    }
}

/// Map from integer keys to values. It has no iterator, so nothing depends on the order of hashes.
#[derive(Clone, Debug)]
pub(crate) struct IntMap<K, V> {
    table: HashTable<(K, V)>,
}

impl<K, V> Default for IntMap<K, V> {
    fn default() -> Self {
        Self { table: HashTable::new() }
    }
}

impl<K: Key, V: Copy> IntMap<K, V> {
    pub(crate) fn get(&self, key: K) -> Option<V> {
        self.table.find(hash_of(key), |entry| entry.0 == key).map(|entry| entry.1)
    }

    /// Inserts a key that the map does not contain yet.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        self.table.insert_unique(hash_of(key), (key, value), |entry| hash_of(entry.0));
    }

    /// Number of keys.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

fn hash_of(key: impl Key) -> u64 {
    digest_of([key.to_u64()].into_iter())
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
