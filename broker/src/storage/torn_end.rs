//! Distinguishes a torn end of the log from damage.
//!
//! raft-log cuts off an incomplete record at the end of the newest chunk. A damaged length looks the same: the record
//! then seems to reach beyond the end of the file, and whole, acknowledged records behind it would go with it. So
//! before the log is opened, the newest chunk is read: where a record is incomplete but a whole one follows it, that is
//! damage.

use std::fs;
use std::path::{Path, PathBuf};

use raft_log::RaftWalTypes;
use raft_log::chunked_wal::{self, WALRecord};
use raft_log::codeq::Decode as _;

use crate::storage::storage_error::StorageError;
use crate::storage::wal_types::WalTypes;

type Record = WALRecord<RaftWalTypes<WalTypes>>;

/// Looks for whole records behind an incomplete one, in the newest chunk.
pub(super) fn check(config: &chunked_wal::Config) -> Result<(), StorageError> {
    let Some(path) = chunks(Path::new(&config.dir)).pop() else { return Ok(()) };
    let bytes = fs::read(&path).map_err(|error| StorageError::of_io(&path, &error))?;
    let Some(broken) = first_broken(&bytes) else { return Ok(()) };
    match whole_record_behind(&bytes, broken) {
        None => Ok(()),
        Some(whole) => Err(StorageError::damaged(
            path,
            format!("the record at byte {broken} cannot be read, but whole records follow from byte {whole}"),
        )),
    }
}

/// Where the first record begins that cannot be read.
fn first_broken(bytes: &[u8]) -> Option<usize> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let at = bytes.len() - rest.len();
        if Record::decode(&mut rest).is_err() {
            return Some(at);
        }
    }
    None
}

/// Records begin with a type below 6 in four bytes, and end with a checksum over everything: to find one by chance is
/// as likely as to find a checksum by chance.
fn whole_record_behind(bytes: &[u8], broken: usize) -> Option<usize> {
    (broken + 1..bytes.len().saturating_sub(4))
        .find(|&at| bytes[at..at + 3] == [0, 0, 0] && bytes[at + 3] <= 5 && Record::decode(&mut &bytes[at..]).is_ok())
}

/// The log's files, oldest first.
pub(super) fn chunks(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "wal"))
        .collect();
    paths.sort();
    paths
}

/// The file that an error of raft-log is about, which names it by its number; the directory if it names none.
pub(super) fn chunk_named_in(dir: &Path, error: &str) -> PathBuf {
    chunks(dir)
        .into_iter()
        .find(|path| {
            let name = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.strip_prefix("r-"));
            name.is_some_and(|number| error.contains(number))
        })
        .unwrap_or_else(|| dir.to_owned())
}
