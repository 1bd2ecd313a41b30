//! Observer of the state machine.

use std::time::Duration;

use comity_core::State;
use comity_core::reply::Applied;

/// Observes applied entries, on every broker, in order. Calls block the log: they must be fast and must not call the
/// group.
pub trait ApplyObserver: Send + Sync + 'static {
    /// An entry was applied; `state` is at the revision of `applied`. Called before the reply.
    fn applied(&self, state: &State, applied: &Applied);

    /// The state was replaced, at start or by a snapshot from the leader.
    fn restored(&self, state: &State);

    /// A snapshot of the state is on disk.
    fn snapshot_made(&self, made: &SnapshotMade);
}

/// A snapshot that is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotMade {
    /// Time from copying the state to the fsync.
    pub took: Duration,
    /// Part of `took` in which copying blocked apply.
    pub held_up: Duration,
    /// File size.
    pub bytes: u64,
}
