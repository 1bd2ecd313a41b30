//! Values by numbers, found with one look at memory.

use crate::collections::interner::digest_of;

/// What values are found by: a number, or a pair of them.
pub(crate) trait Key: Copy + Eq {
    /// No key: it stands where a place of the table is free.
    const NONE: Self;

    /// Different keys have different words.
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

/// From keys to values. A table with open addressing; at most three quarters of it are in use.
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

    /// Remembers a key that is not known yet.
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

    /// Keys that are known.
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The place of a key, or the free one for it. There is one: at most three quarters are in use.
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
