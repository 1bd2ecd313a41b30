//! The Merkle tree over the hashes of records (RFC 9162, section 2.1).

use crate::hash::Hash;

/// The perfect subtrees of a log.
pub trait Subtrees {
    /// Why a subtree cannot be read.
    type Error;

    /// Root of the subtree over the 2^`level` records from `index` × 2^`level` on; `None` if one of them is missing.
    ///
    /// # Errors
    /// It cannot be read.
    fn subtree(&self, level: u8, index: u64) -> Result<Option<Hash>, Self::Error>;
}

/// A tree in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryTree {
    /// Roots of perfect subtrees, by level.
    levels: Vec<Vec<Hash>>,
}

impl MemoryTree {
    /// Appends a record by its hash.
    pub fn append(&mut self, record: Hash) {
        let mut carried = record;
        for level in 0.. {
            if self.levels.len() == level {
                self.levels.push(Vec::new());
            }
            let Some(nodes) = self.levels.get_mut(level) else { return };
            nodes.push(carried);
            match nodes.as_slice() {
                [.., left, right] if nodes.len() % 2 == 0 => carried = Hash::of_node(left, right),
                _ => return,
            }
        }
    }

    /// Number of records.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.levels.first().map_or(0, |leaves| leaves.len() as u64)
    }

    /// Hash of a record.
    #[must_use]
    pub fn record(&self, index: u64) -> Option<Hash> {
        self.levels.first()?.get(usize::try_from(index).ok()?).copied()
    }
}

impl Subtrees for MemoryTree {
    type Error = std::convert::Infallible;

    fn subtree(&self, level: u8, index: u64) -> Result<Option<Hash>, Self::Error> {
        let nodes = self.levels.get(usize::from(level));
        Ok(nodes.and_then(|nodes| nodes.get(usize::try_from(index).ok()?).copied()))
    }
}

/// Root of the tree over the first `size` records; `None` if some are missing.
///
/// # Errors
/// Those of the tree.
pub fn root_of<T: Subtrees>(tree: &T, size: u64) -> Result<Option<Hash>, T::Error> {
    if size == 0 { Ok(Some(Hash::of_nothing())) } else { hash_of(tree, 0, size) }
}

/// Proof that the tree over the first `to` records continues the one over the first `from` (RFC 9162, section 2.1.4.1).
/// At most 64 hashes; `None` if records are missing or `from` exceeds `to`.
///
/// # Errors
/// Those of the tree.
pub fn consistency_proof<T: Subtrees>(tree: &T, from: u64, to: u64) -> Result<Option<Vec<Hash>>, T::Error> {
    if from > to {
        return Ok(None);
    }
    let mut proof = Vec::new();
    if from == 0 || from == to {
        return Ok(Some(proof));
    }
    let (mut from, mut start, mut len, mut is_old_root) = (from, 0, to, true);
    while from < len {
        let half = largest_power_below(len);
        let other = if from <= half {
            let right = hash_of(tree, start + half, len - half)?;
            len = half;
            right
        } else {
            let left = hash_of(tree, start, half)?;
            (from, start, len, is_old_root) = (from - half, start + half, len - half, false);
            left
        };
        let Some(other) = other else { return Ok(None) };
        proof.push(other);
    }
    if !is_old_root {
        let Some(whole) = hash_of(tree, start, len)? else { return Ok(None) };
        proof.push(whole);
    }
    proof.reverse();
    Ok(Some(proof))
}

/// Hash of the subtree over `len` records from `start` on.
fn hash_of<T: Subtrees>(tree: &T, start: u64, len: u64) -> Result<Option<Hash>, T::Error> {
    if len.is_power_of_two() {
        let level = len.trailing_zeros();
        return tree.subtree(u8::try_from(level).unwrap_or(u8::MAX), start >> level);
    }
    let half = largest_power_below(len);
    let Some(left) = hash_of(tree, start, half)? else { return Ok(None) };
    let Some(right) = hash_of(tree, start + half, len - half)? else { return Ok(None) };
    Ok(Some(Hash::of_node(&left, &right)))
}

/// The largest power of two below `len`, which is above 1.
const fn largest_power_below(len: u64) -> u64 {
    1 << (63 - (len - 1).leading_zeros())
}
