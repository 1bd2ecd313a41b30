//! The openraft state machine: applies entries, makes and installs snapshots.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use comity_core::IllegalChange;
use futures::{Stream, TryStreamExt as _};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder, Snapshot, StoredMembership as Stored};

use crate::replication::types::{LogId, SnapshotMeta, StoredMembership, TypeConfig};
use crate::storage::SnapshotMade;
use crate::storage::audit_store::AuditStore;
use crate::storage::replica::{Replica, Replicated};
use crate::storage::snapshot_dir::SnapshotDir;
use crate::storage::snapshot_file::{RaftSnapshot, SnapshotHandle};
use crate::storage::snapshot_pace::SnapshotPace;

/// Applies the log to the `Replica`.
pub struct StateMachine {
    replica: Arc<Replica>,
    snapshots: SnapshotDir,
    pace: SnapshotPace,
    audit: AuditStore,
}

impl StateMachine {
    pub(super) fn new(replica: Arc<Replica>, snapshots: SnapshotDir, audit: AuditStore) -> Self {
        Self { replica, snapshots, pace: SnapshotPace::default(), audit }
    }
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = SnapshotHandle;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        Ok(self.replica.read(|replicated| (replicated.last_applied, replicated.membership.clone())))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let log_id = entry.log_id;
            let reply = match entry.payload {
                EntryPayload::Blank => {
                    self.replica.advance(log_id, None);
                    None
                }
                EntryPayload::Normal(proposed) => {
                    let envelope = proposed
                        .take()
                        .map_err(|error| io::Error::new(error.kind(), format!("log entry {log_id}: {error}")))?;
                    let applied = self.replica.apply(log_id, &envelope);
                    let mut applied = applied.map_err(|illegal| stop_at(log_id, envelope.command.name(), &illegal))?;
                    self.audit.append(std::mem::take(&mut applied.audit)).await?;
                    Some(applied)
                }
                EntryPayload::Membership(membership) => {
                    self.replica.advance(log_id, Some(Stored::new(Some(log_id), membership)));
                    None
                }
            };
            if let Some(responder) = responder {
                responder.send(reply);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        SnapshotBuilder {
            replica: Arc::clone(&self.replica),
            snapshots: self.snapshots.clone(),
            pace: self.pace.clone(),
            audit: self.audit.clone(),
        }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: SnapshotHandle) -> io::Result<()> {
        let (snapshots, wanted) = (self.snapshots.clone(), meta.clone());
        let loaded = blocking(move || snapshots.install(&wanted, &snapshot)).await?;
        self.audit.restored(&loaded.state)?;
        self.replica.replace(loaded.state, meta);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<RaftSnapshot>> {
        let snapshots = self.snapshots.clone();
        let current = blocking(move || snapshots.current()).await?;
        Ok(current.map(|(meta, snapshot)| Snapshot { meta, snapshot }))
    }
}

/// The error that stops this broker, because an entry would have broken the state.
fn stop_at(log_id: LogId, command: &str, illegal: &IllegalChange) -> io::Error {
    io::Error::other(format!(
        "log entry {log_id} ({command}): {illegal}. This is a bug: keep the data directory, report it with this line, \
         and install a release that mends it"
    ))
}

/// Makes snapshots in parallel with apply.
pub struct SnapshotBuilder {
    replica: Arc<Replica>,
    snapshots: SnapshotDir,
    pace: SnapshotPace,
    audit: AuditStore,
}

impl RaftSnapshotBuilder<TypeConfig> for SnapshotBuilder {
    type SnapshotData = SnapshotHandle;

    async fn build_snapshot(&mut self) -> io::Result<RaftSnapshot> {
        self.pace.wait().await;
        let (replica, snapshots, pace) = (Arc::clone(&self.replica), self.snapshots.clone(), self.pace.clone());
        let audit = self.audit.clone();
        let (meta, snapshot) = blocking(move || {
            let began = Instant::now();
            // Apply waits only for the copy, not for encoding, compressing and writing.
            let replicated = replica.read(Replicated::copy_for_snapshot).map_err(io::Error::other)?;
            let held_up = began.elapsed();
            // The log is purged up to a snapshot, and cannot make these records again.
            audit.flush()?;
            let (meta, snapshot) = snapshots.make(&replicated)?;
            drop(replicated);
            let made = SnapshotMade { took: began.elapsed(), held_up, bytes: snapshot.file.metadata()?.len() };
            tracing::info!(covers = %meta, bytes = made.bytes, took = ?made.took, held_up = ?made.held_up, "snapshot \
                made");
            pace.made(made.took);
            replica.snapshot_made(&made);
            Ok((meta, snapshot))
        })
        .await?;
        Ok(Snapshot { meta, snapshot })
    }
}

async fn blocking<T: Send + 'static>(f: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(f).await.map_err(io::Error::other)?
}
