#![expect(clippy::unwrap_used, reason = "tests")]

use comity_core::{Records, State, Timestamp, snapshot};
use openraft::StoredMembership;
use openraft::vote::leader_id_std::CommittedLeaderId;

use super::*;
use crate::replication::types::LogId;

fn at(index: u64) -> Replicated {
    let mut records = Records::default();
    (records.revision, records.log_time) = (index, Timestamp(index));
    let last_applied = Some(LogId::new(CommittedLeaderId::new(1), index));
    Replicated::new(State::from(records), last_applied, StoredMembership::default())
}

fn dir_with(indexes: &[u64]) -> (tempfile::TempDir, SnapshotDir) {
    let temp = tempfile::tempdir().unwrap();
    let dir = SnapshotDir::open(temp.path().join("snapshots")).unwrap();
    for index in indexes {
        dir.make(&at(*index)).unwrap();
    }
    (temp, dir)
}

fn damage(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn revision(loaded: Result<Option<Loaded>, StorageError>) -> Option<u64> {
    loaded.unwrap().map(|loaded| loaded.state.revision)
}

#[test]
fn the_last_two_are_kept_and_the_newest_is_read() {
    let (_temp, dir) = dir_with(&[10, 20, 30]);
    assert_eq!(dir.files().len(), 2);
    let loaded = dir.load(Some(15)).unwrap().unwrap();
    assert_eq!(snapshot::digest(&loaded.state).unwrap(), snapshot::digest(&at(30).state).unwrap());
    assert_eq!(loaded.meta, at(30).meta());
}

#[test]
fn a_damaged_newest_falls_back_only_where_the_log_reaches() {
    let (_temp, dir) = dir_with(&[10, 20]);
    damage(&dir.files()[0]);
    assert_eq!(revision(dir.load(Some(10))), Some(10));
    assert_eq!(revision(dir.load(None)), Some(10));
    let error = dir.load(Some(11)).err().unwrap().to_string();
    assert!(error.contains("checksum") && error.contains("comity-broker rebuild"), "{error}");
    assert!(error.contains(&dir.files()[0].display().to_string()), "{error}");
}

#[test]
fn without_snapshots_the_log_must_be_whole() {
    let (_temp, dir) = dir_with(&[]);
    assert_eq!(revision(dir.load(None)), None);
    assert!(matches!(dir.load(Some(3)), Err(StorageError::Damaged { .. })));
}

#[test]
fn every_flipped_or_missing_byte_is_noticed() {
    let (_temp, dir) = dir_with(&[10]);
    let path = dir.files().remove(0);
    let bytes = fs::read(&path).unwrap();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert!(snapshot_file::read(&path, io::Cursor::new(&damaged)).is_err(), "byte {at}");
        assert!(snapshot_file::read(&path, io::Cursor::new(&bytes[..at])).is_err(), "cut at {at}");
    }
}

#[test]
fn what_was_said_about_an_incoming_snapshot_must_hold() {
    let (_temp, dir) = dir_with(&[10]);
    let bytes = fs::read(dir.files().remove(0)).unwrap();
    let mut incoming = dir.receive().unwrap();
    incoming.write(&bytes).unwrap();
    let handle = incoming.finish();
    let path = handle.path.clone();
    assert!(dir.install(&at(11).meta(), &handle).is_err());
    assert_eq!(dir.install(&at(10).meta(), &handle).unwrap().state.revision, 10);
    drop(handle);
    assert!(!path.exists(), "the temporary file is gone");
}
