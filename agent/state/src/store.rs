//! The agent's records on disk: one redb file in the state directory, readable by its owner only.
//!
//! Readers see a snapshot in memory. Writers change a copy, which is published once it is on disk, so that plans are
//! made from exactly what a restart would read.

mod change;
mod tables;

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use comity_runtime::atomic_file;
use redb::{Database, Durability, ReadableDatabase as _};
use tokio::sync::watch;

pub use change::Change;

use crate::record::Records;
use tables::{BLOBS, META};

/// Most unacknowledged messages; the outbox holds only the newest of each subject.
pub const MAX_OUTBOX: usize = 4_096;
/// Version of the file's layout.
const FORMAT: u64 = 1;
/// Message ids reserved on disk at once.
const ID_BLOCK: u64 = 1 << 20;

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory or file cannot be made private.
    #[error(transparent)]
    File(#[from] atomic_file::FileError),
    /// The database failed.
    #[error(
        "cannot {operation} {path}: {source}; check the disk, or move the file away to start again (peerings then use \
         fresh keys)"
    )]
    Database {
        /// `open`, `read`, `write`.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// redb's error.
        #[source]
        source: Box<redb::Error>,
    },
    /// A record cannot be read.
    #[error("{path}: record {record} cannot be read ({reason}); restore the file, or move it away to start again")]
    Record {
        /// The file.
        path: PathBuf,
        /// Which record.
        record: String,
        /// The problem, without content.
        reason: String,
    },
    /// Another layout.
    #[error("{path} has format {found}, this agent reads format {FORMAT}: run the version that wrote it")]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
    },
    /// Too many messages wait.
    #[error("{MAX_OUTBOX} messages wait for the broker group; no more are accepted until some are acknowledged")]
    OutboxFull,
    /// The task that writes ended.
    #[error("the store's task ended: {0}")]
    Task(String),
}

/// Ids of messages; those from `next` up to `reserved_until`, exclusive, are reserved on disk.
struct MessageIds {
    next: u64,
    reserved_until: u64,
}

struct Inner {
    path: PathBuf,
    database: Database,
    /// Held while writing: one writer at a time.
    ids: Mutex<MessageIds>,
    records: watch::Sender<Arc<Records>>,
}

/// The agent's store. Cheap to clone.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

impl Store {
    /// Opens or makes the store in a directory that only the owner can enter.
    ///
    /// # Errors
    /// [`StoreError`]; a damaged file is an error and not replaced.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        atomic_file::create_private_dir(directory)?;
        let path = directory.join("agent.redb");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(atomic_file::PRIVATE);
        let file = options.open(&path).map_err(|error| database("open", &path, redb::Error::Io(error)))?;
        let database = redb::Builder::new().create_file(file).map_err(|error| database("open", &path, error))?;
        let (records, next) = tables::load(&path, &database)?;
        let records = watch::Sender::new(Arc::new(records));
        let store = Self(Arc::new(Inner {
            path,
            database,
            ids: Mutex::new(MessageIds { next, reserved_until: next }),
            records,
        }));
        Ok(store)
    }

    /// All records, as they are on disk.
    #[must_use]
    pub fn records(&self) -> Arc<Records> {
        self.0.records.borrow().clone()
    }

    /// Follows the records.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<Records>> {
        self.0.records.subscribe()
    }

    /// Makes a change atomically, and returns once it is on disk.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is then changed.
    pub async fn update<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Change<'_>) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let inner = Arc::clone(&self.0);
        let span = tracing::Span::current();
        let task = tokio::task::spawn_blocking(move || span.in_scope(|| inner.update(change)));
        task.await.map_err(|error| StoreError::Task(error.to_string()))?
    }

    /// Reserves an id for a message that is not stored.
    ///
    /// # Errors
    /// [`StoreError`] if ids cannot be reserved on disk.
    pub async fn take_message_id(&self) -> Result<u64, StoreError> {
        let inner = Arc::clone(&self.0);
        let task = tokio::task::spawn_blocking(move || {
            let mut ids = inner.ids.lock().unwrap_or_else(PoisonError::into_inner);
            if ids.next >= ids.reserved_until {
                inner.reserve(&mut ids)?;
            }
            ids.next += 1;
            Ok(ids.next - 1)
        });
        task.await.map_err(|error| StoreError::Task(error.to_string()))?
    }

    /// Stores a blob by name without waiting for the disk; for data that a crash may lose.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn keep_soon(&self, name: &'static str, blob: Vec<u8>) -> Result<(), StoreError> {
        self.keep_with(name, blob, Durability::None).await
    }

    /// Stores a blob by name; returns once it is on disk.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn keep(&self, name: &'static str, blob: Vec<u8>) -> Result<(), StoreError> {
        self.keep_with(name, blob, Durability::Immediate).await
    }

    async fn keep_with(&self, name: &'static str, blob: Vec<u8>, durability: Durability) -> Result<(), StoreError> {
        let inner = Arc::clone(&self.0);
        let task = tokio::task::spawn_blocking(move || inner.keep(name, &blob, durability));
        task.await.map_err(|error| StoreError::Task(error.to_string()))?
    }

    /// Reads a blob by name.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn kept(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let fail = |error| database("read", &self.0.path, error);
        let read = || -> Result<_, redb::Error> {
            let transaction = self.0.database.begin_read()?;
            let table = transaction.open_table(BLOBS)?;
            Ok(table.get(name)?.map(|blob| blob.value().to_vec()))
        };
        read().map_err(fail)
    }
}

impl Inner {
    fn update<T>(&self, change: impl FnOnce(&mut Change<'_>) -> T) -> Result<T, StoreError> {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next_id = ids.next;
        let records = Records::clone(&self.records.borrow());
        let mut pending = Change { records, dirty: BTreeSet::new(), next_id: &mut next_id, full: false };
        let answer = change(&mut pending);
        let Change { records, dirty, full, .. } = pending;
        if full {
            return Err(StoreError::OutboxFull);
        }
        if dirty.is_empty() {
            return Ok(answer);
        }
        if next_id > ids.reserved_until {
            self.reserve(&mut ids)?;
        }
        tables::write(&self.database, &records, &dirty).map_err(|error| database("write", &self.path, error))?;
        ids.next = next_id;
        self.records.send_replace(Arc::new(records));
        Ok(answer)
    }

    fn reserve(&self, ids: &mut MessageIds) -> Result<(), StoreError> {
        let reserved = ids.reserved_until + ID_BLOCK;
        let write = || -> Result<(), redb::Error> {
            let transaction = self.database.begin_write()?;
            transaction.open_table(META)?.insert("next-message-id", reserved)?;
            transaction.commit()?;
            Ok(())
        };
        write().map_err(|error| database("write", &self.path, error))?;
        ids.reserved_until = reserved;
        Ok(())
    }

    fn keep(&self, name: &str, blob: &[u8], durability: Durability) -> Result<(), StoreError> {
        let _writer = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        let write = || -> Result<(), redb::Error> {
            let mut transaction = self.database.begin_write()?;
            transaction.set_durability(durability)?;
            transaction.open_table(BLOBS)?.insert(name, blob)?;
            transaction.commit()?;
            Ok(())
        };
        write().map_err(|error| database("write", &self.path, error))
    }
}

fn database(operation: &'static str, path: &Path, source: impl Into<redb::Error>) -> StoreError {
    StoreError::Database { operation, path: path.to_owned(), source: Box::new(source.into()) }
}

#[cfg(test)]
mod tests;
