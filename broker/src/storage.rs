//! What a broker keeps on disk.
//!
//! ```text
//!   <data>/format      whose directory this is, and the version of its layout
//!   <data>/log/        vote and log entries in checksummed chunks (raft-log)
//!   <data>/snapshots/  the last two snapshots, each with a checksum
//! ```
//!
//! A torn end of the log, which a crash leaves, is cut off: nobody was told that it was written. Any other damage stops
//! the broker: to guess would be to forget a vote or an acknowledged entry. The way out is always the same: move the
//! directory away and let the broker be rebuilt from its peers.

pub(crate) mod entry_codec;
mod error;
mod log_store;
mod marker;
mod replica;
mod snapshot_dir;
mod snapshot_file;
mod snapshot_pace;
mod state_machine;
mod torn_end;
mod wal_types;

#[cfg(test)]
mod suite_tests;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use comity_core::State;
use comity_runtime::atomic_file;

use crate::group::ApplyObserver;

pub use error::StorageError;
pub(crate) use log_store::LogStore;
pub(crate) use replica::Replica;
pub(crate) use snapshot_dir::{IncomingSnapshot, SnapshotDir};
pub use snapshot_file::SnapshotHandle;
pub use state_machine::StateMachine;

/// An opened data directory.
pub(crate) struct Disk {
    pub(crate) log: LogStore,
    pub(crate) state_machine: StateMachine,
    pub(crate) replica: Arc<Replica>,
    pub(crate) snapshots: SnapshotDir,
}

/// Opens, or makes, the data directory of broker `id`, and tells the observer the state of its newest snapshot.
///
/// # Errors
/// [`StorageError`], which names the file and the remedy.
pub(crate) async fn open(data: &Path, id: u64, observer: Arc<dyn ApplyObserver>) -> Result<Disk, StorageError> {
    let data = data.to_owned();
    tokio::task::spawn_blocking(move || open_blocking(&data, id, observer))
        .await
        .map_err(|error| StorageError::Internal(error.to_string()))?
}

fn open_blocking(data: &Path, id: u64, observer: Arc<dyn ApplyObserver>) -> Result<Disk, StorageError> {
    atomic_file::create_private_dir(data)?;
    let known = marker::check(data, id)?;
    let log = LogStore::open(&data.join("log"), known)?;
    let snapshots = SnapshotDir::open(data.join("snapshots"))?;
    let began = Instant::now();
    let (state, last_applied, membership) =
        match snapshots.load(log.purged_index().map_err(|error| StorageError::Internal(error.to_string()))?)? {
            Some(loaded) => (loaded.state, loaded.meta.last_log_id, loaded.meta.last_membership),
            None => (State::default(), None, openraft::StoredMembership::default()),
        };
    tracing::info!(revision = state.revision, took = ?began.elapsed(), "state read from the newest snapshot, if there is one");
    if !known {
        marker::write(data, id)?;
    }
    observer.restored(&state);
    let replica = Arc::new(Replica::new(state, last_applied, membership, observer));
    let state_machine = StateMachine::new(Arc::clone(&replica), snapshots.clone());
    Ok(Disk { log, state_machine, replica, snapshots })
}
