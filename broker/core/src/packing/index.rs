//! Numbers for pairs of numbers, found with one look at memory.

use super::interner::digest_of;

/// No pair is at this place of the table.
const FREE: u64 = u64::MAX;

/// From pairs of numbers to values. A table with open addressing; at most half of it is in use.
#[derive(Clone, Debug)]
pub(super) struct Index<V> {
    places: Vec<(u64, V)>,
    used: usize,
}

impl<V> Default for Index<V> {
    fn default() -> Self {
        Self { places: Vec::new(), used: 0 }
    }
}

impl<V: Copy + Default> Index<V> {
    pub(super) fn get(&self, one: u32, other: u32) -> Option<V> {
        if self.places.is_empty() {
            return None;
        }
        let (key, value) = self.places[self.place_of(key_of(one, other))];
        (key != FREE).then_some(value)
    }

    /// Remembers a pair that is not known yet.
    pub(super) fn insert(&mut self, one: u32, other: u32, value: V) {
        if self.places.len() <= 2 * self.used {
            let places = (4 * self.used).next_power_of_two().max(64);
            let past = std::mem::replace(&mut self.places, vec![(FREE, V::default()); places]);
            for entry in past.into_iter().filter(|(key, _)| *key != FREE) {
                let place = self.place_of(entry.0);
                self.places[place] = entry;
            }
        }
        let key = key_of(one, other);
        let place = self.place_of(key);
        self.places[place] = (key, value);
        self.used += 1;
    }

    /// Pairs that are known.
    pub(super) fn len(&self) -> usize {
        self.used
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The place of a key, or the free one for it. There is one: at most half are in use.
    fn place_of(&self, key: u64) -> usize {
        let mask = self.places.len() - 1;
        let mut place = usize::try_from(digest_of([key].into_iter())).unwrap_or(0) & mask;
        while self.places[place].0 != FREE && self.places[place].0 != key {
            place = (place + 1) & mask;
        }
        place
    }
}

fn key_of(one: u32, other: u32) -> u64 {
    u64::from(one) << 32 | u64::from(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_in_is_found() {
        let mut index = Index::default();
        assert_eq!(index.get(0, 0), None);
        let pairs = || (0..97_u32).flat_map(|one| (0..13_u32).map(move |other| (one * 31, other * 1_000)));
        for ((one, other), value) in pairs().zip(0_u32..) {
            assert_eq!(index.get(one, other), None);
            index.insert(one, other, value);
        }
        assert!(pairs().zip(0..).all(|((one, other), value)| index.get(one, other) == Some(value)));
        assert_eq!((index.len(), index.get(1, 1)), (97 * 13, None));
        index.clear();
        assert_eq!((index.len(), index.get(0, 0)), (0, None));
    }
}
