//! The data directory of a broker.
//!
//! ```text
//!   <data>/format      broker, incarnation and group of the directory
//!   <data>/log/        vote and log entries in checksummed chunks (raft-log)
//!   <data>/peers       the last start of each peer that said hello
//!   <data>/reached     position that the log is known to have reached
//!   <data>/snapshots/  the last two snapshots, each with a checksum
//!   <data>/audit.redb  the records of the audit log
//!   <data>/lost-N/     remains of an earlier incarnation
//! ```
//!
//! A torn end of the log after a crash is truncated: it was never acknowledged. A log that is missing, or ends before
//! `reached` or a snapshot, starts a new incarnation: see `lost`. Any other damage stops the broker, because guessing
//! could forget a vote or an acknowledged entry. A fault of the disk (full, read-only, failing) also stops it; once the
//! fault is fixed, the broker continues.

mod apply_observer;
mod audit_store;
mod disk_fault;
#[cfg(test)]
mod fuzz_snapshot;
#[cfg(test)]
mod fuzz_wal;

mod log_store;
mod lost;
mod marker;
mod peer_starts;
mod reached;
mod replica;
mod snapshot_dir;
mod snapshot_file;
mod snapshot_pace;
mod state_machine;
mod storage_error;
mod surviving_copy;
mod torn_end;
mod wal_types;

#[cfg(test)]
mod suite_tests;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use comity_core::State;
use comity_runtime::atomic_file;
use marker::Marker;
use reached::Reached;

pub use apply_observer::{ApplyObserver, SnapshotMade};
pub(crate) use audit_store::AuditStore;
pub use disk_fault::DiskFault;
#[cfg(test)]
pub(crate) use disk_fault::disk_watch::DiskWatch;
pub(crate) use log_store::LogStore;
pub(crate) use lost::has_remains;
pub(crate) use marker::DiskIdentity;
pub(crate) use peer_starts::PeerStarts;
pub(crate) use reached::LogPosition;
pub(crate) use replica::Replica;
pub(crate) use snapshot_dir::{IncomingSnapshot, SnapshotDir};
pub(crate) use snapshot_file::RaftSnapshot;
pub use snapshot_file::SnapshotHandle;
pub use state_machine::StateMachine;
pub use storage_error::StorageError;
#[cfg(test)]
pub(crate) use surviving_copy::read as read_copy;
pub(crate) use surviving_copy::{BestCopy, found_on, read_beside, read_best};

/// Describes a disk fault that stopped consensus, from the text of its error.
pub(crate) fn fault_in(data: &Path, reason: &str) -> Option<String> {
    let fault = DiskFault::of_text(reason)?;
    Some(StorageError::Disk { path: data.to_owned(), fault, reason: reason.to_owned() }.to_string())
}

/// An opened data directory.
pub(crate) struct Disk {
    pub(crate) identity: DiskIdentity,
    pub(crate) peer_starts: PeerStarts,
    /// Whether the log was empty: this incarnation has acknowledged nothing yet.
    pub(crate) is_blank: bool,
    pub(crate) log: LogStore,
    pub(crate) state_machine: StateMachine,
    pub(crate) replica: Arc<Replica>,
    pub(crate) snapshots: SnapshotDir,
    pub(crate) audit: AuditStore,
}

/// Opens or creates the data directory of broker `id`, and passes the state of its newest snapshot to the observer. If
/// the log was lost, sets the remains aside and starts a new incarnation.
///
/// # Errors
/// [`StorageError`] with the file and the remedy.
pub(crate) async fn open(data: &Path, id: u64, observer: Arc<dyn ApplyObserver>) -> Result<Disk, StorageError> {
    let data = data.to_owned();
    tokio::task::spawn_blocking(move || open_blocking(&data, id, observer))
        .await
        .map_err(|error| StorageError::Internal(error.to_string()))?
}

fn open_blocking(data: &Path, id: u64, observer: Arc<dyn ApplyObserver>) -> Result<Disk, StorageError> {
    atomic_file::create_private_dir(data)?;
    let (identity, log) = open_log(data, id)?;
    let snapshots = SnapshotDir::open(data.join("snapshots"))?;
    let began = Instant::now();
    let (state, last_applied, membership) =
        match snapshots.load(log.purged_index().map_err(|error| StorageError::Internal(error.to_string()))?)? {
            Some(loaded) => (loaded.state, loaded.meta.last_log_id, loaded.meta.last_membership),
            None => (State::default(), None, openraft::StoredMembership::default()),
        };
    tracing::info!(revision = state.revision, took = ?began.elapsed(), "state read from the newest snapshot, if there \
        is one");
    let audit = AuditStore::open(data)?;
    audit.restored(&state).and_then(|()| audit.flush()).map_err(|error| StorageError::AuditLog(error.to_string()))?;
    observer.restored(&state);
    let replica = Arc::new(Replica::new(state, last_applied, membership, observer));
    let state_machine = StateMachine::new(Arc::clone(&replica), snapshots.clone(), audit.clone());
    Ok(Disk {
        identity,
        peer_starts: PeerStarts::open(data),
        is_blank: log.is_blank(),
        log,
        state_machine,
        replica,
        snapshots,
        audit,
    })
}

/// Opens the log and its identity.
fn open_log(data: &Path, id: u64) -> Result<(DiskIdentity, LogStore), StorageError> {
    let marker = Marker::read(data, id)?;
    let group = marker.as_ref().and_then(|marker| marker.group.clone());
    let replaces = marker.as_ref().map(|marker| marker.replaces.clone()).unwrap_or_default();
    let mut loss = lost::loss_before_opening_log(data, marker.as_ref());
    if loss.is_none() {
        let reached = Reached::open(data);
        let log = LogStore::open(&data.join("log"), reached.clone())?;
        loss = match &marker {
            None if !log.is_blank() => Some("the file that says whose log this is, \"format\", is gone".to_owned()),
            _ => lost::loss_shown_by_log_end(data, log.last_position(), reached.get()),
        };
        match (&loss, marker) {
            (None, Some(marker)) => return Ok((identity(data, marker)?, log)),
            // New, or an earlier start was interrupted.
            (None, None) => {
                return Ok((identity(data, Marker::fresh(id, None))?, log));
            }
            (Some(_), _) => log.close(),
        }
    }
    let aside = lost::set_aside(data)?;
    tracing::warn!(
        reason = loss.unwrap_or_default(),
        kept = %aside.display(),
        "this broker lost its log; it asks its group for everything, and votes again once it has caught up"
    );
    let log = LogStore::open(&data.join("log"), Reached::open(data))?;
    let mut fresh = Marker::fresh(id, group);
    fresh.replaces = replaces;
    Ok((identity(data, fresh)?, log))
}

/// Notes on disk that the broker starts.
fn identity(data: &Path, mut marker: Marker) -> Result<DiskIdentity, StorageError> {
    marker.begin_start();
    marker.write(data)?;
    Ok(DiskIdentity::new(data, marker))
}
