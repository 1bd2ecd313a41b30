//! When each agent was last heard.
//!
//! Followers report to the leader in one batch per second. The log holds none of this: a new leader grants every agent
//! a grace period.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use comity_runtime::clock::Clock;
use comity_types::ClusterId;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::group::{Group, Inner, Leadership};

/// Between two reports to the leader.
const INTERVAL: Duration = Duration::from_secs(1);
/// Clusters in one report.
pub(crate) const MAX_CLUSTERS_PER_REPORT: usize = 20_000;
/// Clusters remembered, far more than a federation has; further ones are ignored.
const MAX_CLUSTERS: usize = 100_000;

/// Shared by all handles of a group.
#[derive(Clone, Default)]
pub(crate) struct Heard(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    leading: bool,
    /// While leading: when each cluster was last heard, by [`Clock::elapsed`].
    last: BTreeMap<ClusterId, Duration>,
    /// While following: clusters not yet reported to the leader.
    pending: BTreeSet<ClusterId>,
}

impl Heard {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_leading(&self, leading: bool) {
        let mut table = self.table();
        if table.leading != leading {
            *table = Table { leading, ..Table::default() };
        }
    }

    fn note(&self, cluster: &ClusterId, now: Duration) {
        let mut table = self.table();
        if table.leading {
            if table.last.len() < MAX_CLUSTERS || table.last.contains_key(cluster) {
                table.last.insert(cluster.clone(), now);
            }
        } else if table.pending.len() < MAX_CLUSTERS {
            table.pending.insert(cluster.clone());
        }
    }

    fn take_pending(&self) -> Vec<ClusterId> {
        std::mem::take(&mut self.table().pending).into_iter().collect()
    }
}

impl Group {
    /// Records that this broker heard the agent of `cluster`.
    pub fn heard(&self, cluster: &ClusterId) {
        self.inner.heard.note(cluster, self.inner.clock.elapsed());
    }

    /// When any broker last heard each cluster, since this broker became leader; empty on all other brokers. Times are
    /// [`Clock::elapsed`] of the group's clock. Followers' reports are up to one second old.
    pub fn last_heard(&self) -> BTreeMap<ClusterId, Duration> {
        self.inner.heard.table().last.clone()
    }

    /// Records a follower's report.
    pub(crate) fn heard_elsewhere(&self, clusters: &[ClusterId]) {
        let now = self.inner.clock.elapsed();
        for cluster in clusters.iter().take(MAX_CLUSTERS_PER_REPORT) {
            self.inner.heard.note(cluster, now);
        }
    }
}

/// Reports to the leader until the group stops or its last handle is gone.
pub(crate) async fn report(group: Weak<Inner>, clock: Arc<dyn Clock>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = clock.sleep(INTERVAL) => {}
            () = stop.cancelled() => return,
        }
        let Some(inner) = group.upgrade() else { return };
        let Leadership::Follower { leader: Some(leader) } = *inner.leadership.borrow() else { continue };
        let pending = inner.heard.take_pending();
        for clusters in pending.chunks(MAX_CLUSTERS_PER_REPORT) {
            // A lost report does no harm: agents are heard again before they count as silent.
            if let Err(error) = inner.report_heard(leader, clusters, INTERVAL).await {
                debug!(leader, %error, "report of heard agents was not taken");
                break;
            }
        }
    }
}
