//! The records of the audit log on disk, and the nodes of their Merkle tree.
//!
//! ```text
//!   apply ──▶ append ──▶ queue ──▶ writer: one transaction for all that wait, each fsynced ──▶ audit.redb
//! ```
//!
//! A crash may lose the end that is not synced yet. The log makes the same records again: only a snapshot lets it be
//! purged, and a snapshot waits until the store has all records before it. A record that comes a second time must be the
//! same, byte for byte.
//!
//! A broker that gets a snapshot lacks the records before it: a *gap*, which other brokers fill. The hash of the record
//! after a gap proves its records.

mod tables;
mod writer;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::TrySendError;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use comity_audit::{Hash, SealedRecord};
use comity_core::State;
use comity_runtime::atomic_file;
use redb::Database;

use crate::storage::storage_error::StorageError;
pub(crate) use tables::{Gap, read_tree};
use writer::{Message, Writer};

/// Name of the file in the data directory.
pub(crate) const AUDIT_FILE: &str = "audit.redb";
/// Batches that wait for the writer; apply waits for a place.
const QUEUE: usize = 4_096;
/// Attempts to open a file that a process before still has open, and the pause between them: 5 s in all.
const OPEN_TRIES: u32 = 100;
const OPEN_PAUSE: Duration = Duration::from_millis(50);

/// The store of one broker. Clones share it.
#[derive(Clone)]
pub(crate) struct AuditStore {
    inner: Arc<AuditStoreInner>,
}

struct AuditStoreInner {
    path: PathBuf,
    /// `None` once closed.
    database: RwLock<Option<Arc<Database>>>,
    writer: Mutex<Option<WriterHandle>>,
    /// Why nothing more is written.
    fault: Arc<Mutex<Option<String>>>,
}

struct WriterHandle {
    queue: std::sync::mpsc::SyncSender<Message>,
    thread: JoinHandle<()>,
}

impl AuditStore {
    /// Opens or creates the store in a data directory; blocks.
    pub(super) fn open(data: &Path) -> Result<Self, StorageError> {
        let path = data.join(AUDIT_FILE);
        let database = Arc::new(open_database(&path)?);
        let next = tables::prepare(&database).map_err(|error| damaged(&path, &error))?;
        let fault = Arc::new(Mutex::new(None));
        let (queue, messages) = std::sync::mpsc::sync_channel(QUEUE);
        let writer = Writer { database: Arc::clone(&database), path: path.clone(), fault: Arc::clone(&fault), next };
        let thread = std::thread::Builder::new().name("audit-log".to_owned()).spawn(move || writer.run(&messages));
        let thread = thread.map_err(|error| StorageError::Internal(format!("no thread for the audit log: {error}")))?;
        let inner = AuditStoreInner {
            path,
            database: RwLock::new(Some(database)),
            writer: Mutex::new(Some(WriterHandle { queue, thread })),
            fault,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Appends the records of an entry, in order. Returns before they are on disk; waits for a place in the queue without
    /// holding the thread, which others need.
    ///
    /// # Errors
    /// An earlier write failed.
    pub(super) async fn append(&self, records: Vec<SealedRecord>) -> io::Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        let queue = self.lock().as_ref().map(|writer| writer.queue.clone());
        match queue.map(|queue| queue.try_send(Message::Append(records))) {
            Some(Ok(())) if !self.has_fault() => Ok(()),
            Some(Err(TrySendError::Full(message))) => {
                let store = self.clone();
                tokio::task::spawn_blocking(move || store.send(message)).await.map_err(io::Error::other)?
            }
            Some(_) | None => Err(self.fault()),
        }
    }

    /// Notes a state that was read from a snapshot: records before it may be missing, or must be those that it counts.
    ///
    /// # Errors
    /// An earlier write failed.
    pub(super) fn restored(&self, state: &State) -> io::Result<()> {
        self.send(Message::Restored { size: state.audit.size(), last: state.audit.last() })
    }

    /// Returns once everything appended before is on disk; blocks.
    ///
    /// # Errors
    /// A write failed.
    pub(crate) fn flush(&self) -> io::Result<()> {
        let (done, written) = std::sync::mpsc::sync_channel(1);
        self.send(Message::Flush(done))?;
        written.recv().map_err(|_| self.fault())
    }

    fn send(&self, message: Message) -> io::Result<()> {
        let queue = self.lock().as_ref().map(|writer| writer.queue.clone());
        let sent = queue.is_some_and(|queue| queue.send(message).is_ok());
        if sent && !self.has_fault() { Ok(()) } else { Err(self.fault()) }
    }

    fn has_fault(&self) -> bool {
        self.inner.fault.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn fault(&self) -> io::Error {
        let fault = self.inner.fault.lock().unwrap_or_else(PoisonError::into_inner).clone();
        io::Error::other(fault.unwrap_or_else(|| format!("{} is closed", self.inner.path.display())))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<WriterHandle>> {
        self.inner.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Up to `limit` records of `from..until` that are on disk; blocks.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn read(&self, from: u64, until: u64, limit: usize) -> io::Result<Vec<SealedRecord>> {
        self.with(|database| tables::read(database, from, until, limit))
    }

    /// The gaps, by number; blocks.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn gaps(&self) -> io::Result<Vec<Gap>> {
        self.with(tables::gaps)
    }

    /// Reads the nodes of the Merkle tree; blocks.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn tree<T>(&self, read: impl FnOnce(&tables::StoredTree) -> Result<T, redb::Error>) -> io::Result<T> {
        self.with(|database| read_tree(database, read))
    }

    /// Fills the end of a gap with records, in order, that another broker sent; blocks.
    ///
    /// # Errors
    /// They are not the records of the gap, or the file cannot be written.
    pub(crate) fn fill(&self, gap: &Gap, lines: &[String]) -> io::Result<()> {
        self.with(|database| Ok(tables::fill(database, gap, lines))).flatten()
    }

    fn with<T>(&self, f: impl FnOnce(&Database) -> Result<T, redb::Error>) -> io::Result<T> {
        let database = self.inner.database.read().unwrap_or_else(PoisonError::into_inner).clone();
        let database = database.ok_or_else(|| self.fault())?;
        f(&database).map_err(|error| io::Error::other(format!("{}: {error}", self.inner.path.display())))
    }

    /// Writes what waits and closes the file; blocks. Later calls fail.
    pub(crate) fn close(&self) {
        if let Some(WriterHandle { queue, thread }) = self.lock().take() {
            drop(queue);
            // A panic of the writer is a lost write, which the next start makes again.
            let _ = thread.join();
        }
        *self.inner.database.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Drop for AuditStoreInner {
    fn drop(&mut self) {
        if let Some(WriterHandle { queue, thread }) = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            drop(queue);
            let _ = thread.join();
        }
    }
}

/// Copies the store of a data directory into one that is being made from it, without the records from `size` on, and
/// with `records`; blocks.
pub(super) fn carry_over(from: &Path, to: &Path, size: u64, records: Vec<SealedRecord>) -> Result<(), StorageError> {
    let (held, copy) = (from.join(AUDIT_FILE), to.join(AUDIT_FILE));
    if held.exists() {
        std::fs::copy(&held, &copy).map_err(|error| StorageError::of_io(&held, &error))?;
        let database = open_database(&copy)?;
        tables::cut(&database, size).map_err(|error| damaged(&held, &error))?;
    }
    let store = AuditStore::open(to)?;
    let written = store.send(Message::Append(records)).and_then(|()| store.flush());
    store.close();
    written.map_err(|error| StorageError::of_io(&copy, &error))
}

fn open_database(path: &Path) -> Result<Database, StorageError> {
    let mut tried = 1;
    loop {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(atomic_file::PRIVATE);
        let file: File = options.open(path).map_err(|error| StorageError::of_io(path, &error))?;
        match redb::Builder::new().create_file(file) {
            Ok(database) => return Ok(database),
            Err(redb::DatabaseError::DatabaseAlreadyOpen) if tried < OPEN_TRIES => tried += 1,
            Err(redb::DatabaseError::DatabaseAlreadyOpen) => return Err(StorageError::InUse { path: path.to_owned() }),
            Err(error) => return Err(damaged(path, &error.into())),
        }
        std::thread::sleep(OPEN_PAUSE);
    }
}

fn damaged(path: &Path, error: &redb::Error) -> StorageError {
    match error {
        redb::Error::Io(error) => StorageError::of_io(path, error),
        error => StorageError::DamagedAuditLog { path: path.to_owned(), reason: error.to_string() },
    }
}

/// Tells that the store has another history than the state.
fn another_history(path: &Path, index: u64, stored: Hash, made: Hash) -> String {
    format!(
        "{}: record {index} of the audit log is not the one that the log makes ({stored}, not {made}): somebody edited \
         one of the two, or the file is of another group. Keep both as evidence; then move the file away, and the other \
         brokers send their records",
        path.display()
    )
}

#[cfg(test)]
mod tests;
