//! Hands over leadership while the disk hangs, because every write waits for it.

use std::sync::Weak;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::group::Inner;
use crate::group::elections::HAND_OVER_INTERVAL;

/// Threshold of a hanging write. Good disks sync in 1 ms, bad ones in 100 ms.
const SLOW: Duration = Duration::from_secs(1);
/// Check interval.
const DISK_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Runs until the group stops or its last handle is gone.
pub(crate) async fn run(group: Weak<Inner>, stop: CancellationToken) {
    let mut handed_over: Option<Instant> = None;
    let mut slow = false;
    loop {
        tokio::select! {
            () = tokio::time::sleep(DISK_CHECK_INTERVAL) => {}
            () = stop.cancelled() => return,
        }
        let Some(inner) = group.upgrade() else { return };
        let stalled = inner.log.disk().stalled_for();
        if stalled < SLOW {
            if std::mem::take(&mut slow) {
                info!("the disk writes again");
            }
            continue;
        }
        let leads = inner.leadership.borrow().is_leader();
        if !std::mem::replace(&mut slow, true) {
            warn!(stalled_ms = stalled.as_millis(), leads, "the disk under the log hangs: a write is not on disk yet");
        }
        if leads && handed_over.is_none_or(|then| then.elapsed() >= HAND_OVER_INTERVAL) {
            handed_over = Some(Instant::now());
            warn!("leadership is handed over because of the disk");
            inner.hand_over().await;
        }
    }
}
