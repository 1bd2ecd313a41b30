//! Open-addressing table with integer keys.

use crate::collections::interner::digest_of;

/// An integer key, or a pair of integers.
pub(crate) trait Key: Copy + Eq {
    /// Reserved value that marks a free slot of the table.
    const NONE: Self;

    /// The key as one integer. Different keys give different integers.
    fn word(self) -> u64;
}

impl Key for u32 {
    const NONE: Self = Self::MAX;

    fn word(self) -> u64 {
        u64::from(self)
    }
}

impl Key for (u32, u32) {
    const NONE: Self = (u32::MAX, u32::MAX);

    fn word(self) -> u64 {
        u64::from(self.0) << 32 | u64::from(self.1)
    }
}

/// Map from integer keys to values. Open addressing, at most three quarters full.
#[derive(Clone, Debug)]
pub(crate) struct Index<K, V> {
    places: Vec<(K, V)>,
    used: usize,
}

impl<K, V> Default for Index<K, V> {
    fn default() -> Self {
        Self { places: Vec::new(), used: 0 }
    }
}

impl<K: Key, V: Copy + Default> Index<K, V> {
    pub(crate) fn get(&self, key: K) -> Option<V> {
        if self.places.is_empty() {
            return None;
        }
        let (found, value) = self.places[self.place_of(key)];
        (found != K::NONE).then_some(value)
    }

    /// Inserts a key that the map does not contain yet.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        if 3 * self.places.len() <= 4 * self.used {
            let places = (2 * self.places.len()).max(64);
            let past = std::mem::replace(&mut self.places, vec![(K::NONE, V::default()); places]);
            for entry in past.into_iter().filter(|(key, _)| *key != K::NONE) {
                let place = self.place_of(entry.0);
                self.places[place] = entry;
            }
        }
        let place = self.place_of(key);
        self.places[place] = (key, value);
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
    fn place_of(&self, key: K) -> usize {
        let mask = self.places.len() - 1;
        let mut place = usize::try_from(digest_of([key.word()].into_iter())).unwrap_or(0) & mask;
        while self.places[place].0 != K::NONE && self.places[place].0 != key {
            place = (place + 1) & mask;
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_in_is_found() {
        let mut index = Index::default();
        assert_eq!(index.get((0, 0)), None);
        let pairs = || (0..97_u32).flat_map(|one| (0..13_u32).map(move |other| (one * 31, other * 1_000)));
        for (pair, value) in pairs().zip(0_u32..) {
            assert_eq!(index.get(pair), None);
            index.insert(pair, value);
        }
        assert!(pairs().zip(0..).all(|(pair, value)| index.get(pair) == Some(value)));
        assert_eq!((index.len(), index.get((1, 1))), (97 * 13, None));
        index.clear();
        assert_eq!((index.len(), index.get((0, 0))), (0, None));
    }
}
