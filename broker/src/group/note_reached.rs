//! Records every 2 s how far the log has reached on disk.

use std::sync::Weak;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver as _;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::group::Inner;
use crate::storage::LogPosition;

/// Each record costs an fsync; entries since the last one are unguarded.
const REACHED_WRITE_INTERVAL: Duration = Duration::from_secs(2);

/// Runs until the group stops or its last handle is gone.
pub(crate) async fn follow(group: Weak<Inner>, stop: CancellationToken) {
    let mut noted = None;
    loop {
        tokio::select! {
            () = tokio::time::sleep(REACHED_WRITE_INTERVAL) => {}
            () = stop.cancelled() => return,
        }
        let Some(inner) = group.upgrade() else { return };
        // Applied entries are committed, so that they are never cut off.
        let applied = inner.raft.data_metrics().borrow_watched().last_applied;
        let flushed = inner.flushed();
        let Some(place) = applied.map(|id| LogPosition { term: id.leader_id.term, index: id.index }).min(flushed)
        else {
            continue;
        };
        if noted == Some(place) {
            continue;
        }
        let log = inner.log.clone();
        match tokio::task::spawn_blocking(move || log.note_reached(place)).await {
            Ok(Ok(())) => noted = Some(place),
            Ok(Err(error)) => warn!(%error, "how far the log has reached is not noted"),
            Err(_) => return,
        }
    }
}

impl Inner {
    /// How far this broker's log is on disk.
    fn flushed(&self) -> Option<LogPosition> {
        let progress = self.raft.watch_log_progress();
        let flushed = progress.get()?;
        let last = flushed.last_log_id?;
        Some(LogPosition { term: last.leader_id.term, index: last.index })
    }
}
