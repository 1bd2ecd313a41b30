//! A line of an exported log.

use serde::{Deserialize, Serialize};

use crate::hash::Hash;
use crate::record::{AuditRecord, SealedRecord};

/// A record, or the hash of one that the reader may not see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A record with its line.
    Record(Box<AuditRecord>, SealedRecord),
    /// A withheld record.
    Withheld {
        /// Its number.
        index: u64,
        /// Its hash.
        hash: Hash,
    },
}

/// The form of a withheld record.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WithheldLine {
    index: u64,
    hash: Hash,
}

/// A line is neither a record nor a hash.
#[derive(Debug, thiserror::Error)]
#[error("it is no record of an audit log: {0}")]
pub struct UnreadableEntry(#[from] serde_json::Error);

impl Entry {
    /// Reads a line.
    ///
    /// # Errors
    /// [`UnreadableEntry`].
    pub fn parse(line: &str) -> Result<Self, UnreadableEntry> {
        if let Ok(WithheldLine { index, hash }) = serde_json::from_str(line) {
            return Ok(Self::Withheld { index, hash });
        }
        let record: AuditRecord = serde_json::from_str(line)?;
        let hash = Hash::of_leaf(line.as_bytes());
        let sealed = SealedRecord { index: record.index, hash, line: line.to_owned() };
        Ok(Self::Record(Box::new(record), sealed))
    }

    /// The line.
    ///
    /// # Errors
    /// Never, for a number and a hash.
    pub fn line(&self) -> Result<String, UnreadableEntry> {
        match self {
            Self::Record(_, sealed) => Ok(sealed.line.clone()),
            Self::Withheld { index, hash } => Ok(serde_json::to_string(&WithheldLine { index: *index, hash: *hash })?),
        }
    }

    /// Its number.
    #[must_use]
    pub fn index(&self) -> u64 {
        match self {
            Self::Record(record, _) => record.index,
            Self::Withheld { index, .. } => *index,
        }
    }

    /// Its hash.
    #[must_use]
    pub fn hash(&self) -> Hash {
        match self {
            Self::Record(_, sealed) => sealed.hash,
            Self::Withheld { hash, .. } => *hash,
        }
    }
}
