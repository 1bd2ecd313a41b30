//! The directory of snapshots: the last two, the newest in use.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use comity_runtime::atomic_file;
use tracing::warn;

use crate::replication::types::SnapshotMeta;
use crate::storage::replica::Replicated;
use crate::storage::snapshot_file::{self, Loaded, MAX_FILE_BYTES, SnapshotHandle};
use crate::storage::storage_error::StorageError;

/// Snapshots kept: the previous one is the fallback if the newest is damaged.
const MAX_SNAPSHOTS_KEPT: usize = 2;
const EXTENSION: &str = "snapshot";
const TEMPORARY: &str = "incoming";
/// Marks a snapshot received from the leader: it may cover entries that this broker's log never had.
pub(super) const RECEIVED: &str = ".received";

/// The snapshots of one broker. Clones share them.
#[derive(Clone)]
pub(crate) struct SnapshotDir {
    inner: Arc<SnapshotDirInner>,
}

struct SnapshotDirInner {
    dir: PathBuf,
    current: Mutex<Option<(SnapshotMeta, PathBuf)>>,
    incoming: AtomicU64,
}

impl SnapshotDir {
    /// Opens or creates the directory and removes temporary files. Blocks, as all calls here do.
    pub(super) fn open(dir: PathBuf) -> Result<Self, StorageError> {
        atomic_file::create_private_dir(&dir)?;
        for path in with_extension(&dir, TEMPORARY) {
            let _ = fs::remove_file(path);
        }
        Ok(Self { inner: Arc::new(SnapshotDirInner { dir, current: Mutex::new(None), incoming: AtomicU64::new(0) }) })
    }

    /// Reads the newest snapshot. If it is damaged, falls back to the previous one, provided that the log, purged up to
    /// `purged`, has every later entry.
    pub(super) fn load(&self, purged: Option<u64>) -> Result<Option<Loaded>, StorageError> {
        let mut first_error = None;
        for path in self.files() {
            match read(&path) {
                Ok(loaded) => {
                    let covered = loaded.meta.last_log_id.map(|id| id.index);
                    if covered < purged {
                        let error = first_error.unwrap_or_else(|| {
                            let reason = format!("it ends at entry {covered:?}, but the log begins after {purged:?}");
                            StorageError::damaged(&path, reason)
                        });
                        return Err(error);
                    }
                    if let Some(error) = first_error {
                        warn!(%error, used = %path.display(), "the newest snapshot is damaged; the one before it is \
                            used");
                    }
                    self.set_current(&loaded.meta, path);
                    return Ok(Some(loaded));
                }
                Err(error @ StorageError::Damaged { .. }) => {
                    first_error.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        match (first_error, purged) {
            // The log reaches back to its beginning: nothing is lost.
            (Some(error), None) => {
                warn!(%error, "no snapshot can be read; the whole log is applied again");
                Ok(None)
            }
            (Some(error), Some(_)) => Err(error),
            (None, Some(purged)) => Err(StorageError::damaged(
                &self.inner.dir,
                format!("there is no snapshot, but the log begins after entry {purged}"),
            )),
            (None, None) => Ok(None),
        }
    }

    /// The newest snapshot, opened.
    pub(super) fn current(&self) -> io::Result<Option<(SnapshotMeta, SnapshotHandle)>> {
        let current = self.inner.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        current.map(|(meta, path)| Ok((meta, SnapshotHandle::open(path)?))).transpose()
    }

    /// Writes a snapshot of `replicated` and makes it the newest.
    pub(super) fn make(&self, replicated: &Replicated) -> io::Result<(SnapshotMeta, SnapshotHandle)> {
        let meta = replicated.meta();
        let path = self.store(&meta, "", |file| snapshot_file::write(replicated, file))?;
        Ok((meta, SnapshotHandle::open(path)?))
    }

    /// Checks a received snapshot and makes it the newest.
    pub(super) fn install(&self, meta: &SnapshotMeta, handle: &SnapshotHandle) -> io::Result<Loaded> {
        let loaded = snapshot_file::read(&handle.path, handle.reader()?)?;
        if loaded.meta != *meta {
            let reason = format!("it covers {}, not {meta} as was said", loaded.meta);
            return Err(StorageError::damaged(&handle.path, reason).into());
        }
        self.store(meta, RECEIVED, |file| io::copy(&mut handle.reader()?, file).map(drop))?;
        Ok(loaded)
    }

    /// Creates a file for a snapshot to receive.
    pub(crate) fn receive(&self) -> io::Result<IncomingSnapshot> {
        let number = self.inner.incoming.fetch_add(1, Ordering::Relaxed);
        let path = self.inner.dir.join(format!("{number}.{TEMPORARY}"));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
        Ok(IncomingSnapshot { handle: SnapshotHandle { file, path, temporary: true }, bytes: 0 })
    }

    fn store(
        &self,
        meta: &SnapshotMeta,
        origin: &str,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<PathBuf> {
        let next = meta.last_log_id.map_or(0, |id| id.index.saturating_add(1));
        let term = meta.last_log_id.map_or(0, |id| id.leader_id.term);
        // Sorts by index: files() gives the newest first.
        let path = self.inner.dir.join(format!("{next:020}-{term:020}{origin}.{EXTENSION}"));
        atomic_file::write_with(&path, atomic_file::PRIVATE, write).map_err(io::Error::other)?;
        self.set_current(meta, path.clone());
        for old in self.files().into_iter().skip_while(|file| *file != path).skip(MAX_SNAPSHOTS_KEPT) {
            let _ = fs::remove_file(old);
        }
        Ok(path)
    }

    fn set_current(&self, meta: &SnapshotMeta, path: PathBuf) {
        *self.inner.current.lock().unwrap_or_else(PoisonError::into_inner) = Some((meta.clone(), path));
    }

    /// Newest first.
    fn files(&self) -> Vec<PathBuf> {
        let mut files = with_extension(&self.inner.dir, EXTENSION);
        files.sort();
        files.reverse();
        files
    }
}

/// A snapshot being received; deleted unless installed.
pub(crate) struct IncomingSnapshot {
    handle: SnapshotHandle,
    bytes: u64,
}

impl IncomingSnapshot {
    /// Adds a chunk; blocks.
    pub(crate) fn write(&mut self, chunk: &[u8]) -> io::Result<()> {
        self.bytes = self.bytes.saturating_add(chunk.len() as u64);
        if self.bytes > MAX_FILE_BYTES {
            let message = format!("the snapshot is larger than the {MAX_FILE_BYTES} bytes allowed");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
        self.handle.file.write_all(chunk)
    }

    /// Ends reception after the last chunk.
    pub(crate) fn finish(self) -> SnapshotHandle {
        self.handle
    }
}

fn read(path: &Path) -> Result<Loaded, StorageError> {
    let file = File::open(path).map_err(|error| StorageError::of_io(path, &error))?;
    snapshot_file::read(path, file)
}

fn with_extension(dir: &Path, extension: &str) -> Vec<PathBuf> {
    fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect()
}

#[cfg(test)]
mod tests;
