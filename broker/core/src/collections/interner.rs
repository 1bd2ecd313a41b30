//! Interns values as dense ids.

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

/// One slot of the table: the upper half of the value's digest, which rules out nearly all other values without
/// comparing them, and the value's id.
type Slot = (u32, u32);
/// Marks a free slot.
const FREE: Slot = (0, u32::MAX);

fn upper_half(digest: u64) -> u32 {
    u32::try_from(digest >> 32).unwrap_or(u32::MAX)
}

/// Gives equal values the same dense id. Open addressing, at most half full.
#[derive(Clone, Debug)]
pub(crate) struct Interner<T> {
    slots: Vec<Slot>,
    values: Vec<T>,
    digests: Vec<u64>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), values: Vec::new(), digests: Vec::new() }
    }
}

impl<T: Digest + Eq> Interner<T> {
    /// The id of `value`; assigns a new id to a new value.
    pub(crate) fn intern(&mut self, value: T) -> u32 {
        let digest = value.digest();
        self.find_or_grow(&value, digest).unwrap_or_else(|slot| self.insert_at(slot, digest, value))
    }

    /// Like [`intern`](Self::intern), but clones the value only if it is new.
    pub(crate) fn intern_ref(&mut self, value: &T) -> u32
    where
        T: Clone,
    {
        let digest = value.digest();
        self.find_or_grow(value, digest).unwrap_or_else(|slot| self.insert_at(slot, digest, value.clone()))
    }

    /// The id of `value`, if it was interned before.
    pub(crate) fn id_of(&self, value: &T) -> Option<u32> {
        if self.slots.is_empty() { None } else { self.probe(value, value.digest()).ok() }
    }

    /// The id of `value`, or the free slot where it belongs. A free slot always exists: the table is at most half full.
    fn find_or_grow(&mut self, value: &T, digest: u64) -> Result<u32, usize> {
        if self.slots.len() <= 2 * self.values.len() {
            self.grow();
        }
        self.probe(value, digest)
    }

    fn probe(&self, value: &T, digest: u64) -> Result<u32, usize> {
        let (mask, upper) = (self.slots.len() - 1, upper_half(digest));
        let mut slot = usize::try_from(digest).unwrap_or(0) & mask;
        while self.slots[slot] != FREE {
            let (other, id) = self.slots[slot];
            if other == upper && self.values[id as usize] == *value {
                return Ok(id);
            }
            slot = (slot + 1) & mask;
        }
        Err(slot)
    }

    fn insert_at(&mut self, slot: usize, digest: u64, value: T) -> u32 {
        let id = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
        self.slots[slot] = (upper_half(digest), id);
        self.values.push(value);
        self.digests.push(digest);
        id
    }

    fn grow(&mut self) {
        let slots = (4 * self.values.len()).next_power_of_two().max(64);
        self.slots = vec![FREE; slots];
        for (id, &digest) in (0..).zip(&self.digests) {
            let mut slot = usize::try_from(digest).unwrap_or(0) & (slots - 1);
            while self.slots[slot] != FREE {
                slot = (slot + 1) & (slots - 1);
            }
            self.slots[slot] = (upper_half(digest), id);
        }
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
