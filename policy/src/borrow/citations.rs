//! The documents behind an allowance.

use crate::documents::DocRef;

/// The documents behind an allowance.
pub(super) enum Citations {
    Collected(Vec<DocRef>),
    /// The caller does not need them.
    Skipped,
}

impl Citations {
    pub(super) fn push(&mut self, document: impl FnOnce() -> DocRef) {
        if let Self::Collected(documents) = self {
            documents.push(document());
        }
    }

    pub(super) fn into_documents(self) -> Vec<DocRef> {
        match self {
            Self::Collected(documents) => documents,
            Self::Skipped => Vec::new(),
        }
    }
}
