//! Change feed for watchers: a snapshot, then every change without gaps; resumes from a revision or answers
//! `resync-required`.
//!
//! ```text
//!   apply ──▶ WatchHub::applied ──▶ ring of rendered revisions ──▶ one cursor a watcher ──▶ filter by what it may see
//! ```
//!
//! Apply never waits for a watcher: a slow one is disconnected.

pub mod clusters_touched;
pub mod desired_pace;
mod event;
mod ring;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use comity_core::State;
use comity_core::reply::{Applied, Change};
use comity_policy::Bundle;
use ring::Ring;
use tokio::sync::watch;

use crate::api::rpc_error::RpcError;
use crate::metrics::Metrics;
use crate::storage::{ApplyObserver, SnapshotMade};
use crate::watch::clusters_touched::ClustersTouched;

pub use event::{Event, cluster, objects, visible_clusters};
pub use ring::Batch;

/// Events kept for watchers that resume: minutes of a busy federation.
pub const RING_EVENTS: usize = 8_192;

/// Observes applied entries and publishes them to watchers and agents.
#[derive(Debug)]
pub struct WatchHub {
    ring: Mutex<Ring>,
    newest: watch::Sender<u64>,
    touched: ClustersTouched,
    /// Revision of the last change of who may take part.
    revocations: watch::Sender<u64>,
    metrics: Metrics,
}

impl WatchHub {
    /// An empty hub.
    #[must_use]
    pub fn new(metrics: Metrics) -> Self {
        Self {
            ring: Mutex::new(Ring::new(RING_EVENTS)),
            newest: watch::Sender::new(0),
            touched: ClustersTouched::default(),
            revocations: watch::Sender::new(0),
            metrics,
        }
    }

    /// Notifies agents whose desired state has changed.
    #[must_use]
    pub fn touched(&self) -> &ClustersTouched {
        &self.touched
    }

    /// Subscribes to the newest revision.
    #[must_use]
    pub fn newest(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    /// Changes when certificates become void, institutions are suspended or resumed, or policy changes their members.
    #[must_use]
    pub fn revocations(&self) -> watch::Receiver<u64> {
        self.revocations.subscribe()
    }

    /// The policy bundle in force as of the newest revision.
    #[must_use]
    pub fn policy(&self) -> Option<Arc<Bundle>> {
        self.lock().policy()
    }

    /// Up to `limit` batches after `revision`; none if there is nothing newer.
    ///
    /// # Errors
    /// [`RpcError::ResyncRequired`] if they were evicted, or `revision` is unknown.
    pub fn after(&self, revision: u64, limit: usize) -> Result<Vec<Arc<Batch>>, RpcError> {
        self.lock().after(revision, limit)
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        // Each push is complete; a panic elsewhere leaves the ring consistent.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ApplyObserver for WatchHub {
    fn applied(&self, state: &State, applied: &Applied) {
        self.metrics.applied(state, applied);
        if applied.changes.is_empty() {
            return;
        }
        let policy = state.policy.as_ref().map(|record| Arc::clone(&record.bundle));
        let events = event::of_changes(state, &applied.changes);
        self.lock().push(Batch { revision: applied.revision, events, policy });
        self.newest.send_replace(applied.revision);
        self.touched.applied(state, applied);
        if applied.changes.iter().any(|change| matches!(change, Change::Revocations | Change::Policy)) {
            self.revocations.send_replace(applied.revision);
        }
    }

    fn restored(&self, state: &State) {
        self.metrics.restored(state);
        let policy = state.policy.as_ref().map(|record| Arc::clone(&record.bundle));
        self.lock().restart(state.revision, policy);
        self.newest.send_replace(state.revision);
        self.touched.restored(state);
        self.revocations.send_replace(state.revision);
    }

    fn snapshot_made(&self, made: &SnapshotMade) {
        self.metrics.snapshot_made(made);
    }
}
