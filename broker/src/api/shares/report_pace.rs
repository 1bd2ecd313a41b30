//! Limits how fast a cluster reports: a token bucket, which outlives the cluster's streams.
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

/// Tokens per second of one cluster: more than a donor needs that gets a hundred new leases a second.
const TOKENS_PER_SECOND: u32 = 400;
/// Tokens that a quiet cluster saves up: its agent repeats thousands of reports after an outage.
const BUCKET_TOKENS: u32 = 8_000;
/// Time in which one token comes back.
const TOKEN_INTERVAL: Duration = Duration::from_nanos(1_000_000_000 / TOKENS_PER_SECOND as u64);
/// Nodes of an offer that are read for a token. Agents send whole offers, up to five times a second.
const NODES_READ_PER_TOKEN: usize = 256;
/// Nodes of an offer that are written to the log for a token.
const NODES_WRITTEN_PER_TOKEN: usize = 16;
/// Full buckets are dropped once there are this many buckets.
const BUCKETS_BEFORE_TIDYING: usize = 256;

/// When each cluster's bucket will be full again, as time since the clock's start.
type FullAt = BTreeMap<ClusterId, Duration>;

/// Buckets of all clusters. Clones share them.
#[derive(Debug, Clone)]
pub struct ReportPace {
    clock: Arc<dyn Clock>,
    full_at: Arc<Mutex<FullAt>>,
}

impl ReportPace {
    /// With full buckets.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, full_at: Arc::default() }
    }

    /// Takes the tokens of a message that was read, and waits until the bucket had them.
    pub async fn read(&self, cluster: &ClusterId, body: Option<&Body>) {
        self.pay(cluster, tokens_to_read(body)).await;
    }

    /// Takes the tokens of the nodes that a command writes, and waits until the bucket had them.
    pub async fn write(&self, cluster: &ClusterId, command: &Command) {
        self.pay(cluster, tokens_to_write(command)).await;
    }

    async fn pay(&self, cluster: &ClusterId, tokens: u32) {
        let wait = self.take(cluster, tokens);
        if !wait.is_zero() {
            self.clock.sleep(wait).await;
        }
    }

    /// Takes tokens, and returns how long they are still missing.
    fn take(&self, cluster: &ClusterId, tokens: u32) -> Duration {
        if tokens == 0 {
            return Duration::ZERO;
        }
        let now = self.clock.elapsed();
        let mut full_at = self.lock();
        if full_at.len() >= BUCKETS_BEFORE_TIDYING {
            full_at.retain(|_, full_at| *full_at > now);
        }
        let full_at = full_at.entry(cluster.clone()).or_insert(now);
        *full_at = (*full_at).max(now) + TOKEN_INTERVAL * tokens;
        full_at.saturating_sub(now + TOKEN_INTERVAL * BUCKET_TOKENS)
    }

    fn lock(&self) -> MutexGuard<'_, FullAt> {
        // Each change is one entry, so a panic elsewhere leaves nothing half done.
        self.full_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tokens_to_read(body: Option<&Body>) -> u32 {
    match body {
        Some(Body::Offer(offer)) => 1 + tokens(offer.nodes.len(), NODES_READ_PER_TOKEN),
        _ => 1,
    }
}

fn tokens_to_write(command: &Command) -> u32 {
    let nodes = match command {
        Command::AdvertiseOffer(AdvertiseOffer { offer, .. }) => offer.nodes.len(),
        Command::ReviseOffer(ReviseOffer { nodes, gone, .. }) => nodes.len() + gone.len(),
        _ => 0,
    };
    tokens(nodes, NODES_WRITTEN_PER_TOKEN)
}

fn tokens(nodes: usize, per_token: usize) -> u32 {
    u32::try_from(nodes.div_ceil(per_token)).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_core::limits::MAX_NODES_PER_OFFER;
    use comity_proto::v1;
    use comity_runtime::clock::ManualClock;

    use super::*;

    fn pace() -> (ReportPace, ManualClock) {
        let clock = ManualClock::at_unix_ms(0);
        (ReportPace::new(Arc::new(clock.clone())), clock)
    }

    fn cluster(name: &str) -> ClusterId {
        name.parse().unwrap()
    }

    #[test]
    fn one_clusters_reports_are_slowed_down_and_others_are_not() {
        let (pace, clock) = pace();
        let campus = cluster("campus");
        assert_eq!(pace.take(&campus, BUCKET_TOKENS), Duration::ZERO);
        // Each further one comes at the rate.
        assert_eq!(pace.take(&campus, 1), TOKEN_INTERVAL);
        clock.advance(TOKEN_INTERVAL);
        assert_eq!(pace.take(&campus, 1), TOKEN_INTERVAL);
        assert_eq!(pace.take(&cluster("other"), 1), Duration::ZERO);
        // A stream that is opened again finds the same bucket; it fills up in twenty seconds.
        clock.advance(Duration::from_secs(21));
        assert_eq!(pace.clone().take(&campus, BUCKET_TOKENS + 1), TOKEN_INTERVAL);
    }

    #[test]
    fn the_largest_offer_delays_heartbeats_for_less_than_silence() {
        let (pace, _clock) = pace();
        let campus = cluster("campus");
        pace.take(&campus, BUCKET_TOKENS);
        let wait = pace.take(&campus, tokens(MAX_NODES_PER_OFFER, NODES_WRITTEN_PER_TOKEN));
        assert!(wait > Duration::from_secs(1) && wait < Duration::from_secs(5), "{wait:?}");
    }

    #[test]
    fn a_busy_cluster_of_the_largest_size_may_offer_five_times_a_second() {
        let offer = v1::Offer { nodes: vec![v1::Node::default(); MAX_NODES_PER_OFFER], ..v1::Offer::default() };
        let tokens = tokens_to_read(Some(&Body::Offer(offer)));
        assert!(tokens > 30 && tokens * 5 <= TOKENS_PER_SECOND, "{tokens}");
        assert_eq!(tokens_to_read(Some(&Body::Heartbeat(v1::Heartbeat {}))), 1);
    }

    #[test]
    fn clusters_that_have_been_quiet_take_no_memory() {
        let (pace, clock) = pace();
        for number in 0..BUCKETS_BEFORE_TIDYING {
            pace.take(&cluster(&format!("c-{number}")), 1);
        }
        clock.advance(Duration::from_secs(1));
        pace.take(&cluster("next"), 1);
        assert_eq!(pace.lock().len(), 1);
    }
}
