//! Detects a lost log, or one that lost its end.
//!
//! A broker that forgot a vote or an acknowledged entry must not vote. It starts a new incarnation: the remains are set
//! aside, and the group sends it everything before it votes again.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::storage::reached::{self, LogPosition};
use crate::storage::storage_error::StorageError;
use crate::storage::{marker, torn_end};

/// Name prefix of directories with remains of earlier incarnations.
const ASIDE: &str = "lost-";

/// Describes a loss that shows before the log is opened: the marker proves that a log existed.
pub(super) fn loss_before_opening_log(data: &Path, marker: Option<&marker::Marker>) -> Option<String> {
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

/// Describes a loss that the end of the opened log shows. `last` is its last entry, purged ones included.
pub(super) fn loss_shown_by_log_end(
    data: &Path,
    last: Option<LogPosition>,
    reached: Option<LogPosition>,
) -> Option<String> {
    let said = |place: Option<LogPosition>| place.map_or(0, |place| place.index);
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

/// Moves the remains of the ended incarnation into a new directory, which it returns. Keeps the remains before them,
/// because a crash during the move splits them, and those that reach farthest: the later ones may be empty.
pub(super) fn set_aside(data: &Path) -> Result<PathBuf, StorageError> {
    let mut earlier = remains(data);
    let number = earlier.last().and_then(|path| number_of(path)).unwrap_or(0) + 1;
    let to = data.join(format!("{ASIDE}{number}"));
    let moved = || -> io::Result<()> {
        fs::create_dir(&to)?;
        // The marker goes last: until then the next start finds the same loss.
        for name in ["log", "snapshots", reached::REACHED_FILE, "clock", marker::MARKER_FILE] {
            match fs::rename(data.join(name), to.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::File::open(data)?.sync_all()
    };
    moved().map_err(|error| StorageError::Internal(format!("cannot set {} aside: {error}", data.display())))?;
    earlier.pop();
    let farthest = earlier.iter().max_by_key(|path| reaches(path)).cloned();
    for path in earlier.into_iter().filter(|path| Some(path) != farthest.as_ref()) {
        // A directory that stays only takes space.
        let _ = fs::remove_dir_all(path);
    }
    Ok(to)
}

/// Whether something is left of an earlier incarnation.
pub(crate) fn has_remains(data: &Path) -> bool {
    !remains(data).is_empty()
}

/// The directories with remains of earlier incarnations, the latest last.
pub(super) fn remains(data: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(data).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| is_remains(path)).collect();
    found.sort_by_key(|path| number_of(path));
    found
}

/// Whether a directory has this name because it holds remains.
pub(super) fn is_remains(path: &Path) -> bool {
    number_of(path).is_some()
}

/// How far remains reach, as far as that shows without reading the log.
fn reaches(aside: &Path) -> Option<LogPosition> {
    let log = || reached::Reached::open(aside).get();
    let has_log = !torn_end::chunks(&aside.join("log")).is_empty();
    newest_snapshot(aside).max(has_log.then(log).flatten())
}

fn number_of(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix(ASIDE)?.parse().ok()
}

fn newest_snapshot(data: &Path) -> Option<LogPosition> {
    snapshot_names(data).filter_map(|name| position_in(&name)).max()
}

/// Ignores snapshots received from the leader: the log need not have had their entries.
fn newest_made_here(data: &Path) -> Option<LogPosition> {
    let made = snapshot_names(data).filter(|name| !name.contains(crate::storage::snapshot_dir::RECEIVED));
    made.filter_map(|name| position_in(&name)).max()
}

fn snapshot_names(data: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(data.join("snapshots")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

/// Parses a snapshot name: index after the last entry covered, and its term.
fn position_in(name: &str) -> Option<LogPosition> {
    let stem = name.strip_suffix(".snapshot")?;
    let stem = stem.strip_suffix(crate::storage::snapshot_dir::RECEIVED).unwrap_or(stem);
    let (next, term) = stem.split_once('-')?;
    Some(LogPosition { term: term.parse().ok()?, index: next.parse::<u64>().ok()?.checked_sub(1)? })
}
