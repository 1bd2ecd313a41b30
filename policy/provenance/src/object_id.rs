//! The SHA-1 of a Git object.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::object_kind::ObjectKind;

/// Bytes of a SHA-1.
const ID_BYTES: usize = 20;

/// The id of a Git object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ObjectId([u8; ID_BYTES]);

/// Text that is no id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the full id of a commit: 40 hexadecimal digits, as `git rev-parse HEAD` prints them")]
pub struct InvalidObjectId(pub String);

impl ObjectId {
    /// The id of an object with this content; `None` for content that was made to collide with another one's.
    #[must_use]
    pub fn of(kind: ObjectKind, content: &[u8]) -> Option<Self> {
        let mut hasher = sha1dc::Hasher::new();
        hasher.update(format!("{} {}\0", kind.as_str(), content.len()).as_bytes());
        hasher.update(content);
        let digest = hasher.finalize().ok()?;
        Self::from_bytes(digest.as_ref())
    }

    /// An id in binary, as trees have it.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// The id in binary.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl FromStr for ObjectId {
    type Err = InvalidObjectId;

    fn from_str(text: &str) -> Result<Self, InvalidObjectId> {
        let bytes = hex::decode(text).ok().and_then(|bytes| Self::from_bytes(&bytes));
        let shown: String = text.chars().take(ID_BYTES * 2 + 1).collect();
        bytes.ok_or(InvalidObjectId(shown))
    }
}

impl TryFrom<String> for ObjectId {
    type Error = InvalidObjectId;

    fn try_from(text: String) -> Result<Self, InvalidObjectId> {
        text.parse()
    }
}

impl From<ObjectId> for String {
    fn from(id: ObjectId) -> Self {
        id.to_string()
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_git() {
        let empty = ObjectId::of(ObjectKind::Tree, b"").map(|id| id.to_string());
        assert_eq!(empty.as_deref(), Some("4b825dc642cb6eb9a060e54bf8d69288fbee4904"));
        let blob = ObjectId::of(ObjectKind::Blob, b"hello\n").map(|id| id.to_string());
        assert_eq!(blob.as_deref(), Some("ce013625030ba8dba906f756967f9e9ca394464a"));
    }

    #[test]
    fn only_full_ids_are_read() {
        for bad in ["", "4b825dc", &"g".repeat(40), &"0".repeat(64)] {
            assert!(bad.parse::<ObjectId>().is_err(), "{bad}");
        }
    }
}
