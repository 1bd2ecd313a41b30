//! Reads a data directory without its group, and founds a new group on it.

mod best_copy;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use comity_audit::SealedRecord;
use comity_core::Actor;
use comity_core::command::RecoverGroup;
use comity_core::log::LOG_FORMAT;
use comity_core::{Command, IllegalChange, LogEnvelope, State};
use openraft::{EntryPayload, Membership, StoredMembership};

use crate::replication::identity::GroupId;
use crate::replication::member::{MemberAddress, MemberNode};
use crate::replication::types::{LogId, Vote};
use crate::storage::audit_store;
use crate::storage::log_store::LogStore;
use crate::storage::lost;
use crate::storage::marker::Marker;
use crate::storage::reached::{LogPosition, Reached};
use crate::storage::replica::Replicated;
use crate::storage::snapshot_dir::SnapshotDir;
use crate::storage::storage_error::StorageError;

pub(crate) use best_copy::{BestCopy, read_best};

const ENTRIES_PER_READ: u64 = 1_024;

/// Contents of a copy.
pub(crate) struct SurvivingCopy {
    /// State with every entry applied, committed or not.
    pub(crate) state: State,
    /// The last entry.
    pub(crate) last: LogId,
    /// Records of the audit log that the entries after the newest snapshot make.
    audit: Vec<SealedRecord>,
    /// Last entry known to be committed.
    pub(crate) committed: Option<u64>,
    /// Group of the copy.
    pub(crate) group: Option<GroupId>,
    /// Groups that one was recovered from.
    replaces: Vec<GroupId>,
}

/// Reads the copy of broker `id` in `data`; blocks. Truncates a torn end, so pass a scratch copy.
pub(crate) fn read(data: &Path, id: u64) -> Result<SurvivingCopy, StorageError> {
    let marker = Marker::read(data, id)?;
    let log = LogStore::open(&data.join("log"), Reached::open(data))?;
    let internal = |error: std::io::Error| StorageError::Internal(error.to_string());
    let snapshots = SnapshotDir::open(data.join("snapshots"))?;
    let loaded = snapshots.load(log.purged_index().map_err(internal)?)?;
    let (mut state, mut last) =
        loaded.map_or_else(|| (State::default(), None), |loaded| (loaded.state, loaded.meta.last_log_id));
    let mut audit = Vec::new();
    loop {
        let from = last.map_or(0, |id: LogId| id.index.saturating_add(1));
        let entries = log.range(from, from.saturating_add(ENTRIES_PER_READ)).map_err(internal)?;
        for entry in &entries {
            if let EntryPayload::Normal(proposed) = &entry.payload {
                audit.extend(state.apply(&proposed.take().map_err(internal)?).map_err(illegal)?.audit);
            }
            last = Some(entry.log_id);
        }
        if entries.is_empty() {
            break;
        }
    }
    let committed = log.committed_index().map_err(internal)?;
    log.close();
    let last = last.ok_or_else(|| StorageError::NoEntry { path: data.to_owned() })?;
    let replaces = marker.as_ref().map(|marker| marker.replaces.clone()).unwrap_or_default();
    Ok(SurvivingCopy { state, last, audit, committed, group: marker.and_then(|marker| marker.group), replaces })
}

fn illegal(error: IllegalChange) -> StorageError {
    StorageError::Internal(error.to_string())
}

/// Reads a copy of `group_dir`, which stays as it is; blocks.
pub(crate) fn read_beside(group_dir: &Path, id: u64) -> Result<SurvivingCopy, StorageError> {
    read_at(group_dir, group_dir, id)
}

/// Reads `dir` by a copy of it beside `group_dir`.
fn read_at(dir: &Path, group_dir: &Path, id: u64) -> Result<SurvivingCopy, StorageError> {
    if !dir.exists() {
        return Err(StorageError::NoEntry { path: dir.to_owned() });
    }
    let work = Work(group_dir.with_file_name(format!("group.reading-{}", std::process::id())));
    copy_dir(dir, &work.0)?;
    read(&work.0, id).map_err(|error| error.of_original(&work.0, dir))
}

/// A directory that goes with this.
struct Work(PathBuf);

impl Drop for Work {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn copy_dir(from: &Path, to: &Path) -> Result<(), StorageError> {
    let fail = |error: std::io::Error| StorageError::Internal(format!("cannot copy {}: {error}", from.display()));
    comity_runtime::atomic_file::create_private_dir(to)?;
    for entry in fs::read_dir(from).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        // Remains of earlier incarnations are copies of their own.
        if lost::is_remains(&entry.path()) {
            continue;
        }
        let target = to.join(entry.file_name());
        if entry.file_type().map_err(fail)?.is_dir() {
            copy_dir(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target).map_err(fail)?;
        }
    }
    Ok(())
}

/// Creates the data directory `data`, which must not exist, of a new group with the copy's state and the single voter
/// `id`. The audit log goes on from that of the data directory `old_data`. Blocks.
pub(crate) fn found_on(
    copy: SurvivingCopy,
    (old_data, data): (&Path, &Path),
    id: u64,
    address: MemberAddress,
) -> Result<GroupId, StorageError> {
    let SurvivingCopy { mut state, last, mut audit, group: old, replaces, .. } = copy;
    let reaches = state.audit.size();
    let internal = |error: std::io::Error| StorageError::Internal(error.to_string());
    let recovery = LogEnvelope {
        format: LOG_FORMAT,
        actor: Actor::Leader(id),
        generation: 0,
        time: state.log_time,
        traceparent: String::new(),
        idempotency: None,
        command: Command::RecoverGroup(RecoverGroup { broker: id }),
    };
    audit.extend(state.apply(&recovery).map_err(illegal)?.audit);
    comity_runtime::atomic_file::create_private_dir(data)?;
    audit_store::carry_over(old_data, data, reaches, audit)?;
    let group = GroupId::draw();
    let mut marker = Marker::fresh(id, Some(group.clone()));
    marker.replaces = replaces.into_iter().chain(old).collect();
    let node = MemberNode { address, incarnation: marker.incarnation() };
    let membership = Membership::new(vec![BTreeSet::from([id])], BTreeMap::from([(id, node)]))
        .map_err(|error| StorageError::Internal(error.to_string()))?;
    let replicated = Replicated::new(state, Some(last), StoredMembership::new(Some(last), membership));
    SnapshotDir::open(data.join("snapshots"))?.make(&replicated).map_err(internal)?;
    let log = LogStore::open(&data.join("log"), Reached::open(data))?;
    log.begin_after(last, Vote::new(last.leader_id.term, id)).map_err(internal)?;
    log.close();
    // Written last: a directory with a marker is complete.
    marker.write(data)?;
    Ok(group)
}

impl SurvivingCopy {
    /// Whether its group was itself recovered from a copy.
    pub(crate) fn is_recovered(&self) -> bool {
        !self.replaces.is_empty()
    }

    /// The last entry.
    pub(crate) fn end(&self) -> LogPosition {
        LogPosition { term: self.last.leader_id.term, index: self.last.index }
    }
}

impl LogStore {
    /// Makes an empty log continue after `last`; blocks.
    fn begin_after(&self, last: LogId, vote: Vote) -> std::io::Result<()> {
        self.write_and_sync(move |log| {
            use raft_log::api::raft_log_writer::RaftLogWriter as _;
            log.save_vote(crate::storage::wal_types::StoredVote(vote))?;
            log.purge((last.leader_id.term, last.index)).map(drop)
        })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn an_empty_directory_is_no_copy() {
        let dir = tempfile::tempdir().unwrap();
        let error = read(dir.path(), 1).err().unwrap().to_string();
        assert!(error.contains("neither a log entry nor a snapshot"), "{error}");
    }
}
