//! Checks that one history continues another (RFC 9162, section 2.1.4.2).

use crate::hash::Hash;
use crate::head::TreeHead;

/// A history does not continue another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Inconsistent {
    /// It has fewer records.
    #[error("it ends at record {now}, and {before} records were seen before")]
    Shorter {
        /// Records seen before.
        before: u64,
        /// Records now.
        now: u64,
    },
    /// The proof does not lead to both roots.
    #[error("its first {0} records are not those seen before")]
    Rewritten(u64),
}

/// Checks that `now` continues `before`.
///
/// # Errors
/// [`Inconsistent`].
pub fn verify_consistency(before: &TreeHead, now: &TreeHead, proof: &[Hash]) -> Result<(), Inconsistent> {
    let rewritten = Err(Inconsistent::Rewritten(before.size));
    if now.size < before.size {
        return Err(Inconsistent::Shorter { before: before.size, now: now.size });
    }
    if before.size == 0 {
        return if before.root == Hash::of_nothing() && proof.is_empty() { Ok(()) } else { rewritten };
    }
    if now.size == before.size {
        return if now.root == before.root && proof.is_empty() { Ok(()) } else { rewritten };
    }
    let mut path = before.size.is_power_of_two().then_some(before.root).into_iter().chain(proof.iter().copied());
    let Some(first) = path.next() else { return rewritten };
    let (mut node, mut last) = (before.size - 1, now.size - 1);
    while node & 1 == 1 {
        (node, last) = (node >> 1, last >> 1);
    }
    let (mut old_root, mut new_root) = (first, first);
    for hash in path {
        if last == 0 {
            return rewritten;
        }
        if node & 1 == 1 || node == last {
            old_root = Hash::of_node(&hash, &old_root);
            new_root = Hash::of_node(&hash, &new_root);
            while node & 1 == 0 && node != 0 {
                (node, last) = (node >> 1, last >> 1);
            }
        } else {
            new_root = Hash::of_node(&new_root, &hash);
        }
        (node, last) = (node >> 1, last >> 1);
    }
    if old_root == before.root && new_root == now.root && last == 0 { Ok(()) } else { rewritten }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::head::Head;
    use crate::tree::{MemoryTree, consistency_proof, root_of};

    /// Leaves and roots of the reference implementation of RFC 6962 (google/certificate-transparency).
    const LEAVES: [&str; 8] =
        ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"];
    const ROOTS: [&str; 8] = [
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
        "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
        "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
        "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
        "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
    ];

    fn parse(text: &str) -> Hash {
        Hash::parse(text).expect("a hash")
    }

    fn head_at(tree: &MemoryTree, size: u64) -> TreeHead {
        let Ok(root) = root_of(tree, size);
        TreeHead { size, root: root.expect("all records are there") }
    }

    fn proof(tree: &MemoryTree, from: u64, to: u64) -> Vec<Hash> {
        let Ok(proof) = consistency_proof(tree, from, to);
        proof.expect("all records are there")
    }

    #[test]
    fn roots_and_proofs_are_those_of_the_reference() {
        let (mut tree, mut head) = (MemoryTree::default(), Head::default());
        assert_eq!(head.tree_head(), TreeHead { size: 0, root: Hash::of_nothing() });
        for (size, (leaf, root)) in (1..).zip(LEAVES.into_iter().zip(ROOTS)) {
            let record = Hash::of_leaf(&hex::decode(leaf).expect("hex"));
            tree.append(record);
            head.append(record);
            assert_eq!(head.tree_head(), TreeHead { size, root: parse(root) });
            assert_eq!(head.last(), record);
        }
        let expected: [(u64, u64, &[&str]); 3] = [
            (1, 1, &[]),
            (
                1,
                8,
                &[
                    "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
                    "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
                    "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
                ],
            ),
            (
                6,
                8,
                &[
                    "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
                    "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
                    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
                ],
            ),
        ];
        for (from, to, hashes) in expected {
            let hashes: Vec<Hash> = hashes.iter().map(|text| parse(text)).collect();
            assert_eq!(proof(&tree, from, to), hashes, "from {from} to {to}");
        }
    }

    proptest! {
        #[test]
        fn every_history_proves_that_it_continues_its_beginning(size in 1..200_u64, beginning in 0..200_u64) {
            let mut tree = MemoryTree::default();
            (0..size).for_each(|record| tree.append(Hash::of_leaf(&record.to_be_bytes())));
            let beginning = beginning % (size + 1);
            let (before, now) = (head_at(&tree, beginning), head_at(&tree, size));
            let proof = proof(&tree, beginning, size);
            prop_assert!(proof.len() <= 64);
            prop_assert_eq!(verify_consistency(&before, &now, &proof), Ok(()));
        }

        #[test]
        fn no_other_history_continues_it(
            size in 2..100_u64, beginning in 1..100_u64, edited in 0..100_u64, damaged in 0..8_usize,
        ) {
            let beginning = 1 + beginning % (size - 1);
            let edited = edited % beginning;
            let (mut tree, mut other) = (MemoryTree::default(), MemoryTree::default());
            for record in 0..size {
                tree.append(Hash::of_leaf(&record.to_be_bytes()));
                other.append(Hash::of_leaf(&(record + u64::from(record == edited) * 1_000).to_be_bytes()));
            }
            let (before, now) = (head_at(&tree, beginning), head_at(&other, size));
            let rewritten = Err(Inconsistent::Rewritten(beginning));
            prop_assert_eq!(verify_consistency(&before, &now, &proof(&other, beginning, size)), rewritten);
            prop_assert_eq!(verify_consistency(&before, &now, &proof(&tree, beginning, size)), rewritten);
            prop_assert_eq!(verify_consistency(&before, &now, &[]), rewritten);
            // A true history with a damaged proof shows nothing either.
            let mut damaged_proof = proof(&tree, beginning, size);
            let at = damaged % damaged_proof.len();
            damaged_proof[at] = Hash::default();
            prop_assert_eq!(verify_consistency(&before, &head_at(&tree, size), &damaged_proof), rewritten);
            let shorter = Inconsistent::Shorter { before: size, now: beginning };
            prop_assert_eq!(verify_consistency(&head_at(&tree, size), &before, &[]), Err(shorter));
        }
    }
}
