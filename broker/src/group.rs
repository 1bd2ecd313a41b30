//! A broker's handle on its Raft group.
//!
//! ```text
//!   propose ──▶ leader? ── yes ─▶ log (fsync on a majority) ─▶ apply ─▶ observer ─▶ reply
//!                  └── no ─▶ Propose RPC to the leader, one hop
//!   read ─────▶ read index from the leader ─▶ wait until applied here ─▶ read the state
//! ```
//!
//! Callers decide what to propose; this module reads only the commands about its own members.

pub(crate) mod clocks;
pub(crate) mod consensus;
mod early_snapshots;
pub(crate) mod elections;
mod fill_audit_log;
mod group_config;
mod group_error;
mod heard;
pub(crate) mod members;
mod note_reached;
mod propose;
pub(crate) mod raft_port;
mod read;
mod refuse_append;
mod serve_peer;
mod status;

#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use clocks::log_time::Clocks;
use clocks::{clock_exchange, clock_file};
use comity_runtime::clock::Clock;
use comity_runtime::tls::ClientTls;
use consensus::Raft;
use elections::contact::Contact;
use elections::election_gate::ElectionGate;
use elections::follow_leadership::{self, Judge};
use elections::{failover, slow_disk};
use heard::Heard;
use members::client_addresses::{self, ClientAddresses};
use members::{admission, hello};
use tokio::sync::{Mutex, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::info;

use crate::eligibility::Eligibility;
use crate::storage::{self, ApplyObserver, AuditStore, Replica};
use crate::transport::Peers;

pub use crate::eligibility::Halt;
pub use crate::replication::identity::{GroupId, Incarnation, StartId};
pub use crate::replication::member::{MemberAddress, MemberNode};
pub use crate::replication::membership_change::{MembershipChange, RequestedChange};
pub use crate::replication::proposal::Proposal;
pub use clocks::log_clock::MAX_SLEW;
pub use clocks::log_time::{ClockStatus, Rebase};
pub use clocks::member_clocks::MAX_WALL_OFFSET;
pub use elections::leadership::{Leadership, Tenure};
pub use group_config::{GroupConfig, Timing};
pub use group_error::{GroupError, Unavailable};
pub use members::founding::Founded;
pub use read::Consistency;
pub use status::{GroupStatus, MemberStatus, Role};

pub(crate) use clocks::clock_exchange::date_and_time;

/// Dependencies of a group.
pub struct GroupDeps {
    /// Notified of applied entries.
    pub observer: Arc<dyn ApplyObserver>,
    /// Wall clock and ages. Log time uses the machine's monotonic clock; Raft's timers use tokio's.
    pub clock: Arc<dyn Clock>,
    /// This broker's client identity.
    pub tls: ClientTls,
}

/// One broker's membership in its group. Cheap to clone; all clones are the same broker.
#[derive(Clone)]
pub struct Group {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) config: GroupConfig,
    pub(crate) raft: Raft,
    pub(crate) replica: Arc<Replica>,
    /// Whether `replica` has had everything acknowledged, once since the start.
    caught_up: watch::Sender<bool>,
    pub(crate) peers: Peers,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) heard: Heard,
    pub(crate) eligibility: Eligibility,
    /// Set while the group that this broker founded lacks founding members.
    forming: AtomicBool,
    /// Held during a membership change: one at a time.
    changing: Arc<Mutex<()>>,
    clocks: Clocks,
    elections: ElectionGate,
    pub(crate) contact: Contact,
    pub(crate) snapshots: storage::SnapshotDir,
    log: storage::LogStore,
    pub(crate) audit: AuditStore,
    leadership: watch::Receiver<Leadership>,
    /// Since when no leader is known; `None` while one is.
    leaderless: watch::Receiver<Option<Instant>>,
    client_addresses: watch::Receiver<ClientAddresses>,
    /// One permit per proposal in flight.
    in_flight: Semaphore,
    pub(crate) stop: CancellationToken,
    tasks: TaskTracker,
}

impl Group {
    /// Opens the disk and starts consensus. `raft_port` serves the peers.
    ///
    /// # Errors
    /// [`GroupError`] if the disk is damaged, belongs to another broker or has a later release's format.
    pub async fn start(config: GroupConfig, deps: GroupDeps) -> Result<Self, GroupError> {
        let raft_config = Arc::new(config.raft_config()?);
        let disk = storage::open(&config.data, config.id, deps.observer).await?;
        let eligibility = Eligibility::new(disk.identity, Some(disk.peer_starts));
        if disk.is_blank {
            // It has acknowledged nothing that could be lost.
            eligibility.confirm();
        }
        let peers = Peers::new(config.id, config.trust_domain.clone(), deps.tls, eligibility.clone());
        let raft = Raft::new(config.id, raft_config, peers.clone(), disk.log.clone(), disk.state_machine)
            .await
            .map_err(|error| GroupError::Raft(error.to_string()))?;

        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let heard = Heard::default();
        let restored = restored_clocks(&config).await;
        let contact = Contact::default();
        let judge = Judge { raft: raft.clone(), lease: config.timing.election_max, contact: contact.clone() };
        let (leadership, leaderless) = follow_leadership::watch(judge, heard.clone(), &stop, &tasks);
        let client_addresses = client_addresses::follow(raft.clone(), &stop, &tasks);
        let inner = Arc::new(Inner {
            clocks: Clocks::new(config.id, restored),
            elections: ElectionGate::new(raft.clone()),
            raft,
            replica: disk.replica,
            caught_up: watch::Sender::new(false),
            peers,
            clock: deps.clock,
            heard,
            eligibility,
            forming: AtomicBool::new(false),
            changing: Arc::default(),
            contact,
            snapshots: disk.snapshots,
            log: disk.log,
            audit: disk.audit,
            leadership,
            leaderless,
            client_addresses,
            in_flight: Semaphore::new(group_config::MAX_PROPOSALS_IN_FLIGHT),
            stop,
            tasks,
            config,
        });
        spawn_tasks(&inner);
        info!(broker = inner.config.id, revision = *inner.replica.revision().borrow(), "group opened");
        Ok(Self { inner })
    }

    /// Subscribes to the leader as known here.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.inner.leadership.clone()
    }

    /// Follows the addresses at which agents and users reach the brokers, by broker number.
    pub fn client_addresses(&self) -> watch::Receiver<Arc<[String]>> {
        self.inner.client_addresses.clone()
    }

    /// Waits until no leader was known for `limit`; callers then try another broker.
    pub async fn without_leader_for(&self, limit: Duration) {
        self.inner.leaderless_for(limit).await;
    }

    /// Whether no leader was known for `limit`.
    pub fn is_without_leader_for(&self, limit: Duration) -> bool {
        self.inner.leaderless.borrow().is_some_and(|since| since.elapsed() >= limit)
    }

    /// The error of calls that this broker does not serve, as it knows no leader.
    pub fn no_leader(&self) -> Unavailable {
        Unavailable::NoLeader { broker: self.inner.config.id }
    }

    /// The records of the audit log.
    pub(crate) fn audit_store(&self) -> AuditStore {
        self.inner.audit.clone()
    }

    /// Subscribes to the last applied revision.
    pub fn revision(&self) -> watch::Receiver<u64> {
        self.inner.replica.revision()
    }

    /// Log fsyncs since start; entries share them.
    pub fn log_syncs(&self) -> u64 {
        self.inner.log.syncs()
    }

    /// Histogram of fsync times of log entries and votes.
    pub fn log_sync_seconds(&self) -> prometheus::Histogram {
        self.inner.log.disk().seconds()
    }

    /// Waits until this broker left the group, and returns why: the disk failed, it must not continue, or
    /// [`shutdown`](Self::shutdown) was called. The process should then exit.
    pub async fn stopped(&self) -> Halt {
        let reason = tokio::select! {
            halt = self.inner.eligibility.until_halted() => return halt,
            reason = consensus::until_stopped(&self.inner.raft) => reason,
        };
        let disk = self.inner.log.disk().fault();
        Halt::Stopped(disk.or_else(|| storage::fault_in(&self.inner.config.data, &reason)).unwrap_or(reason))
    }

    /// Hands over leadership if possible, stops consensus and closes the disk.
    pub async fn shutdown(&self) {
        self.inner.hand_over().await;
        self.inner.stop.cancel();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
        if let Err(error) = self.inner.raft.shutdown().await {
            tracing::warn!(%error, "consensus did not end cleanly");
        }
        self.inner.log.close();
        let audit = self.inner.audit.clone();
        // Writes what waits.
        let _ = tokio::task::spawn_blocking(move || audit.close()).await;
        info!(broker = self.inner.config.id, "group closed");
    }
}

impl Drop for Inner {
    /// Stops background tasks even if nobody called `shutdown`.
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("broker", &self.inner.config.id).finish_non_exhaustive()
    }
}

/// Clocks saved by the previous process.
async fn restored_clocks(config: &GroupConfig) -> clock_file::Restored {
    let data = config.data.clone();
    tokio::task::spawn_blocking(move || clock_file::restore(&data)).await.unwrap_or_default()
}

/// Starts background tasks. They hold the group weakly, so dropping every handle ends them.
fn spawn_tasks(inner: &Arc<Inner>) {
    let (weak, clock, stop) = (Arc::downgrade(inner), Arc::clone(&inner.clock), inner.stop.clone());
    inner.tasks.spawn(clock_exchange::run(weak.clone(), Arc::clone(&clock), stop.clone()));
    inner.tasks.spawn(heard::report(weak.clone(), clock, stop.clone()));
    inner.tasks.spawn(hello::run(weak.clone(), stop.clone()));
    inner.tasks.spawn(note_reached::follow(weak.clone(), stop.clone()));
    inner.tasks.spawn(early_snapshots::make(weak.clone(), stop.clone()));
    inner.tasks.spawn(admission::run(weak.clone(), stop.clone()));
    inner.tasks.spawn(failover::run(weak.clone(), stop.clone()));
    inner.tasks.spawn(fill_audit_log::run(weak.clone(), stop.clone()));
    inner.tasks.spawn(slow_disk::run(weak, stop));
}
