//! The broker group: one handle over consensus, disk and peers.
//!
//! ```text
//!   propose ──▶ leader? ── yes ─▶ log (fsync on a majority) ─▶ apply ─▶ observer ─▶ reply
//!                  └── no ─▶ Propose RPC to the leader, one hop
//!   read ─────▶ read index from the leader ─▶ wait until applied here ─▶ look at the state
//! ```
//!
//! Who belongs to it: `founding` begins a group, `hello` is how a broker finds its place and how one that lost its log
//! comes back, `standing` says whether it votes, `admission` and `membership` are what the leader changes.
//!
//! What this module never does: decide what to propose, or look into a command but those about its own members.

pub(crate) mod clocks;
pub(crate) mod consensus;
pub(crate) mod elections;
mod group_config;
mod group_error;
mod heard;
pub(crate) mod members;
mod note_reached;
mod propose;
mod read;
mod refuse_append;
mod serve_peer;
mod status;

#[cfg(test)]
mod tests;

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
use members::standing::Standing;
use members::{admission, hello};
use tokio::sync::{Mutex, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::info;

use crate::storage::{self, ApplyObserver, Replica};
use crate::transport::Peers;

pub use crate::replication::identity::{GroupId, Incarnation};
pub use crate::replication::member::{MemberAddress, MemberNode};
pub use crate::replication::membership_change::MembershipChange;
pub use crate::replication::proposal::Proposal;
pub use clocks::log_clock::MAX_SLEW;
pub use clocks::log_time::{ClockStatus, Rebase};
pub use clocks::member_clocks::MAX_WALL_OFFSET;
pub use elections::leadership::{Leadership, Tenure};
pub use group_config::{GroupConfig, Timing};
pub use group_error::{GroupError, Unavailable};
pub use members::founding::Founded;
pub use members::standing::Halt;
pub use read::Consistency;
pub use status::{GroupStatus, MemberStatus, Role};

pub(crate) use heard::MAX_CLUSTERS_PER_REPORT;

/// What a group needs from outside.
pub struct GroupDeps {
    /// Looks on.
    pub observer: Arc<dyn ApplyObserver>,
    /// This broker's wall clock, and ages. Log time goes by the machine's monotonic clock, Raft's timers by tokio's.
    pub clock: Arc<dyn Clock>,
    /// This broker's identity towards its peers.
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
    pub(crate) peers: Peers,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) heard: Heard,
    pub(crate) standing: Standing,
    /// While the group that this broker founded does not have all its founding members yet.
    forming: AtomicBool,
    /// One change of the members at a time.
    changing: Arc<Mutex<()>>,
    clocks: Clocks,
    elections: ElectionGate,
    pub(crate) contact: Contact,
    pub(crate) snapshots: storage::SnapshotDir,
    log: storage::LogStore,
    leadership: watch::Receiver<Leadership>,
    /// Since when no leader is known, while none is.
    leaderless: watch::Receiver<Option<Instant>>,
    /// One permit a proposal in flight.
    in_flight: Semaphore,
    pub(crate) stop: CancellationToken,
    tasks: TaskTracker,
}

impl Group {
    /// Opens the disk and starts consensus. Serves nothing by itself: see [`crate::transport::service`].
    ///
    /// # Errors
    /// [`GroupError`] where the disk is damaged, of another broker or of a later release.
    pub async fn start(config: GroupConfig, deps: GroupDeps) -> Result<Self, GroupError> {
        let raft_config = Arc::new(config.raft_config()?);
        let disk = storage::open(&config.data, config.id, deps.observer).await?;
        let standing = Standing::new(disk.identity, disk.is_blank);
        let peers = Peers::new(config.id, config.trust_domain.clone(), deps.tls, standing.clone());
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
        let inner = Arc::new(Inner {
            clocks: Clocks::new(config.id, restored),
            elections: ElectionGate::new(raft.clone()),
            raft,
            replica: disk.replica,
            peers,
            clock: deps.clock,
            heard,
            standing,
            forming: AtomicBool::new(false),
            changing: Arc::default(),
            contact,
            snapshots: disk.snapshots,
            log: disk.log,
            leadership,
            leaderless,
            in_flight: Semaphore::new(group_config::MAX_PROPOSALS_IN_FLIGHT),
            stop,
            tasks,
            config,
        });
        tasks_of(&inner);
        info!(broker = inner.config.id, revision = *inner.replica.revision().borrow(), "group opened");
        Ok(Self { inner })
    }

    /// Who leads, as this broker knows it.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.inner.leadership.clone()
    }

    /// Ends once no leader was known here for `limit` without a break. What waits for one then does better elsewhere.
    pub async fn without_leader_for(&self, limit: Duration) {
        self.inner.leaderless_for(limit).await;
    }

    /// The last applied revision.
    pub fn revision(&self) -> watch::Receiver<u64> {
        self.inner.replica.revision()
    }

    /// How many times this broker synced its log to disk since it started: many entries share one.
    pub fn log_syncs(&self) -> u64 {
        self.inner.log.syncs()
    }

    /// How long log entries and votes take to the disk.
    pub fn log_sync_seconds(&self) -> prometheus::Histogram {
        self.inner.log.disk().seconds()
    }

    /// Ends when this broker's part in the group has ended, with the reason: the disk failed, it must not go on, or
    /// [`shutdown`](Self::shutdown) was called. The process should then exit.
    pub async fn stopped(&self) -> Halt {
        let reason = tokio::select! {
            halt = self.inner.standing.until_halted() => return halt,
            reason = consensus::until_stopped(&self.inner.raft) => reason,
        };
        let disk = self.inner.log.disk().fault();
        Halt::Stopped(disk.or_else(|| storage::fault_in(&self.inner.config.data, &reason)).unwrap_or(reason))
    }

    /// Stops consensus and lets go of the disk. A leader first hands over to a follower, where there is one.
    pub async fn shutdown(&self) {
        self.inner.hand_over().await;
        self.inner.stop.cancel();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
        if let Err(error) = self.inner.raft.shutdown().await {
            tracing::warn!(%error, "consensus did not end cleanly");
        }
        self.inner.log.close();
        info!(broker = self.inner.config.id, "group closed");
    }
}

impl Drop for Inner {
    /// Ends the tasks beside consensus also where nobody called `shutdown`.
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("broker", &self.inner.config.id).finish_non_exhaustive()
    }
}

/// What the process before knew of time.
async fn restored_clocks(config: &GroupConfig) -> clock_file::Restored {
    let data = config.data.clone();
    tokio::task::spawn_blocking(move || clock_file::restore(&data)).await.unwrap_or_default()
}

/// Starts what runs beside consensus. The tasks hold the group weakly, so that dropping every handle ends them.
fn tasks_of(inner: &Arc<Inner>) {
    let (weak, clock, stop) = (Arc::downgrade(inner), Arc::clone(&inner.clock), inner.stop.clone());
    inner.tasks.spawn(clock_exchange::run(weak.clone(), Arc::clone(&clock), stop.clone()));
    inner.tasks.spawn(heard::report(weak.clone(), clock, stop.clone()));
    inner.tasks.spawn(hello::run(weak.clone(), stop.clone()));
    inner.tasks.spawn(note_reached::follow(weak.clone(), stop.clone()));
    inner.tasks.spawn(admission::run(weak.clone(), stop.clone()));
    inner.tasks.spawn(failover::run(weak.clone(), stop.clone()));
    inner.tasks.spawn(slow_disk::run(weak, stop));
}
