//! openraft's own suite for stores, and what a crash or damage does to the log.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use openraft::storage::{IOFlushed, RaftLogStorage as _, RaftLogStorageExt as _};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::vote::leader_id_std::CommittedLeaderId;
use openraft::{EntryPayload, RaftLogReader as _};
use tempfile::TempDir;

use super::*;
use crate::replication::types::{Entry, LogId, TypeConfig, Vote};
use crate::storage::SnapshotMade;

pub(super) struct Blind;

impl ApplyObserver for Blind {
    fn applied(&self, _state: &State, _applied: &comity_core::Applied) {}
    fn restored(&self, _state: &State) {}
    fn snapshot_made(&self, _: &SnapshotMade) {}
}

struct OnDisk;

impl StoreBuilder<TypeConfig, LogStore, StateMachine, TempDir> for OnDisk {
    async fn build(&self) -> Result<(TempDir, LogStore, StateMachine), openraft::StorageError<TypeConfig>> {
        let dir = tempfile::tempdir().unwrap();
        let disk = open(dir.path(), 1, Arc::new(Blind)).await.unwrap();
        Ok((dir, disk.log, disk.state_machine))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_passes_openrafts_suite() {
    Suite::test_all(OnDisk).await.unwrap();
}

fn blank(index: u64) -> Entry {
    Entry { log_id: LogId::new(CommittedLeaderId::new(1), index), payload: EntryPayload::Blank }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_that_wait_for_an_fsync_share_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = open(dir.path(), 1, Arc::new(Blind)).await.unwrap().log;
    log.blocking_append([blank(0)]).await.unwrap();
    let before = log.syncs();
    log.disk().stall();
    for index in 1..=200 {
        log.append([blank(index)], IOFlushed::noop()).await.unwrap();
    }
    log.disk().resume();
    log.blocking_append([blank(201)]).await.unwrap();
    let syncs = log.syncs() - before;
    assert!(syncs < 100, "{syncs} fsyncs for 201 writes, although all but one had to wait");
}

/// Writes a vote and ten entries, and gives back the log's only file.
async fn written(data: &Path) -> PathBuf {
    let mut log = open(data, 1, Arc::new(Blind)).await.unwrap().log;
    log.save_vote(&Vote::new(7, 1)).await.unwrap();
    for index in 0..10 {
        log.blocking_append([blank(index)]).await.unwrap();
    }
    drop(log);
    let mut files = fs::read_dir(data.join("log")).unwrap().map(|entry| entry.unwrap().path());
    files.find(|path| path.extension().is_some_and(|extension| extension == "wal")).unwrap()
}

async fn last_index(data: &Path) -> u64 {
    let mut log = open(data, 1, Arc::new(Blind)).await.unwrap().log;
    assert_eq!(log.read_vote().await.unwrap(), Some(Vote::new(7, 1)), "the vote is kept");
    log.get_log_state().await.unwrap().last_log_id.unwrap().index
}

#[tokio::test]
async fn a_torn_end_is_cut_off() {
    for (torn, last) in [(0, 9), (1, 8), (5, 8), (11, 8)] {
        let dir = tempfile::tempdir().unwrap();
        let file = written(dir.path()).await;
        let bytes = fs::read(&file).unwrap();
        fs::write(&file, &bytes[..bytes.len() - torn]).unwrap();
        assert_eq!(last_index(dir.path()).await, last, "{torn} bytes are missing");
        // And once more: what was cut off stays so.
        assert_eq!(last_index(dir.path()).await, last, "{torn} bytes are missing");
    }
}

#[tokio::test]
async fn damage_stops_the_broker_and_names_file_and_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let file = written(dir.path()).await;
    let bytes = fs::read(&file).unwrap();
    // Somewhere in each record, also in lengths: whatever is flipped, nothing acknowledged may be lost in silence.
    for at in 0..bytes.len() - 60 {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x55;
        fs::write(&file, &damaged).unwrap();
        let error = open(dir.path(), 1, Arc::new(Blind)).await.err();
        let error = error.unwrap_or_else(|| panic!("byte {at} was flipped and nobody noticed")).to_string();
        assert!(error.contains(&file.display().to_string()), "byte {at}: {error}");
        assert!(error.contains("comity-broker rebuild"), "byte {at}: {error}");
    }
}

#[tokio::test]
async fn a_directory_is_opened_once() {
    let dir = tempfile::tempdir().unwrap();
    let _open = open(dir.path(), 1, Arc::new(Blind)).await.unwrap();
    let error = open(dir.path(), 1, Arc::new(Blind)).await.err().unwrap();
    assert!(matches!(error, StorageError::InUse { .. }), "{error}");
}

/// The life that a directory is in, and whether its log is empty.
async fn life(data: &Path) -> (crate::replication::identity::Incarnation, bool) {
    let disk = open(data, 1, Arc::new(Blind)).await.unwrap();
    (disk.identity.incarnation(), disk.log.is_blank())
}

#[tokio::test]
async fn a_disk_that_lost_its_log_begins_a_new_life() {
    for lost in ["log", "format", "log and format", "end", "all but snapshots"] {
        let dir = tempfile::tempdir().unwrap();
        let (data, file) = (dir.path(), written(dir.path()).await);
        let (before, blank) = life(data).await;
        assert!(!blank);
        assert_eq!(life(data).await, (before.clone(), false), "a whole disk stays in its life");
        fs::create_dir_all(data.join("snapshots")).unwrap();
        match lost {
            "log" => fs::remove_file(&file).unwrap(),
            "format" => fs::remove_file(data.join("format")).unwrap(),
            "log and format" => {
                fs::remove_dir_all(data.join("log")).unwrap();
                fs::remove_file(data.join("format")).unwrap();
                fs::write(data.join("snapshots").join(format!("{:020}-{:020}.snapshot", 5, 1)), "").unwrap();
            }
            "end" => {
                let disk = open(data, 1, Arc::new(Blind)).await.unwrap();
                disk.log.note_reached(LogPosition { term: 1, index: 9 }).unwrap();
                drop(disk);
                let bytes = fs::read(&file).unwrap();
                fs::write(&file, &bytes[..bytes.len() - 30]).unwrap();
            }
            _ => {
                // A snapshot that was made here covers entries that the log does not have.
                fs::write(data.join("snapshots").join(format!("{:020}-{:020}.snapshot", 12, 1)), "").unwrap();
            }
        }
        let (after, blank) = life(data).await;
        assert!(blank && after != before, "{lost}: {before} {after} {blank}");
        assert!(data.join("lost-1").is_dir(), "{lost}: nothing was kept");
        assert_eq!(life(data).await.0, after, "{lost}: and stays in it");
    }
}

#[tokio::test]
async fn a_snapshot_of_the_leader_proves_no_loss() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path()).await;
    let before = life(dir.path()).await;
    let name = format!("{:020}-{:020}{}.snapshot", 12, 1, snapshot_dir::RECEIVED);
    fs::write(dir.path().join("snapshots").join(name), "").unwrap();
    assert_eq!(life(dir.path()).await, before);
}

#[tokio::test]
async fn a_broker_that_died_while_it_started_for_the_first_time_starts_again() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path(), 1, Arc::new(Blind)).await.unwrap());
    fs::remove_file(dir.path().join("format")).unwrap();
    open(dir.path(), 1, Arc::new(Blind)).await.unwrap();
}
