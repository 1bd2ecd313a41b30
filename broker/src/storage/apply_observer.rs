//! The interface through which the rest of the broker follows the state machine.

use std::time::Duration;

use comity_core::State;
use comity_core::log::Applied;

/// Looks on while entries are applied, on every broker, in order. Both calls hold up the log: they must be quick and
/// must not reclaim into the group.
pub trait ApplyObserver: Send + Sync + 'static {
    /// One entry was applied; `state` is at the revision of `applied`. Called before the reply is given.
    fn applied(&self, state: &State, applied: &Applied);

    /// The state was replaced: at start, and when a snapshot came from the leader.
    fn restored(&self, state: &State);

    /// A snapshot of the state is on disk.
    fn snapshot_made(&self, made: &SnapshotMade);
}

/// A snapshot that is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotMade {
    /// From the copy of the state to the fsync.
    pub took: Duration,
    /// Of that, how long no entry was applied because the state was copied.
    pub held_up: Duration,
    /// Size of the file.
    pub bytes: u64,
}
