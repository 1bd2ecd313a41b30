//! Vote and log entries, on raft-log.

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
use crate::storage::disk_watch::DiskWatch;
use crate::storage::reached::{Place, Reached};
use crate::storage::storage_error::StorageError;
use crate::storage::torn_end;
use crate::storage::wal_types::{Flushed, Payload, StoredVote, Tell, WalTypes};

/// A chunk is deleted once all it holds is covered by snapshots: small ones give disk back early.
const CHUNK_BYTES: usize = 32 << 20;
const CHUNK_RECORDS: usize = 64 << 10;
/// Newest entries kept in memory for followers and for apply.
const CACHE_BYTES: usize = 64 << 20;
const CACHE_ENTRIES: usize = 16 << 10;
/// Written to find out what is wrong with a disk. More than what a failed start may have freed.
const PROBE_BYTES: usize = 1 << 20;
/// What raft-log says where its writer thread has ended.
const WRITER_ENDED: &str = "closed channel";
/// Writes that wait while an fsync runs share the next one. The log collects them for this long, and collects nothing
/// in no time: with zero, each write has an fsync of its own.
const GROUP_COMMIT_WAIT: Duration = Duration::from_micros(10);
/// Timer slack of the log's writer, in nanoseconds. Linux adds up to 50 microseconds to a wait by default.
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::MIN;
/// Buffer for reading one chunk at start.
const READ_BUFFER_BYTES: usize = 1 << 20;
/// Bytes of entries in one message to a follower; a single entry may be larger.
const MESSAGE_BYTES: usize = 4 << 20;

/// The log of one broker. Clones share it.
#[derive(Clone)]
pub(crate) struct LogStore {
    /// `None` once closed: then the directory may be opened again, whoever still holds a clone of this.
    log: Arc<RwLock<Option<RaftLog<WalTypes>>>>,
    reached: Reached,
    disk: DiskWatch,
}

impl LogStore {
    /// Opens the log in a directory, which is made if it is not there; blocks. `reached` is told before the log is cut
    /// off.
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
            // The log's writer ends at a fault of the disk and keeps the reason to itself: a write of our own gets it.
            let path = torn_end::chunk_named_in(dir, &error.to_string());
            match try_to_write(dir) {
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

    /// The last entry, also where it was deleted because a snapshot covers it.
    pub(crate) fn last_place(&self) -> Option<Place> {
        let place = |&(term, index): &(u64, u64)| Place { term, index };
        self.read(|log| Ok(log.log_state().last().max(log.log_state().purged()).map(place))).ok().flatten()
    }

    /// The log is known to be on disk up to `place`: from now on, a log that ends earlier has lost its end. Blocks.
    pub(crate) fn note_reached(&self, place: Place) -> Result<(), StorageError> {
        self.reached.advance(place)
    }

    /// The entry at `index`, where it is still in the log.
    pub(crate) fn id_at(&self, index: u64) -> Option<LogId> {
        self.read(|log| Ok(log.read(index, index.saturating_add(1)).next().transpose()?.map(|(id, _)| to_log_id(id))))
            .ok()
            .flatten()
    }

    /// Lets go of the directory. Every later call fails.
    pub(crate) fn close(&self) {
        // Written entries were synced before they were acknowledged; what was not acknowledged may go.
        *self.log.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Index of the last entry that was deleted because a snapshot covers it.
    pub(super) fn purged_index(&self) -> io::Result<Option<u64>> {
        self.read(|log| Ok(log.log_state().purged().map(|(_, index)| *index)))
    }

    /// The last entry written, whether it is on disk yet or not.
    pub(crate) fn last(&self) -> io::Result<Option<LogId>> {
        self.read(|log| Ok(log.log_state().last().copied().map(to_log_id)))
    }

    /// How many times the log was synced to disk since it was opened; many entries share one.
    pub(crate) fn syncs(&self) -> u64 {
        self.read(|log| Ok(log.stat().flush_metrics.sync_batch_count)).unwrap_or(0)
    }

    /// How the disk under it does.
    pub(crate) fn disk(&self) -> &DiskWatch {
        &self.disk
    }

    fn read<T>(&self, f: impl FnOnce(&RaftLog<WalTypes>) -> io::Result<T>) -> io::Result<T> {
        f(self.log.read().map_err(|_| poisoned())?.as_ref().ok_or_else(closed)?)
    }

    fn write<T>(&self, f: impl FnOnce(&mut RaftLog<WalTypes>) -> io::Result<T>) -> io::Result<T> {
        let mut log = self.log.write().map_err(|_| poisoned())?;
        let log = log.as_mut().ok_or_else(closed)?;
        f(log).map_err(|error| behind(error, log)).inspect_err(|error| self.disk.failed(error))
    }

    /// Writes something and waits until it is on disk.
    async fn write_durably(&self, write: impl FnOnce(&mut RaftLog<WalTypes>) -> io::Result<()>) -> io::Result<()> {
        let (sender, done) = oneshot::channel();
        self.write(|log| {
            write(log)?;
            log.flush(true, Some(Flushed { write: self.disk.begin(), tell: Tell::Waiting(sender) }))
        })?;
        done.await.map_err(|_| io::Error::other("the log's writer has stopped"))?
    }

    /// As [`write_durably`](Self::write_durably), for where blocking is fine.
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

    /// Some of the entries from `from` up to `to`, exclusive; none only where there are none.
    pub(super) fn range(&self, from: u64, to: u64) -> io::Result<Vec<Entry>> {
        self.entries(from, to, MESSAGE_BYTES)
    }

    /// The last entry that is known to be committed.
    pub(super) fn committed_index(&self) -> io::Result<Option<u64>> {
        self.read(|log| Ok(log.log_state().committed().map(|(_, index)| *index)))
    }

    /// Entries from `from` up to `to`, exclusive, until `max_bytes` are reached; at least one, if there is one.
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

    /// Not synced by itself: after a crash the leader tells again. It saves waiting for a leader where it was written.
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
        let cut = last_log_id.map(|id| Place { term: id.leader_id.term, index: id.index });
        tokio::task::spawn_blocking(move || reached.cut(cut)).await.map_err(io::Error::other)??;
        self.write_durably(|log| log.truncate(from).map(drop)).await
    }

    async fn purge(&mut self, log_id: LogId) -> io::Result<()> {
        self.write_durably(|log| log.purge(from_log_id(log_id)).map(drop)).await
    }
}

/// Runs `open` so that the threads it starts wait for no longer than they ask for: they inherit the timer slack.
fn with_exact_timers<T>(open: impl FnOnce() -> T) -> T {
    // Where the kernel refuses, writes are slower by a little.
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

/// The reason for a failed write. The log's writer ends at a fault of the disk; a write after that only finds it gone.
fn behind(error: io::Error, log: &RaftLog<WalTypes>) -> io::Error {
    if !has_writer_ended(&error) {
        return error;
    }
    // Returns at once: the writer notes why it ends before it does.
    log.wait_worker_idle().err().unwrap_or(error)
}

/// Whether something can be written and synced in a directory.
fn try_to_write(dir: &Path) -> io::Result<()> {
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
