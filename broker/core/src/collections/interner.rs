//! Interns values as dense ids.

use hashbrown::HashTable;

/// A 64-bit digest that is the same in every process. Tables depend on it only for speed; the planner uses it to break
/// ties between equal costs.
pub(crate) trait Digest {
    /// The digest of this value.
    fn digest(&self) -> u64;
}

/// Mixes words into a digest with one multiplication each and the finaliser of splitmix64 at the end.
pub(crate) fn digest_of(words: impl Iterator<Item = u64>) -> u64 {
    let mixed = words.fold(0xcbf2_9ce4_8422_2325_u64, |hash, word| {
        (hash.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 31)
}

/// Slot counts, or a difference of them.
impl Digest for [i32; 8] {
    fn digest(&self) -> u64 {
        digest_of(self.iter().map(|&slots| u64::from(slots.cast_unsigned())))
    }
}

/// Gives equal values the same dense id.
#[derive(Clone, Debug)]
pub(crate) struct Interner<T> {
    /// Ids by the digests of their values.
    ids: HashTable<u32>,
    values: Vec<T>,
    digests: Vec<u64>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { ids: HashTable::new(), values: Vec::new(), digests: Vec::new() }
    }
}

impl<T: Digest + Eq> Interner<T> {
    /// The id of `value`; assigns a new id to a new value.
    pub(crate) fn intern(&mut self, value: T) -> u32 {
        let digest = value.digest();
        self.find(&value, digest).unwrap_or_else(|| self.push(value, digest))
    }

    /// Like [`intern`](Self::intern), but clones the value only if it is new.
    pub(crate) fn intern_ref(&mut self, value: &T) -> u32
    where
        T: Clone,
    {
        let digest = value.digest();
        self.find(value, digest).unwrap_or_else(|| self.push(value.clone(), digest))
    }

    /// The id of `value`, if it was interned before.
    pub(crate) fn id_of(&self, value: &T) -> Option<u32> {
        self.find(value, value.digest())
    }

    fn find(&self, value: &T, digest: u64) -> Option<u32> {
        self.ids.find(digest, |id| self.values[*id as usize] == *value).copied()
    }

    fn push(&mut self, value: T, digest: u64) -> u32 {
        let id = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
        self.values.push(value);
        self.digests.push(digest);
        self.ids.insert_unique(digest, id, |id| self.digests[*id as usize]);
        id
    }

    pub(crate) fn get(&self, id: u32) -> &T {
        &self.values[id as usize]
    }

    pub(crate) fn digest(&self, id: u32) -> u64 {
        self.digests[id as usize]
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    pub(crate) fn values(&self) -> &[T] {
        &self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Digest for u64 {
        fn digest(&self) -> u64 {
            // Few distinct digests, to test probing.
            *self % 3
        }
    }

    #[test]
    fn equal_values_have_one_id() {
        let mut interner = Interner::default();
        let numbers: Vec<u32> = (0..500_u64).map(|value| interner.intern(value * 7)).collect();
        assert_eq!(numbers, (0..500).collect::<Vec<u32>>());
        assert!((0..500_u64).all(|value| u64::from(interner.intern(value * 7)) == value));
        assert_eq!((interner.len(), *interner.get(3)), (500, 21));
    }
}
