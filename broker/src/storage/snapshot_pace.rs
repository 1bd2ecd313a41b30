//! Limits the share of time spent on snapshots: each copies the whole state, so a large, busy federation would
//! otherwise do little else.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The pause is this many times as long as the snapshot, so snapshots take at most 1/5 of the time.
const SNAPSHOT_PAUSE_FACTOR: u32 = 4;
/// Bounds the pause, and so the log to apply again after a restart.
const MAX_SNAPSHOT_PAUSE: Duration = Duration::from_secs(20);

/// When the next snapshot may begin. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct SnapshotPace {
    free_at: Arc<Mutex<Option<Instant>>>,
}

impl SnapshotPace {
    /// Waits until there may be another one.
    pub(super) async fn wait(&self) {
        let free_at = *self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(free_at) = free_at {
            tokio::time::sleep_until(free_at).await;
        }
    }

    /// Records a snapshot that ended now and took `took`.
    pub(super) fn made(&self, took: Duration) {
        let pause = took.saturating_mul(SNAPSHOT_PAUSE_FACTOR).min(MAX_SNAPSHOT_PAUSE);
        *self.free_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn after_each_there_is_a_pause() {
        let (pace, began) = (SnapshotPace::default(), Instant::now());
        pace.clone().made(Duration::from_millis(10));
        pace.wait().await;
        assert!(began.elapsed() >= Duration::from_millis(40));
    }

    #[test]
    fn no_pause_is_for_long() {
        let pace = SnapshotPace::default();
        pace.made(Duration::from_secs(3_600));
        let free_at = pace.free_at.lock().unwrap_or_else(PoisonError::into_inner).expect("there was one");
        assert!(free_at <= Instant::now() + MAX_SNAPSHOT_PAUSE);
    }
}
