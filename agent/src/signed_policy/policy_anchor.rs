//! The trusted commit, kept in the store, and its documents, kept in a file beside it.
//!
//! The documents can be shown again by any broker and checked by the commit's id, so they are no part of the copy that a
//! standby continues with: that has room for small things only.

use std::collections::BTreeSet;
use std::path::Path;

use comity_agent_state::state_copy::SIGNED_POLICY_FILE;
use comity_agent_state::store::{Store, StoreError};
use comity_policy::{Bundle, BundleSource};
use comity_provenance::{ObjectId, PolicyFolder};
use comity_runtime::atomic_file::{self, FileError};
use serde::{Deserialize, Serialize};

/// Name of the blob with the anchor, as JSON.
const POLICY_ANCHOR_KEY: &str = "signed-policy";
/// Bytes of that file: a bundle of the largest size, quoted as JSON.
const MAX_DOCUMENTS_BYTES: u64 = 16 << 20;

/// A commit that this agent trusts, because of its id or by the signatures after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PolicyAnchor {
    /// The commit.
    pub(crate) commit: ObjectId,
    /// Folder of the repository that has the policy. No signature names it, so it never changes.
    pub(crate) folder: PolicyFolder,
    /// Names of institutions that left the federation since the first trusted commit.
    pub(crate) taken_names: BTreeSet<String>,
    /// The commit that the configuration pinned; `None` for trust on first use.
    pub(crate) pinned: Option<ObjectId>,
}

#[derive(Serialize, Deserialize)]
struct KeptDocuments {
    commit: ObjectId,
    source: BundleSource,
}

/// The kept commit cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum AnchorError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It has another form. An agent that went on without it would trust whatever a broker shows next.
    #[error(
        "the kept commit of the signed policy cannot be read: {0}; set signedPolicy.commit to a commit that you have \
         checked with the maintainers (docs/gitops.md)"
    )]
    Unreadable(#[from] serde_json::Error),
}

/// The anchor; `None` before there is one.
///
/// # Errors
/// [`AnchorError`].
pub(crate) fn anchor(store: &Store) -> Result<Option<PolicyAnchor>, AnchorError> {
    let kept = store.kept(POLICY_ANCHOR_KEY)?.unwrap_or_default();
    if kept.is_empty() {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&kept)?))
}

/// Keeps an anchor, and returns once it is on disk.
///
/// # Errors
/// [`StoreError`].
pub(crate) async fn keep(store: &Store, anchor: &PolicyAnchor) -> Result<(), StoreError> {
    store.keep(POLICY_ANCHOR_KEY, serde_json::to_vec(anchor).unwrap_or_default()).await
}

/// Forgets the anchor: at the next start the configuration or the first signed policy is trusted.
///
/// # Errors
/// [`StoreError`].
pub(crate) async fn forget(store: &Store) -> Result<(), StoreError> {
    store.keep(POLICY_ANCHOR_KEY, Vec::new()).await
}

/// Keeps the documents of a commit.
///
/// # Errors
/// [`FileError`].
pub(crate) fn keep_documents(state: &Path, commit: ObjectId, source: &BundleSource) -> Result<(), FileError> {
    let kept = KeptDocuments { commit, source: source.clone() };
    let bytes = serde_json::to_vec(&kept).unwrap_or_default();
    atomic_file::write(&state.join(SIGNED_POLICY_FILE), &bytes, atomic_file::PRIVATE)
}

/// The documents of a commit, if they are kept.
pub(crate) fn documents(state: &Path, commit: ObjectId) -> Option<Bundle> {
    let bytes = atomic_file::read_bounded(&state.join(SIGNED_POLICY_FILE), MAX_DOCUMENTS_BYTES).ok()?;
    let kept: KeptDocuments = serde_json::from_slice(&bytes).ok()?;
    if kept.commit != commit {
        return None;
    }
    // Admitted already: a newer release must not refuse it.
    Bundle::compile_replicated(&kept.source).ok()
}
