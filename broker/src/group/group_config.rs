//! Configuration of a group.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use comity_runtime::spiffe::TrustDomain;
use openraft::{Config, SnapshotPolicy};

use crate::group::group_error::GroupError;
use crate::replication::member::MemberAddress;

/// Concurrent proposals; further ones wait for a permit within their deadline.
pub(crate) const MAX_PROPOSALS_IN_FLIGHT: usize = 4_096;
/// Entries in one message to a follower. Messages are also bounded in bytes, by the log.
const MAX_ENTRIES_PER_MESSAGE: u64 = 512;
/// Capacity of openraft's queues; callers wait when they are full.
const RAFT_QUEUE_CAPACITY: u64 = 8_192;
/// Timeout to transfer and install a snapshot.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(300);
/// Silence of a leader without answers, in maximum election timeouts.
const SILENCE: u64 = 4;
/// Backoff after a peer is unreachable.
const BACKOFF: &str = "200ms";

/// Longer than an election that is prepared by a transfer; callers wait less than 1 s in total.
const LEADERLESS_CALL_TIMEOUT: Duration = Duration::from_millis(700);

/// Configuration of one broker in its group.
#[derive(Debug, Clone)]
pub struct GroupConfig {
    /// Number of this broker in its group, from 1.
    pub id: u64,
    /// Directory that belongs to this broker alone.
    pub data: PathBuf,
    /// Founding members; a broker that is new or lost its log looks for its group there.
    pub members: BTreeMap<u64, MemberAddress>,
    /// Peers must be brokers of this federation.
    pub trust_domain: TrustDomain,
    /// Raft's timers.
    pub timing: Timing,
    /// Log entries between snapshots; more if the last snapshot took long. Twice as many stay in the log behind a
    /// snapshot, so that it still reaches the previous one.
    pub snapshot_every: u64,
    /// Deadline of proposals and reads; after it the outcome is unknown.
    pub deadline: Duration,
    /// How long proposals and reads wait for a leader before the caller is sent to another broker.
    pub patience: Duration,
}

impl GroupConfig {
    /// Default settings.
    pub fn new(id: u64, data: impl Into<PathBuf>, trust_domain: TrustDomain) -> Self {
        Self {
            id,
            data: data.into(),
            members: BTreeMap::new(),
            trust_domain,
            timing: Timing::default(),
            snapshot_every: 10_000,
            deadline: Duration::from_secs(5),
            patience: LEADERLESS_CALL_TIMEOUT,
        }
    }

    pub(crate) fn raft_config(&self) -> Result<Config, GroupError> {
        if self.id == 0 {
            return Err(GroupError::Config("broker id 0 is refused: brokers are numbered from 1".to_owned()));
        }
        if self.snapshot_every == 0 {
            return Err(GroupError::Config("snapshot-every 0 is refused: want at least 1 entry".to_owned()));
        }
        Config {
            cluster_name: self.trust_domain.to_string(),
            heartbeat_interval: millis(self.timing.heartbeat),
            election_timeout_min: millis(self.timing.election_min),
            election_timeout_max: millis(self.timing.election_max),
            install_snapshot_timeout: millis(SNAPSHOT_TIMEOUT),
            max_payload_entries: MAX_ENTRIES_PER_MESSAGE,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(self.snapshot_every),
            max_in_snapshot_log_to_keep: self.snapshot_every.saturating_mul(2),
            // A follower that lags by no more than the retained entries gets those: that is cheaper than the whole
            // state.
            replication_lag_threshold: self.snapshot_every.saturating_mul(2),
            api_channel_size: Some(RAFT_QUEUE_CAPACITY),
            notification_channel_size: Some(RAFT_QUEUE_CAPACITY),
            enable_pre_vote: Some(true),
            // Until it is known that this broker may vote: see `eligibility`.
            enable_elect: false,
            // A restarted leader must win an election.
            enable_leader_restore: Some(false),
            // Followers may still hear a leader that hears no answers. It falls silent, so that another broker can be
            // elected. The interval allows a second attempt, because entries that it resends renew a lease once more.
            quorum_loss_probe_interval: Some(millis(self.timing.election_max).saturating_mul(SILENCE)),
            backoff: BACKOFF.to_owned(),
            ..Config::default()
        }
        .validate()
        .map_err(|error| GroupError::Config(error.to_string()))
    }
}

/// Raft's timers.
///
/// `election_max` is also the leader lease: a leader that no majority answered for this long leads no more, and a
/// follower that did not hear its leader for this long refuses nobody its vote. It stands for election itself after a
/// further time drawn between `election_min` and `election_max`.
///
/// The defaults tolerate a pause of 1.2 s, for which a loaded machine may stop a process, and replace a leader whose
/// machine is gone after 1.2 to 1.6 s. They need not be shorter: the death of the leader's process alone, by far the
/// most frequent failure, is noticed by its closed port and does not wait for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Between signs of life of a leader. An eighth of the lease: several may be lost.
    pub heartbeat: Duration,
    /// Shortest time before a follower stands for election, beyond the lease.
    pub election_min: Duration,
    /// Longest, and the lease.
    pub election_max: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(100),
            election_min: Duration::from_millis(400),
            election_max: Duration::from_millis(800),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
