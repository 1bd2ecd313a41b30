//! An ordered map with cheap copies: a copy shares every chunk and value that neither side has changed since.
//!
//! ```text
//!   copy ──┐
//!          ├─▶ chunk 1..64 ─▶ values        a copy increments one reference count per chunk: 1,600 for 100,000 entries
//!   map ───┼─▶ chunk 65..128 ─▶ values
//!          └─▶ chunk 129..192 ─▶ values     the first change after a copy duplicates one chunk and one value
//! ```
//!
//! The broker copies the state for a snapshot while it applies nothing, so copying must be fast however large the state
//! is.

use std::borrow::Borrow;
use std::marker::PhantomData;
use std::ops::{Bound, Index, RangeBounds};
use std::sync::Arc;
use std::{fmt, slice};

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Entries per chunk. Doubling it halves the cost of a copy and doubles the cost of the first change after one.
const MAX_CHUNK: usize = 64;
/// Neighbouring chunks with fewer entries in total are merged.
const MERGE_BELOW: usize = MAX_CHUNK / 2;

type SharedEntry<K, V> = (K, Arc<V>);

/// A run of neighbouring entries; never empty.
#[derive(Clone)]
struct Chunk<K, V> {
    /// Copy of the first entry's key, for the binary search.
    first: K,
    entries: Arc<Vec<SharedEntry<K, V>>>,
}

/// An ordered map. Copying costs one reference count per chunk; both sides share values until one changes them.
#[derive(Clone)]
pub struct CowMap<K, V> {
    chunks: Vec<Chunk<K, V>>,
    len: usize,
}

impl<K, V> CowMap<K, V> {
    /// An empty map.
    #[must_use]
    pub const fn new() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }

    /// Number of entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the map is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Entries in key order.
    pub fn iter(&self) -> Iter<'_, K, V> {
        Iter { entries: [].iter(), chunks: self.chunks.iter() }
    }

    /// Keys in ascending order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// The last entry.
    #[must_use]
    pub fn last_key_value(&self) -> Option<(&K, &V)> {
        self.chunks.last()?.entries.last().map(|(key, value)| (key, &**value))
    }

    /// Values in key order.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }
}

impl<K: Ord, V> CowMap<K, V> {
    /// Index of the chunk that contains `key`, if any chunk does.
    fn chunk_of<Q: Ord + ?Sized>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
    {
        self.chunks.partition_point(|chunk| chunk.first.borrow() <= key).saturating_sub(1)
    }

    fn entry<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&SharedEntry<K, V>>
    where
        K: Borrow<Q>,
    {
        let entries = &self.chunks.get(self.chunk_of(key))?.entries;
        entries.get(search(entries, key).ok()?)
    }

    /// The value of `key`.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.entry(key).map(|(_, value)| &**value)
    }

    /// The stored key and its value.
    pub fn get_key_value<Q: Ord + ?Sized>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        self.entry(key).map(|(key, value)| (key, &**value))
    }

    /// Whether the map contains `key`.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.entry(key).is_some()
    }

    /// Entries whose keys lie in `range`.
    pub fn range<R: RangeBounds<K>>(&self, range: R) -> impl Iterator<Item = (&K, &V)> {
        let entries = match range.start_bound() {
            Bound::Unbounded => self.iter(),
            Bound::Included(from) => self.skip_to(from, |key| key < from),
            Bound::Excluded(from) => self.skip_to(from, |key| key <= from),
        };
        entries.take_while(move |(key, _)| match range.end_bound() {
            Bound::Unbounded => true,
            Bound::Included(to) => *key <= to,
            Bound::Excluded(to) => *key < to,
        })
    }

    /// Iterates from the first entry in the chunk of `from` for which `before` is false.
    fn skip_to(&self, from: &K, before: impl Fn(&K) -> bool) -> Iter<'_, K, V> {
        let mut chunks = self.chunks.get(self.chunk_of(from)..).unwrap_or_default().iter();
        let entries = chunks.next().map_or(&[][..], |chunk| &chunk.entries);
        Iter { entries: entries[entries.partition_point(|(key, _)| before(key))..].iter(), chunks }
    }
}

impl<K: Ord + Clone, V: Clone> CowMap<K, V> {
    /// Mutable access to the value of `key`. Copies the value first if another map shares it.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let number = self.chunk_of(key);
        let chunk = self.chunks.get_mut(number)?;
        let at = search(&chunk.entries, key).ok()?;
        Arc::make_mut(&mut chunk.entries).get_mut(at).map(|(_, value)| Arc::make_mut(value))
    }

    /// Mutable access to all entries in key order. Copies every value that another map shares.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        let entries = self.chunks.iter_mut().flat_map(|chunk| Arc::make_mut(&mut chunk.entries));
        entries.map(|(key, value)| (&*key, Arc::make_mut(value)))
    }

    /// Sets the value of `key` and returns the previous one.
    pub fn insert(&mut self, key: K, value: V) -> Option<Arc<V>> {
        let value = Arc::new(value);
        let number = self.chunk_of(&key);
        let Some(chunk) = self.chunks.get_mut(number) else {
            self.len = 1;
            self.chunks.push(Chunk::single(key, value));
            return None;
        };
        let at = match search(&chunk.entries, &key) {
            Ok(at) => {
                let held = Arc::make_mut(&mut chunk.entries).get_mut(at);
                return held.map(|(_, held)| std::mem::replace(held, value));
            }
            Err(at) => at,
        };
        self.len += 1;
        let is_last = number + 1 == self.chunks.len();
        if is_last && at == MAX_CHUNK {
            // Keys are mostly ascending ids: start a new chunk instead of splitting a full one.
            self.chunks.push(Chunk::single(key, value));
            return None;
        }
        self.insert_at(number, at, (key, value));
        None
    }

    fn insert_at(&mut self, number: usize, at: usize, entry: SharedEntry<K, V>) {
        let chunk = &mut self.chunks[number];
        if at == 0 {
            chunk.first = entry.0.clone();
        }
        let entries = Arc::make_mut(&mut chunk.entries);
        entries.insert(at, entry);
        if entries.len() > MAX_CHUNK {
            let mut right = Vec::with_capacity(MAX_CHUNK);
            right.extend(entries.drain(MAX_CHUNK / 2..));
            let right = Chunk { first: right[0].0.clone(), entries: Arc::new(right) };
            self.chunks.insert(number + 1, right);
        }
    }

    /// Removes `key` and returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<Arc<V>>
    where
        K: Borrow<Q>,
    {
        let number = self.chunk_of(key);
        let chunk = self.chunks.get_mut(number)?;
        let at = search(&chunk.entries, key).ok()?;
        let entries = Arc::make_mut(&mut chunk.entries);
        let (_, value) = entries.remove(at);
        if let Some((first, _)) = entries.first().filter(|_| at == 0) {
            chunk.first = first.clone();
        }
        self.len -= 1;
        self.join(number);
        Some(value)
    }

    /// Drops the chunk if it is empty, or merges it with a neighbour if both are small.
    fn join(&mut self, number: usize) {
        let entries = |number: usize| self.chunks.get(number).map_or(MAX_CHUNK, |chunk| chunk.entries.len());
        if entries(number) == 0 {
            self.chunks.remove(number);
            return;
        }
        let left = if entries(number) + entries(number + 1) < MERGE_BELOW { number } else { number.wrapping_sub(1) };
        if entries(left) + entries(left.wrapping_add(1)) < MERGE_BELOW {
            let right = self.chunks.remove(left + 1);
            Arc::make_mut(&mut self.chunks[left].entries).extend(right.entries.iter().cloned());
        }
    }

    /// Keeps only the entries for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &V) -> bool) {
        let removed: Vec<K> =
            self.iter().filter(|(key, value)| !keep(key, value)).map(|(key, _)| key.clone()).collect();
        for key in &removed {
            self.remove(key);
        }
    }
}

impl<K: Clone, V> Chunk<K, V> {
    fn single(key: K, value: Arc<V>) -> Self {
        let mut entries = Vec::with_capacity(MAX_CHUNK);
        entries.push((key.clone(), value));
        Self { first: key, entries: Arc::new(entries) }
    }
}

/// Position of `key` in `entries`, or where to insert it.
fn search<K: Ord + Borrow<Q>, V, Q: Ord + ?Sized>(entries: &[SharedEntry<K, V>], key: &Q) -> Result<usize, usize> {
    entries.binary_search_by(|(held, _)| held.borrow().cmp(key))
}

/// Iterator over a [`CowMap`] in key order.
pub struct Iter<'a, K, V> {
    entries: slice::Iter<'a, SharedEntry<K, V>>,
    chunks: slice::Iter<'a, Chunk<K, V>>,
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((key, value)) = self.entries.next() {
                return Some((key, &**value));
            }
            self.entries = self.chunks.next()?.entries.iter();
        }
    }
}

impl<'a, K, V> IntoIterator for &'a CowMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Iter<'a, K, V> {
        self.iter()
    }
}

impl<K, V> Default for CowMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Ord + Borrow<Q>, V, Q: Ord + ?Sized> Index<&Q> for CowMap<K, V> {
    type Output = V;

    /// # Panics
    /// If the map does not contain `key`.
    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("the map has the key")
    }
}

impl<K: PartialEq, V: PartialEq> PartialEq for CowMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<K: Eq, V: Eq> Eq for CowMap<K, V> {}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for CowMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: Ord + Clone, V: Clone> FromIterator<(K, V)> for CowMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::new();
        for (key, value) in entries {
            map.insert(key, value);
        }
        map
    }
}

impl<K: Serialize, V: Serialize> Serialize for CowMap<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de, K: Deserialize<'de> + Ord + Clone, V: Deserialize<'de> + Clone> Deserialize<'de> for CowMap<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<K, V>(PhantomData<(K, V)>);

        impl<'de, K: Deserialize<'de> + Ord + Clone, V: Deserialize<'de> + Clone> Visitor<'de> for Entries<K, V> {
            type Value = CowMap<K, V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<CowMap<K, V>, A::Error> {
                let mut map = CowMap::new();
                while let Some((key, value)) = entries.next_entry()? {
                    map.insert(key, value);
                }
                Ok(map)
            }
        }

        deserializer.deserialize_map(Entries(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn numbers(count: u64) -> CowMap<u64, String> {
        (0..count).map(|number| (number, number.to_string())).collect()
    }

    /// Counts the chunks that two maps share.
    fn shared(one: &CowMap<u64, String>, other: &CowMap<u64, String>) -> usize {
        let same =
            one.chunks.iter().zip(&other.chunks).filter(|(one, other)| Arc::ptr_eq(&one.entries, &other.entries));
        same.count()
    }

    #[test]
    fn ascending_keys_fill_their_chunks() {
        let map = numbers(6_400);
        assert_eq!((map.len(), map.chunks.len()), (6_400, 100));
    }

    #[test]
    fn a_copy_shares_unchanged_chunks() {
        let mut map = numbers(6_400);
        let copy = map.clone();
        assert_eq!(shared(&map, &copy), 100);

        map.get_mut(&70).expect("it is there").push('!');
        map.remove(&6_399);
        map.insert(6_400, "new".to_owned());
        assert_eq!(shared(&map, &copy), 98);
        assert!(std::ptr::eq(&raw const map[&71], &raw const copy[&71]), "its neighbour was copied");
        assert_eq!((map[&70].as_str(), copy[&70].as_str()), ("70!", "70"));
        assert!(copy.contains_key(&6_399) && !copy.contains_key(&6_400) && copy.len() == 6_400);
    }

    #[test]
    fn chunks_merge_after_removals() {
        let mut map = numbers(6_400);
        map.retain(|number, _| number % 64 == 0);
        assert_eq!(map.len(), 100);
        assert!(map.chunks.len() <= 12, "{} chunks", map.chunks.len());
        map.retain(|_, _| false);
        assert!(map.is_empty() && map.chunks.is_empty());
    }

    #[derive(Clone, Debug)]
    enum Op {
        Insert(u16, u32),
        Change(u16, u32),
        Remove(u16),
        Copy,
    }

    fn op() -> impl Strategy<Value = Op> {
        let key = || 0..600_u16;
        prop_oneof![
            6 => (key(), any::<u32>()).prop_map(|(key, value)| Op::Insert(key, value)),
            2 => (key(), any::<u32>()).prop_map(|(key, value)| Op::Change(key, value)),
            5 => key().prop_map(Op::Remove),
            1 => Just(Op::Copy),
        ]
    }

    fn check(map: &CowMap<u16, u32>, model: &BTreeMap<u16, u32>) {
        assert!(map.iter().eq(model.iter()) && map.len() == model.len());
        let full = map.chunks.iter().all(|chunk| (1..=MAX_CHUNK).contains(&chunk.entries.len()));
        let first = map.chunks.iter().all(|chunk| chunk.first == chunk.entries[0].0);
        assert!(full && first, "{map:?}");
        for from in [0, 63, 64, 300, 599] {
            assert!(map.range(from..).eq(model.range(from..)));
            assert!(map.range(from..=from + 90).eq(model.range(from..=from + 90)));
            let after = (Bound::Excluded(from), Bound::Excluded(from + 90));
            assert!(map.range(after).eq(model.range(after)));
        }
    }

    proptest! {
        #[test]
        fn behaves_like_btree_map_and_copies_stay_unchanged(ops in prop::collection::vec(op(), 0..2_000)) {
            let (mut map, mut model) = (CowMap::new(), BTreeMap::new());
            let mut copies = Vec::new();
            for op in ops {
                match op {
                    Op::Insert(key, value) => {
                        assert_eq!(map.insert(key, value).map(|held| *held), model.insert(key, value));
                    }
                    Op::Change(key, value) => {
                        map.get_mut(&key).into_iter().chain(model.get_mut(&key)).for_each(|held| *held = value);
                    }
                    Op::Remove(key) => {
                        assert_eq!(map.remove(&key).map(|held| *held), model.remove(&key));
                    }
                    Op::Copy => copies.push((map.clone(), model.clone())),
                }
            }
            copies.push((map, model));
            for (map, model) in &copies {
                check(map, model);
                let json = serde_json::to_string(map).expect("JSON");
                assert_eq!(json, serde_json::to_string(model).expect("JSON"));
                assert_eq!(&serde_json::from_str::<CowMap<u16, u32>>(&json).expect("a map"), map);
            }
        }
    }
}
