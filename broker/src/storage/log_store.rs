//! Stores vote and log entries in raft-log.

use std::fmt::Debug;
use std::io;
use std::num::NonZeroU64;
use std::ops::{Bound, RangeBounds};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use comity_runtime::atomic_file;
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::vote::leader_id_std::CommittedLeaderId;
use openraft::{LogState, OptionalSend, RaftLogReader};
use raft_log::api::raft_log_writer::RaftLogWriter as _;
use raft_log::{Config, RaftLog, chunked_wal};
use tokio::sync::oneshot;

use crate::replication::types::{Entry, LogId, TypeConfig, Vote};
use crate::storage::disk_fault::disk_watch::DiskWatch;
use crate::storage::reached::{LogPosition, Reached};
use crate::storage::storage_error::StorageError;
use crate::storage::torn_end;
use crate::storage::wal_types::{Flushed, Payload, StoredVote, Tell, WalTypes};

/// Chunk limits. A chunk is deleted once snapshots cover all its entries; small ones free disk early.
const CHUNK_BYTES: usize = 32 << 20;
const CHUNK_RECORDS: usize = 64 << 10;
/// Newest entries kept in memory for followers and for apply.
const CACHE_BYTES: usize = 64 << 20;
const CACHE_ENTRIES: usize = 16 << 10;
/// Size of a probe write that reveals a disk fault; more than a failed start may have freed.
const PROBE_BYTES: usize = 1 << 20;
/// Error text of raft-log after its writer thread ended.
const WRITER_ENDED: &str = "closed channel";
/// Time to collect writes for a shared fsync; with zero, each write gets its own.
const GROUP_COMMIT_WAIT: Duration = Duration::from_micros(10);
/// Timer slack of the log's writer, in nanoseconds. Linux adds up to 50 microseconds to a wait by default.
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::MIN;
/// Read buffer at start.
const READ_BUFFER_BYTES: usize = 1 << 20;
/// Bytes of entries in one message to a follower; a single entry may be larger.
const MESSAGE_BYTES: usize = 4 << 20;

/// The log of one broker. Clones share it.
#[derive(Clone)]
pub(crate) struct LogStore {
    /// `None` once closed: then the directory can be reopened although clones exist.
    log: Arc<RwLock<Option<RaftLog<WalTypes>>>>,
    reached: Reached,
    disk: DiskWatch,
}

impl LogStore {
    /// Opens or creates the log in a directory; blocks. Updates `reached` before each truncation.
    pub(super) fn open(dir: &Path, reached: Reached) -> Result<Self, StorageError> {
        atomic_file::create_private_dir(dir)?;
        let path = dir.to_str().ok_or_else(|| {
            StorageError::Internal(format!("the path {} is not UTF-8; choose another data directory", dir.display()))
        })?;
        let config = Config {
            wal: chunked_wal::Config {
                read_buffer_size: Some(READ_BUFFER_BYTES),
                chunk_max_records: Some(CHUNK_RECORDS),
                chunk_max_size: Some(CHUNK_BYTES),
                truncate_incomplete_record: Some(true),
                flush_batch_wait: Some(GROUP_COMMIT_WAIT),
                ..chunked_wal::Config::new(path)
            },
            log_cache_max_items: Some(CACHE_ENTRIES),
            log_cache_capacity: Some(CACHE_BYTES),
        };
        torn_end::check(&config.wal)?;
        let log: RaftLog<WalTypes> = with_exact_timers(|| RaftLog::open(Arc::new(config))).map_err(|error| {
            if error.kind() == io::ErrorKind::WouldBlock {
                return StorageError::InUse { path: dir.to_owned() };
            }
            // The log's writer hides the disk fault that ended it; a probe write reveals it.
            let path = torn_end::chunk_named_in(dir, &error.to_string());
            match probe_write(dir) {
                Err(fault) => StorageError::of_io(path, &fault),
                Ok(()) if has_writer_ended(&error) => StorageError::Internal(format!(
                    "the log's writer ended while {} was opened ({error}); start again",
                    dir.display()
                )),
                Ok(()) => StorageError::of_io(path, &error),
            }
        })?;
        let state = log.log_state();
        let first = state.purged().map_or(0, |(_, index)| index.saturating_add(1));
        if state.last().is_some_and(|(_, last)| *last >= first) && log.read(first, first + 1).next().is_none() {
            return Err(StorageError::damaged(dir, format!("entry {first} is gone, and perhaps others")));
        }
        Ok(Self { log: Arc::new(RwLock::new(Some(log))), reached, disk: DiskWatch::new(dir.to_owned()) })
    }

    /// Whether nothing was ever written: no vote, no entry.
    pub(super) fn is_blank(&self) -> bool {
        self.read(|log| Ok(log.log_state().vote().is_none() && log.log_state().last().is_none())).unwrap_or(false)
    }

    /// Position of the last entry, purged ones included.
    pub(crate) fn last_position(&self) -> Option<LogPosition> {
        let place = |&(term, index): &(u64, u64)| LogPosition { term, index };
        self.read(|log| Ok(log.log_state().last().max(log.log_state().purged()).map(place))).ok().flatten()
    }

    /// Records that the log is on disk up to `place`: a log that ends earlier has then lost its end. Blocks.
    pub(crate) fn note_reached(&self, place: LogPosition) -> Result<(), StorageError> {
        self.reached.advance(place)
    }

    /// Id of the entry at `index`, unless purged.
    pub(crate) fn id_at(&self, index: u64) -> Option<LogId> {
        self.read(|log| Ok(log.read(index, index.saturating_add(1)).next().transpose()?.map(|(id, _)| to_log_id(id))))
            .ok()
            .flatten()
    }

    /// Closes the log. Later calls fail.
    pub(crate) fn close(&self) {
        // Acknowledged entries are synced; others may be lost.
        *self.log.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Index of the last purged entry.
    pub(super) fn purged_index(&self) -> io::Result<Option<u64>> {
        self.read(|log| Ok(log.log_state().purged().map(|(_, index)| *index)))
    }

    /// Last entry written, synced or not.
    pub(crate) fn last(&self) -> io::Result<Option<LogId>> {
        self.read(|log| Ok(log.log_state().last().copied().map(to_log_id)))
    }

    /// Number of fsyncs since opening.
    pub(crate) fn syncs(&self) -> u64 {
        self.read(|log| Ok(log.stat().flush_metrics.sync_batch_count)).unwrap_or(0)
    }

    /// Health of the disk under the log.
    pub(crate) fn disk(&self) -> &DiskWatch {
        &self.disk
    }

    fn read<T>(&self, f: impl FnOnce(&RaftLog<WalTypes>) -> io::Result<T>) -> io::Result<T> {
        f(self.log.read().map_err(|_| poisoned())?.as_ref().ok_or_else(closed)?)
    }

    fn write<T>(&self, f: impl FnOnce(&mut RaftLog<WalTypes>) -> io::Result<T>) -> io::Result<T> {
        let mut log = self.log.write().map_err(|_| poisoned())?;
        let log = log.as_mut().ok_or_else(closed)?;
        f(log).map_err(|error| root_cause(error, log)).inspect_err(|error| self.disk.failed(error))
    }

    /// Writes and waits for the fsync.
    async fn write_durably(&self, write: impl FnOnce(&mut RaftLog<WalTypes>) -> io::Result<()>) -> io::Result<()> {
        let (sender, done) = oneshot::channel();
        self.write(|log| {
            write(log)?;
            log.flush(true, Some(Flushed { write: self.disk.begin(), tell: Tell::Waiting(sender) }))
        })?;
        done.await.map_err(|_| io::Error::other("the log's writer has stopped"))?
    }

    /// Blocking form of [`write_durably`](Self::write_durably).
    pub(super) fn write_and_sync(
        &self,
        write: impl FnOnce(&mut RaftLog<WalTypes>) -> io::Result<()>,
    ) -> io::Result<()> {
        let (sender, done) = oneshot::channel();
        self.write(|log| {
            write(log)?;
            log.flush(true, Some(Flushed { write: self.disk.begin(), tell: Tell::Waiting(sender) }))
        })?;
        done.blocking_recv().map_err(|_| io::Error::other("the log's writer has stopped"))?
    }

    /// A batch of entries of `from..to`; empty only if the range is.
    pub(super) fn range(&self, from: u64, to: u64) -> io::Result<Vec<Entry>> {
        self.entries(from, to, MESSAGE_BYTES)
    }

    /// Last entry known to be committed.
    pub(super) fn committed_index(&self) -> io::Result<Option<u64>> {
        self.read(|log| Ok(log.log_state().committed().map(|(_, index)| *index)))
    }

    /// Entries of `from..to` up to `max_bytes`, but at least one if the range is not empty.
    fn entries(&self, from: u64, to: u64, max_bytes: usize) -> io::Result<Vec<Entry>> {
        let encoded = self.read(|log| {
            let mut encoded = Vec::new();
            let mut bytes = 0;
            for entry in log.read(from, to) {
                let (log_id, payload) = entry?;
                bytes += payload.len();
                if bytes > max_bytes && !encoded.is_empty() {
                    break;
                }
                encoded.push((log_id, payload));
            }
            Ok(encoded)
        })?;
        encoded.into_iter().map(|(log_id, payload)| payload.into_entry(to_log_id(log_id))).collect()
    }
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        let from = match range.start_bound() {
            Bound::Included(index) => *index,
            Bound::Excluded(index) => index.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(index) => index.saturating_add(1),
            Bound::Excluded(index) => *index,
            Bound::Unbounded => u64::MAX,
        };
        if from >= to {
            return Ok(Vec::new());
        }
        self.entries(from, to, usize::MAX)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        self.entries(start, end, MESSAGE_BYTES)
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        self.read(|log| Ok(log.log_state().vote().map(|vote| vote.0)))
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        self.read(|log| {
            let state = log.log_state();
            Ok(LogState {
                last_purged_log_id: state.purged().copied().map(to_log_id),
                last_log_id: state.last().copied().map(to_log_id),
            })
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let vote = StoredVote(*vote);
        self.write_durably(|log| log.save_vote(vote).map(drop)).await
    }

    /// Not synced: after a crash the leader sends it again. If it survives, a restart need not wait for a leader.
    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        let Some(committed) = committed.map(from_log_id) else { return Ok(()) };
        self.write(|log| {
            let state = log.log_state();
            if Some(&committed) > state.last() || Some(&committed) <= state.committed() {
                return Ok(());
            }
            log.commit(committed)?;
            log.flush(false, None)
        })
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        self.read(|log| Ok(log.log_state().committed().copied().map(to_log_id)))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let encoded: Vec<_> = entries
            .into_iter()
            .map(|entry| Ok((from_log_id(entry.log_id), Payload::of(&entry)?)))
            .collect::<io::Result<_>>()?;
        let write = self.disk.begin();
        self.write(|log| {
            log.append(encoded)?;
            log.flush(true, Some(Flushed { write, tell: Tell::Appended(callback) }))
        })
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> io::Result<()> {
        let from = last_log_id.map_or(0, |id| id.index.saturating_add(1));
        if self.read(|log| Ok(log.log_state().last().is_none_or(|(_, last)| *last < from)))? {
            return Ok(());
        }
        let reached = self.reached.clone();
        let cut = last_log_id.map(|id| LogPosition { term: id.leader_id.term, index: id.index });
        tokio::task::spawn_blocking(move || reached.cut(cut)).await.map_err(io::Error::other)??;
        self.write_durably(|log| log.truncate(from).map(drop)).await
    }

    async fn purge(&mut self, log_id: LogId) -> io::Result<()> {
        self.write_durably(|log| log.purge(from_log_id(log_id)).map(drop)).await
    }
}

/// Runs `open` with minimal timer slack, which the threads that it starts inherit.
fn with_exact_timers<T>(open: impl FnOnce() -> T) -> T {
    // If the kernel refuses, writes are slightly slower.
    let _ = rustix::thread::set_current_timer_slack(Some(TIMER_SLACK_NS));
    let opened = open();
    let _ = rustix::thread::set_current_timer_slack(None);
    opened
}

fn to_log_id((term, index): (u64, u64)) -> LogId {
    LogId::new(CommittedLeaderId::new(term), index)
}

fn from_log_id(log_id: LogId) -> (u64, u64) {
    (log_id.leader_id.term, log_id.index)
}

fn has_writer_ended(error: &io::Error) -> bool {
    error.to_string().contains(WRITER_ENDED)
}

/// Root cause of a failed write: after a disk fault ended the writer, later writes only find it gone.
fn root_cause(error: io::Error, log: &RaftLog<WalTypes>) -> io::Error {
    if !has_writer_ended(&error) {
        return error;
    }
    // Returns at once: the writer records its error before it ends.
    log.wait_worker_idle().err().unwrap_or(error)
}

/// Probes a directory with a synced write.
fn probe_write(dir: &Path) -> io::Result<()> {
    use io::Write as _;
    let path = dir.join("write.tmp");
    let written = std::fs::File::create(&path).and_then(|mut file| {
        file.write_all(&vec![0; PROBE_BYTES])?;
        file.sync_all()
    });
    // Swept with the next try where it stays.
    let _ = std::fs::remove_file(&path);
    written
}

fn closed() -> io::Error {
    io::Error::other("the log was closed")
}

fn poisoned() -> io::Error {
    io::Error::other("a thread ended while it wrote the log")
}
