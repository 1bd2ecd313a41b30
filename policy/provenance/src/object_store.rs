//! Where Git objects come from.

use crate::object_id::ObjectId;
use crate::object_kind::ObjectKind;

/// Why an object cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The repository lacks it.
    #[error("the repository lacks the {kind} {id}; is it a shallow clone?", kind = .kind.as_str())]
    Missing {
        /// The wanted kind.
        kind: ObjectKind,
        /// The wanted object.
        id: ObjectId,
    },
    /// It exceeds a bound.
    #[error("the {kind} {id} has more than {limit} bytes", kind = .kind.as_str())]
    TooLarge {
        /// The wanted kind.
        kind: ObjectKind,
        /// The wanted object.
        id: ObjectId,
        /// The bound.
        limit: usize,
    },
    /// It is not what its id says, or not well-formed.
    #[error("the {kind} {id} is corrupt: {reason}", kind = .kind.as_str())]
    Corrupt {
        /// The wanted kind.
        kind: ObjectKind,
        /// The wanted object.
        id: ObjectId,
        /// What is wrong with it.
        reason: String,
    },
    /// The repository cannot be read.
    #[error("cannot read the repository: {0}")]
    Unreadable(String),
}

/// A repository. What it returns need not be trusted: the reader compares it with the id.
pub trait ObjectStore {
    /// The content of an object of at most `limit` bytes.
    ///
    /// # Errors
    /// [`StoreError`].
    fn object(&self, id: ObjectId, kind: ObjectKind, limit: usize) -> Result<Vec<u8>, StoreError>;
}

/// The content of an object, which has this id.
pub(crate) fn read(
    store: &dyn ObjectStore,
    id: ObjectId,
    kind: ObjectKind,
    limit: usize,
) -> Result<Vec<u8>, StoreError> {
    let content = store.object(id, kind, limit)?;
    if content.len() > limit {
        return Err(StoreError::TooLarge { kind, id, limit });
    }
    if ObjectId::of(kind, &content) != Some(id) {
        let reason = "its content has another id".to_owned();
        return Err(StoreError::Corrupt { kind, id, reason });
    }
    Ok(content)
}
