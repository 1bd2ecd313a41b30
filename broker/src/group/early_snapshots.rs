//! Makes snapshots of a young log, so that a loss of the log leaves something: the first regular one is thousands of
//! entries away.

use std::sync::Weak;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver as _;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::group::Inner;

/// Entries before the first one. Each further one is made when the log has doubled.
const FIRST_SNAPSHOT_AFTER: u64 = 64;
const EARLY_SNAPSHOT_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Runs until regular snapshots come as soon, the group stops, or its last handle is gone.
pub(crate) async fn make(group: Weak<Inner>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(EARLY_SNAPSHOT_CHECK_INTERVAL) => {}
            () = stop.cancelled() => return,
        }
        let Some(inner) = group.upgrade() else { return };
        let (applied, covered) = {
            let metrics = inner.raft.data_metrics();
            let metrics = metrics.borrow_watched();
            (metrics.last_applied.map_or(0, |id| id.index), metrics.snapshot.map_or(0, |id| id.index))
        };
        if next_after(covered) >= inner.config.snapshot_every {
            return;
        }
        if applied >= next_after(covered)
            && let Err(error) = inner.raft.trigger().snapshot().await
        {
            warn!(%error, "no early snapshot is made");
            return;
        }
    }
}

fn next_after(covered: u64) -> u64 {
    covered.saturating_mul(2).max(FIRST_SNAPSHOT_AFTER)
}
