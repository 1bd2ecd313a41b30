//! The end of the log: what the next record continues.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::hash::Hash;

/// Size and root of the log: names one history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeHead {
    /// Number of records.
    pub size: u64,
    /// Root of their Merkle tree.
    pub root: Hash,
}

impl fmt::Display for TreeHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.size, self.root)
    }
}

impl FromStr for TreeHead {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || format!("{text:?} is not SIZE:ROOT, a number and 64 hexadecimal digits");
        let (size, root) = text.split_once(':').ok_or_else(wanted)?;
        let size = size.parse().map_err(|_| wanted())?;
        Ok(Self { size, root: Hash::parse(root).map_err(|_| wanted())? })
    }
}

/// What a broker's state holds of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Number of records.
    size: u64,
    /// Hash of the last record; zeros before the first.
    last: Hash,
    /// Roots of the perfect subtrees that make up the tree, the largest first: one for each 1 in `size`.
    peaks: Vec<Hash>,
}

impl Head {
    /// Number of records.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Hash of the last record, which the next one names; zeros before the first.
    #[must_use]
    pub const fn last(&self) -> Hash {
        self.last
    }

    /// Appends a record by its hash.
    pub fn append(&mut self, record: Hash) {
        self.last = record;
        let (mut carried, mut size) = (record, self.size);
        while size & 1 == 1 {
            let Some(left) = self.peaks.pop() else { break };
            carried = Hash::of_node(&left, &carried);
            size >>= 1;
        }
        self.peaks.push(carried);
        self.size += 1;
    }

    /// Size and root.
    #[must_use]
    pub fn tree_head(&self) -> TreeHead {
        let mut peaks = self.peaks.iter().rev();
        let root = peaks
            .next()
            .map_or_else(Hash::of_nothing, |smallest| peaks.fold(*smallest, |right, left| Hash::of_node(left, &right)));
        TreeHead { size: self.size, root }
    }
}
