//! Where the ways of a task on a state begin in a table of ways: found with one look at memory.

/// Ways of task and state begin nowhere yet.
const FREE: u64 = u64::MAX;
/// Bits of a key that are the task's.
const TASK_BITS: u32 = 24;

/// From pairs of a state and a task to a number. A table with open addressing; at most half of it is in use.
#[derive(Clone, Debug, Default)]
pub(super) struct Begins {
    places: Vec<(u64, u32)>,
    used: usize,
}

impl Begins {
    pub(super) fn get(&self, state: u32, task: usize) -> Option<u32> {
        if self.places.is_empty() {
            return None;
        }
        let (key, begin) = self.places[self.place_of(key_of(state, task))];
        (key != FREE).then_some(begin)
    }

    /// Remembers a pair that is not known yet.
    pub(super) fn insert(&mut self, state: u32, task: usize, begin: u32) {
        if self.places.len() <= 2 * self.used {
            let past =
                std::mem::replace(&mut self.places, vec![(FREE, 0); (4 * self.used).next_power_of_two().max(64)]);
            for entry in past.into_iter().filter(|(key, _)| *key != FREE) {
                let place = self.place_of(entry.0);
                self.places[place] = entry;
            }
        }
        let key = key_of(state, task);
        let place = self.place_of(key);
        self.places[place] = (key, begin);
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
        // The high half of the product depends on all of the key.
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let mut place = usize::try_from(mixed).unwrap_or(0) & mask;
        while self.places[place].0 != FREE && self.places[place].0 != key {
            place = (place + 1) & mask;
        }
        place
    }
}

fn key_of(state: u32, task: usize) -> u64 {
    u64::from(state) << TASK_BITS | task as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_in_is_found() {
        let mut begins = Begins::default();
        assert_eq!(begins.get(0, 0), None);
        let pairs = || (0..97_u32).flat_map(|state| (0..13_usize).map(move |task| (state * 31, task * 1_000)));
        for ((state, task), begin) in pairs().zip(0..) {
            assert_eq!(begins.get(state, task), None);
            begins.insert(state, task, begin);
        }
        assert!(pairs().zip(0..).all(|((state, task), begin)| begins.get(state, task) == Some(begin)));
        assert_eq!((begins.len(), begins.get(1, 1)), (97 * 13, None));
        begins.clear();
        assert_eq!((begins.len(), begins.get(0, 0)), (0, None));
    }
}
