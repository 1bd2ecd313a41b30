//! Hashes of records and of the nodes of their Merkle tree.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// What goes before the bytes of a leaf and of an inner node (RFC 9162, section 2.1.1), so that neither passes for the
/// other.
const LEAF: u8 = 0;
const NODE: u8 = 1;

/// A SHA-256 hash; in text, hex.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Hash([u8; Hash::BYTES]);

/// The text is not a hash.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a SHA-256 hash: 64 hexadecimal digits are needed")]
pub struct NotAHash(pub String);

impl Hash {
    /// Bytes of a hash.
    pub const BYTES: usize = 32;

    /// The hash with these bytes.
    #[must_use]
    pub const fn of_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// Reads 64 hexadecimal digits.
    ///
    /// # Errors
    /// [`NotAHash`].
    pub fn parse(text: &str) -> Result<Self, NotAHash> {
        let mut bytes = [0; Self::BYTES];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| NotAHash(text.to_owned()))?;
        Ok(Self(bytes))
    }

    /// The hash of a record, from its line.
    #[must_use]
    pub fn of_leaf(line: &[u8]) -> Self {
        Self(Sha256::new().chain_update([LEAF]).chain_update(line).finalize().into())
    }

    /// The hash of an inner node, from its children.
    #[must_use]
    pub fn of_node(left: &Self, right: &Self) -> Self {
        Self(Sha256::new().chain_update([NODE]).chain_update(left.0).chain_update(right.0).finalize().into())
    }

    /// The root of the empty tree.
    #[must_use]
    pub fn of_nothing() -> Self {
        Self(Sha256::digest([]).into())
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Hash> for String {
    fn from(hash: Hash) -> Self {
        hash.to_string()
    }
}

impl TryFrom<String> for Hash {
    type Error = NotAHash;

    fn try_from(text: String) -> Result<Self, NotAHash> {
        Self::parse(&text)
    }
}
