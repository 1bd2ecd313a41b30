//! Work that blocks a thread: files, packs and hashes.

use crate::policy_source::pull_error::PullError;

/// Runs it on a thread for such work.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PullError> + Send + 'static,
) -> Result<T, PullError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err(PullError::new("reading the policy's source failed", "look at the leader's log")))
}
