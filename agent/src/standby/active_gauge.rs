//! The metric that says which replica is active.

use comity_agent_fabric::Fence;
use prometheus::IntGauge;
use tokio_util::sync::CancellationToken;

/// Shows 1 while the fence is open, and 0 while it is closed, until stopped. A replica that was replaced, or that does
/// not reach the API server, must not count as active beside its successor.
pub(super) async fn show(fence: Fence, active: IntGauge, stop: CancellationToken) {
    let follow = async {
        loop {
            active.set(1);
            fence.shut().await;
            active.set(0);
            fence.opened().await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = follow => {}
    }
    // The process no longer does anything.
    active.set(0);
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::time::Duration;

    use comity_agent_model::boot_time::BootTime;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    async fn shows(active: &IntGauge, value: i64) {
        let waits = async {
            while active.get() != value {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), waits).await.unwrap();
    }

    #[tokio::test]
    async fn a_replica_counts_as_active_only_while_its_fence_is_open() {
        let fence = Fence::closed();
        fence.extend_until(BootTime::now() + LONG);
        let (active, stop) = (IntGauge::new("active", "Whether it is active.").unwrap(), CancellationToken::new());
        let task = tokio::spawn(show(fence.clone(), active.clone(), stop.clone()));
        shows(&active, 1).await;
        fence.close();
        shows(&active, 0).await;
        fence.extend_until(BootTime::now() + Duration::from_secs(2));
        shows(&active, 1).await;
        // At the deadline, without anybody who closes it.
        shows(&active, 0).await;
        fence.extend_until(BootTime::now() + LONG);
        shows(&active, 1).await;
        stop.cancel();
        task.await.unwrap();
        assert_eq!(active.get(), 0);
    }
}
