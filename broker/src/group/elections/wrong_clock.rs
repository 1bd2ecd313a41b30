//! Hands over leadership while this broker's clock is wrong: it refuses its peers' new certificates, and would lose its
//! connections one by one.

use std::sync::Weak;
use std::time::{Duration, Instant};

use comity_runtime::tls::RefusedForTime;
use openraft::async_runtime::WatchReceiver as _;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::group::elections::HAND_OVER_INTERVAL;
use crate::group::{Group, Inner};

/// Check interval.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Peers try again several times within this.
const LATELY: Duration = Duration::from_secs(5);

impl Group {
    /// Hands over leadership while the Raft port refuses most other voters because of their certificates' validity
    /// times: then this machine's clock is wrong.
    pub fn hand_over_while_refusing(&self, refused: RefusedForTime) {
        let (weak, stop) = (std::sync::Arc::downgrade(&self.inner), self.inner.stop.clone());
        self.inner.tasks.spawn(run(weak, refused, stop));
    }
}

async fn run(group: Weak<Inner>, refused: RefusedForTime, stop: CancellationToken) {
    let mut handed_over: Option<Instant> = None;
    loop {
        tokio::select! {
            () = tokio::time::sleep(CLOCK_CHECK_INTERVAL) => {}
            () = stop.cancelled() => return,
        }
        let Some(inner) = group.upgrade() else { return };
        let recent = handed_over.is_some_and(|then| then.elapsed() < HAND_OVER_INTERVAL);
        if recent || !inner.leadership.borrow().is_leader() || !inner.refuses_most(&refused) {
            continue;
        }
        handed_over = Some(Instant::now());
        warn!(
            "leadership is handed over: this broker refuses the certificates of most others as not valid at its time; \
             compare this machine's clock with theirs and set it"
        );
        inner.hand_over().await;
    }
}

impl Inner {
    fn refuses_most(&self, refused: &RefusedForTime) -> bool {
        let refused = refused.within(LATELY);
        let refused: Vec<u64> = refused.iter().filter_map(comity_runtime::SpiffeId::as_broker).collect();
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let others = metrics.membership_config.voter_ids().filter(|id| *id != self.config.id);
        let (others, refused) =
            others.fold((0, 0), |(others, no), id| (others + 1, no + usize::from(refused.contains(&id))));
        refused * 2 > others
    }
}
