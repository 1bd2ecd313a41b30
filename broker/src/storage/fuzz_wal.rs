//! Fuzzes the files of the log. The checksum of each record is made for each input: edits of the rest would never get
//! past it.

use std::fs;

use bytes::Bytes;
use comity_fuzz::fuzz;
use openraft::EntryPayload;
use openraft::vote::leader_id_std::CommittedLeaderId;
use raft_log::RaftWalTypes;
use raft_log::api::raft_log_writer::RaftLogWriter as _;
use raft_log::chunked_wal::WALRecord;
use raft_log::codeq::Decode as _;

use super::*;
use crate::replication::types::{Entry, LogId, Proposed, Vote};
use crate::storage::wal_types::{Payload, StoredVote, WalTypes};

/// Bytes of a record's checksum.
const CHECKSUM_BYTES: usize = 8;

/// The records of a file without their checksums, each with its length in two bytes before it.
fn without_checksums(file: &[u8]) -> Vec<u8> {
    let (mut rest, mut input) = (file, Vec::new());
    while !rest.is_empty() {
        let from = rest;
        WALRecord::<RaftWalTypes<WalTypes>>::decode(&mut rest).expect("a record");
        let record = &from[..from.len() - rest.len() - CHECKSUM_BYTES];
        input.extend(u16::try_from(record.len()).expect("a short record").to_be_bytes());
        input.extend(record);
    }
    input
}

/// The reverse.
fn with_checksums(mut input: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    while let Some((length, rest)) = input.split_first_chunk() {
        let (record, rest) = rest.split_at(usize::from(u16::from_be_bytes(*length)).min(rest.len()));
        file.extend(record);
        file.extend(u64::from(crc32fast::hash(record)).to_be_bytes());
        input = rest;
    }
    file
}

#[test]
fn files_of_the_log() {
    // On a disk most of the time would go into its flushes.
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let dir = dir.expect("a directory");
    let log_dir = dir.path().join("log");
    let reached = Reached::open(dir.path());
    let log = LogStore::open(&log_dir, reached.clone()).expect("opened");
    let entry = |index, payload| Entry { log_id: LogId::new(CommittedLeaderId::new(1), index), payload };
    let proposed = Proposed::stored(Bytes::from_static(b"a command"));
    let entries = [entry(0, EntryPayload::Blank), entry(1, EntryPayload::Normal(proposed))];
    log.write_and_sync(|log| {
        log.save_vote(StoredVote(Vote::new_committed(1, 1)))?;
        for entry in &entries {
            log.append([((1, entry.log_id.index), Payload::of(entry)?)])?;
        }
        log.truncate(1)?;
        log.purge((1, 0)).map(drop)
    })
    .expect("written");
    log.close();
    let chunk = torn_end::chunks(&log_dir).pop().expect("a chunk");
    let valid = without_checksums(&fs::read(&chunk).expect("readable"));
    fuzz!("log_file", vec![valid], move |input: &[u8]| {
        for old in torn_end::chunks(&log_dir) {
            fs::remove_file(old).expect("removed");
        }
        fs::write(&chunk, with_checksums(input)).expect("written");
        let Ok(log) = LogStore::open(&log_dir, reached.clone()).map_err(|error| error.to_string()) else {
            return false;
        };
        let last = log.last_position().map_or(0, |last| last.index);
        let _ = (log.id_at(last), log.range(last.saturating_sub(1), last.saturating_add(1)));
        log.close();
        // The folder is there for as long as the door.
        dir.path().exists()
    });
}
