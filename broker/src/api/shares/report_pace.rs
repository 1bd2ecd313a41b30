//! Limits how fast a cluster reports: token buckets, which outlive the cluster's streams.
//!
//! A broker reads no further message of the stream until the bucket has tokens again, so the agent notices only that
//! acks come later.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use comity_core::Command;
use comity_core::command::{AdvertiseOffer, ReviseOffer};
use comity_proto::v1::agent_message::Body;
use comity_runtime::clock::Clock;
use comity_types::ClusterId;

/// Tokens for messages per second of one cluster: more than a donor needs that gets a hundred new leases a second.
const READS_PER_SECOND: u32 = 400;
/// Tokens for messages that a quiet cluster saves up: its agent repeats thousands of reports after an outage.
const READ_BUCKET: u32 = 8_000;
/// Nodes of an offer that are read for a token. Agents send whole offers, up to five times a second.
const NODES_READ_PER_TOKEN: usize = 256;
/// Nodes of one cluster that are written to the log per second. Only changed nodes are written, but each broker stores
/// and applies them while the requests of others wait.
const NODES_WRITTEN_PER_SECOND: u32 = 2_000;
/// Nodes that a quiet cluster may have written at once: two of the largest offers.
const WRITE_BUCKET: u32 = 20_000;
/// Full buckets are dropped once there are this many buckets.
const BUCKETS_BEFORE_TIDYING: usize = 256;

/// When each cluster's bucket will be full again, as time since the clock's start.
type FullAt = BTreeMap<ClusterId, Duration>;

/// Buckets of all clusters. Clones share them.
#[derive(Debug, Clone)]
pub struct ReportPace {
    clock: Arc<dyn Clock>,
    reads: Arc<Buckets>,
    writes: Arc<Buckets>,
}

impl ReportPace {
    /// With full buckets.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let reads = Buckets::new(READS_PER_SECOND, READ_BUCKET);
        let writes = Buckets::new(NODES_WRITTEN_PER_SECOND, WRITE_BUCKET);
        Self { clock, reads: Arc::new(reads), writes: Arc::new(writes) }
    }

    /// Takes the tokens of a message that was read, and waits until the bucket had them.
    pub async fn read(&self, cluster: &ClusterId, body: Option<&Body>) {
        self.pay(&self.reads, cluster, tokens_to_read(body)).await;
    }

    /// Takes a token for each node that a command writes, and waits until the bucket had them.
    pub async fn write(&self, cluster: &ClusterId, command: &Command) {
        self.pay(&self.writes, cluster, nodes_written(command)).await;
    }

    async fn pay(&self, buckets: &Buckets, cluster: &ClusterId, tokens: u32) {
        let wait = buckets.take(cluster, tokens, self.clock.elapsed());
        if !wait.is_zero() {
            self.clock.sleep(wait).await;
        }
    }
}

/// A bucket for each cluster.
#[derive(Debug)]
struct Buckets {
    /// Time in which one token comes back.
    interval: Duration,
    capacity: u32,
    full_at: Mutex<FullAt>,
}

impl Buckets {
    fn new(per_second: u32, capacity: u32) -> Self {
        Self { interval: Duration::from_secs(1) / per_second, capacity, full_at: Mutex::default() }
    }

    /// Takes tokens, and returns how long they are still missing.
    fn take(&self, cluster: &ClusterId, tokens: u32, now: Duration) -> Duration {
        if tokens == 0 {
            return Duration::ZERO;
        }
        let mut full_at = self.lock();
        if full_at.len() >= BUCKETS_BEFORE_TIDYING {
            full_at.retain(|_, full_at| *full_at > now);
        }
        let full_at = full_at.entry(cluster.clone()).or_insert(now);
        *full_at = (*full_at).max(now) + self.interval * tokens;
        full_at.saturating_sub(now + self.interval * self.capacity)
    }

    fn lock(&self) -> MutexGuard<'_, FullAt> {
        // Each change is one entry, so a panic elsewhere leaves nothing half done.
        self.full_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tokens_to_read(body: Option<&Body>) -> u32 {
    match body {
        Some(Body::Offer(offer)) => 1 + count(offer.nodes.len().div_ceil(NODES_READ_PER_TOKEN)),
        _ => 1,
    }
}

fn nodes_written(command: &Command) -> u32 {
    match command {
        Command::AdvertiseOffer(AdvertiseOffer { offer, .. }) => count(offer.nodes.len()),
        Command::ReviseOffer(ReviseOffer { nodes, gone, .. }) => count(nodes.len() + gone.len()),
        _ => 0,
    }
}

fn count(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_core::limits::MAX_NODES_PER_OFFER;
    use comity_proto::v1;

    use super::*;

    const START: Duration = Duration::from_secs(60);

    fn cluster(name: &str) -> ClusterId {
        name.parse().unwrap()
    }

    #[test]
    fn one_clusters_reports_are_slowed_down_and_others_are_not() {
        let buckets = Buckets::new(READS_PER_SECOND, READ_BUCKET);
        let campus = cluster("campus");
        assert_eq!(buckets.take(&campus, READ_BUCKET, START), Duration::ZERO);
        // Each further one comes at the rate.
        assert_eq!(buckets.take(&campus, 1, START), buckets.interval);
        let later = START + buckets.interval;
        assert_eq!(buckets.take(&campus, 1, later), buckets.interval);
        assert_eq!(buckets.take(&cluster("other"), 1, later), Duration::ZERO);
        // It fills up in twenty seconds.
        assert_eq!(buckets.take(&campus, READ_BUCKET + 1, later + Duration::from_secs(21)), buckets.interval);
    }

    #[test]
    fn offers_that_differ_in_every_node_are_slowed_down_before_other_reports() {
        let writes = Buckets::new(NODES_WRITTEN_PER_SECOND, WRITE_BUCKET);
        let campus = cluster("campus");
        assert_eq!(writes.take(&campus, WRITE_BUCKET, START), Duration::ZERO);
        assert_eq!(writes.take(&campus, NODES_WRITTEN_PER_SECOND, START), Duration::from_secs(1));
    }

    #[test]
    fn the_largest_offer_delays_heartbeats_for_less_than_silence() {
        let writes = Buckets::new(NODES_WRITTEN_PER_SECOND, WRITE_BUCKET);
        let campus = cluster("campus");
        writes.take(&campus, WRITE_BUCKET, START);
        let wait = writes.take(&campus, count(MAX_NODES_PER_OFFER), START);
        assert!(wait > Duration::from_secs(1) && wait <= Duration::from_secs(5), "{wait:?}");
    }

    #[test]
    fn a_busy_cluster_of_the_largest_size_may_offer_five_times_a_second() {
        let offer = v1::Offer { nodes: vec![v1::Node::default(); MAX_NODES_PER_OFFER], ..v1::Offer::default() };
        let tokens = tokens_to_read(Some(&Body::Offer(offer)));
        assert!(tokens > 30 && tokens * 5 <= READS_PER_SECOND, "{tokens}");
        assert_eq!(tokens_to_read(Some(&Body::Heartbeat(v1::Heartbeat {}))), 1);
    }

    #[test]
    fn clusters_that_have_been_quiet_take_no_memory() {
        let buckets = Buckets::new(READS_PER_SECOND, READ_BUCKET);
        for number in 0..BUCKETS_BEFORE_TIDYING {
            buckets.take(&cluster(&format!("c-{number}")), 1, START);
        }
        buckets.take(&cluster("next"), 1, START + Duration::from_secs(1));
        assert_eq!(buckets.lock().len(), 1);
    }
}
