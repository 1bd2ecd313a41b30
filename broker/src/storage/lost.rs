//! Tells a disk that lost its log, or the end of it, from one that is new or whole.
//!
//! A broker that forgot a vote or an entry that it acknowledged must not vote as if it had not. It begins a new life:
//! what is left is set aside, and the group gives it everything again before it votes.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::storage::reached::{self, Place};
use crate::storage::storage_error::StorageError;
use crate::storage::{marker, torn_end};

/// Directories of this name hold what an earlier life left.
const ASIDE: &str = "lost-";
/// How many of them are kept. Two, for a crash while things are moved leaves them in two.
const KEPT: usize = 2;

/// What proves a loss, in words, without opening the log: the marker says that there was one.
pub(super) fn without_opening(data: &Path, marker: Option<&marker::Marker>) -> Option<String> {
    let log_is_gone = torn_end::chunks(&data.join("log")).is_empty();
    match marker {
        Some(marker) if marker.lost.is_some() => marker.lost.clone(),
        Some(_) if log_is_gone => Some("the log's files are gone, and with them this broker's vote".to_owned()),
        None if log_is_gone && newest_snapshot(data).is_some() => {
            Some("there is a snapshot, but neither a log nor the file that says whose it was".to_owned())
        }
        _ => None,
    }
}

/// What the end of an opened log proves. `last` is its last entry, deleted ones included.
pub(super) fn by_the_end(data: &Path, last: Option<Place>, reached: Option<Place>) -> Option<String> {
    let said = |place: Option<Place>| place.map_or(0, |place| place.index);
    if reached > last {
        return Some(format!("the log ends at entry {}, but had reached entry {}", said(last), said(reached)));
    }
    let made = newest_made_here(data);
    if made > last {
        return Some(format!(
            "the log ends at entry {}, but this broker made a snapshot up to entry {}",
            said(last),
            said(made)
        ));
    }
    None
}

/// Moves everything that belongs to the ended life into a directory of its own, and returns that.
pub(super) fn set_aside(data: &Path) -> Result<PathBuf, StorageError> {
    let mut earlier = aside(data);
    earlier.sort_by_key(|path| number_of(path));
    let number = earlier.last().and_then(|path| number_of(path)).unwrap_or(0) + 1;
    let to = data.join(format!("{ASIDE}{number}"));
    let moved = || -> io::Result<()> {
        fs::create_dir(&to)?;
        // The marker goes last: until then the next start finds the same loss.
        for name in ["log", "snapshots", reached::FILE, "clock", marker::FILE] {
            match fs::rename(data.join(name), to.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::File::open(data)?.sync_all()
    };
    moved().map_err(|error| StorageError::Internal(format!("cannot set {} aside: {error}", data.display())))?;
    for path in earlier.into_iter().rev().skip(KEPT - 1) {
        // Disk is all that an older one costs.
        let _ = fs::remove_dir_all(path);
    }
    Ok(to)
}

fn aside(data: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(data).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| number_of(path).is_some()).collect()
}

fn number_of(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix(ASIDE)?.parse().ok()
}

fn newest_snapshot(data: &Path) -> Option<Place> {
    snapshot_names(data).filter_map(|name| place_of(&name)).max()
}

/// A snapshot that came from the leader may be ahead of the log: the entries that it covers need not have been here.
fn newest_made_here(data: &Path) -> Option<Place> {
    let made = snapshot_names(data).filter(|name| !name.contains(crate::storage::snapshot_dir::RECEIVED));
    made.filter_map(|name| place_of(&name)).max()
}

fn snapshot_names(data: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(data.join("snapshots")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

/// Snapshots are named for the entry after the last that they cover, and for its term.
fn place_of(name: &str) -> Option<Place> {
    let stem = name.strip_suffix(".snapshot")?;
    let stem = stem.strip_suffix(crate::storage::snapshot_dir::RECEIVED).unwrap_or(stem);
    let (next, term) = stem.split_once('-')?;
    Some(Place { term: term.parse().ok()?, index: next.parse::<u64>().ok()?.checked_sub(1)? })
}
