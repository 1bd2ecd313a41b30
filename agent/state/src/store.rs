//! The agent's records on disk: one redb file in the state directory, readable by its owner only. With a copy
//! of the state, another process can continue with them elsewhere.
//!
//! Readers see a snapshot in memory. Writers change a clone, which is published once it is on disk, so that plans are
//! made from exactly what a restart would read. The copy is written before the disk and before the publication.

mod change;
mod tables;

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use comity_runtime::atomic_file;
use redb::{Database, Durability, ReadableDatabase as _};
use tokio::sync::watch;

pub use change::Change;

use crate::record::{Records, SecretBlob};
use crate::state_copy::{StateCopy, StateCopyError, StateFiles, StateImage};
use tables::{BLOBS, META, NEXT_MESSAGE_ID};

/// Most unacknowledged messages; the outbox holds only the newest of each subject.
pub const MAX_OUTBOX: usize = 4_096;
/// Name of the store's file in the state directory.
pub const STORE_FILE: &str = "agent.redb";
/// Version of the file's layout.
const FORMAT: u64 = 1;
/// Name of the blob with the SPIFFE id of the cluster whose records these are.
const OWNER: &str = "owner";
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
        "cannot {operation} {path}: {source}; check the disk and restore the file, or move it away to start again: the \
         agent then trusts the keys of other clusters that it sees first, and uses fresh keys itself"
    )]
    Database {
        /// `open`, `check`, `read`, `write`.
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
    /// The records are another cluster's.
    #[error(
        "{path} belongs to cluster {owner}, and this agent is {member}: give each agent a state directory of its own, \
         or move the file away to start without its records"
    )]
    OtherOwner {
        /// The file.
        path: PathBuf,
        /// SPIFFE id of the cluster whose records these are.
        owner: String,
        /// SPIFFE id of this agent.
        member: String,
    },
    /// The copy of the state.
    #[error(transparent)]
    Copy(#[from] StateCopyError),
    /// An image cannot be read.
    #[error("the copy of the state cannot be read ({reason}); restore it, or empty it and join again")]
    Image {
        /// The problem, without content.
        reason: String,
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
    directory: PathBuf,
    path: PathBuf,
    database: Database,
    /// Held while writing: one writer at a time.
    ids: Mutex<MessageIds>,
    records: watch::Sender<Arc<Records>>,
    copy: Option<Arc<dyn StateCopy>>,
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
        Self::open_with(directory, None)
    }

    /// As [`open`](Self::open); every change is written to the copy first, if there is one.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_with(directory: &Path, copy: Option<Arc<dyn StateCopy>>) -> Result<Self, StoreError> {
        atomic_file::create_private_dir(directory)?;
        let path = directory.join(STORE_FILE);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(atomic_file::PRIVATE);
        let io = |error| database("open", &path, redb::Error::Io(error));
        // A new file gets its name once it is a database, so an empty one lost its content.
        match path.metadata() {
            Ok(found) if found.len() == 0 => {
                return Err(database("open", &path, redb::Error::Corrupted("the file is empty".to_owned())));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let new = path.with_extension("new");
                let file = options.clone().truncate(true).open(&new).map_err(io)?;
                let made = redb::Builder::new().create_file(file);
                drop(made.map_err(|error| database("make", &new, error))?);
                std::fs::rename(&new, &path).map_err(io)?;
            }
            _ => {}
        }
        let file = options.open(&path).map_err(io)?;
        let (database, records, next) = open_checked(&path, file)?;
        let records = watch::Sender::new(Arc::new(records));
        let store = Self(Arc::new(Inner {
            directory: directory.to_owned(),
            path,
            database,
            ids: Mutex::new(MessageIds { next, reserved_until: next }),
            records,
            copy,
        }));
        Ok(store)
    }

    /// Makes a state directory equal to the image of a copy, in place of its own files and records.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn restore(directory: &Path, image: &[u8]) -> Result<(), StoreError> {
        let image = StateImage::decode(image).map_err(|reason| StoreError::Image { reason })?;
        atomic_file::create_private_dir(directory)?;
        image.files.write(directory)?;
        let path = directory.join(STORE_FILE);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(database("remove", &path, redb::Error::Io(error)));
            }
            _ => {}
        }
        let store = Self::open(directory)?;
        tables::fill(&store.0.database, &image).map_err(|error| database("write", &path, error))
    }

    /// SPIFFE id of the cluster whose records a state directory has; `None` before the first start as a member, and
    /// while an agent runs there, which has checked it.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn owner_of(directory: &Path) -> Result<Option<String>, StoreError> {
        if !directory.join(STORE_FILE).exists() {
            return Ok(None);
        }
        match Self::open(directory) {
            Err(StoreError::Database { source, .. }) if matches!(*source, redb::Error::DatabaseAlreadyOpen) => Ok(None),
            Err(error) => Err(error),
            Ok(store) => store.owner(),
        }
    }

    fn owner(&self) -> Result<Option<String>, StoreError> {
        Ok(self.kept(OWNER)?.map(|owner| String::from_utf8_lossy(&owner).into_owned()))
    }

    /// Checks that no other cluster's records are here. `member` is this agent's SPIFFE id.
    ///
    /// # Errors
    /// [`StoreError::OtherOwner`], [`StoreError::Database`].
    pub fn check_owner(&self, member: &str) -> Result<(), StoreError> {
        other_owner(&self.0.directory, self.owner()?, member)
    }

    /// Binds the records to a member at the first use: no other cluster may carry them out. `member` is its SPIFFE id.
    ///
    /// # Errors
    /// Those of [`check_owner`](Self::check_owner), and [`StoreError::Copy`].
    pub async fn bind(&self, member: &str) -> Result<(), StoreError> {
        match self.owner()? {
            None => self.keep(OWNER, member.as_bytes().to_vec()).await,
            owner => other_owner(&self.0.directory, owner, member),
        }
    }

    /// Writes the copy now, if there is one: files of the state directory changed.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn write_copy(&self) -> Result<(), StoreError> {
        let inner = Arc::clone(&self.0);
        let task = tokio::task::spawn_blocking(move || {
            let ids = inner.ids.lock().unwrap_or_else(PoisonError::into_inner);
            let records = Records::clone(&inner.records.borrow());
            inner.copy_state(&records, ids.reserved_until, None)
        });
        task.await.map_err(|error| StoreError::Task(error.to_string()))?
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
        self.copy_state(&records, ids.reserved_until, None)?;
        tables::write(&self.database, &records, &dirty).map_err(|error| database("write", &self.path, error))?;
        ids.next = next_id;
        self.records.send_replace(Arc::new(records));
        Ok(answer)
    }

    fn reserve(&self, ids: &mut MessageIds) -> Result<(), StoreError> {
        let reserved = ids.reserved_until + ID_BLOCK;
        let records = Records::clone(&self.records.borrow());
        self.copy_state(&records, reserved, None)?;
        let write = || -> Result<(), redb::Error> {
            let transaction = self.database.begin_write()?;
            transaction.open_table(META)?.insert(NEXT_MESSAGE_ID, reserved)?;
            transaction.commit()?;
            Ok(())
        };
        write().map_err(|error| database("write", &self.path, error))?;
        ids.reserved_until = reserved;
        Ok(())
    }

    /// Writes the copy as it is with these records, and with one more blob.
    fn copy_state(&self, records: &Records, reserved: u64, blob: Option<(&str, &[u8])>) -> Result<(), StoreError> {
        let Some(copy) = &self.copy else { return Ok(()) };
        let mut blobs = tables::blobs(&self.database).map_err(|error| database("read", &self.path, error))?;
        blobs.extend(blob.map(|(name, blob)| (name.to_owned(), SecretBlob::new(blob.to_vec()))));
        let files = StateFiles::read(&self.directory)?;
        let image = StateImage { records: records.clone(), next_message_id: reserved, blobs, files };
        Ok(copy.put(&image.encode())?)
    }

    fn keep(&self, name: &str, blob: &[u8], durability: Durability) -> Result<(), StoreError> {
        let ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(durability, Durability::Immediate) {
            let records = Records::clone(&self.records.borrow());
            self.copy_state(&records, ids.reserved_until, Some((name, blob)))?;
        }
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

/// Opens a database and reads its records. Checks all of it first, because redb panics on some of the damaged pages
/// that it meets later.
fn open_checked(path: &Path, file: File) -> Result<(Database, Records, u64), StoreError> {
    let open = || -> Result<_, StoreError> {
        let mut opened = redb::Builder::new().create_file(file).map_err(|error| database("open", path, error))?;
        if !opened.check_integrity().map_err(|error| database("check", path, error))? {
            tracing::warn!(path = %path.display(), "the store was damaged and repaired; its last changes may be lost");
        }
        let (records, next) = tables::load(path, &opened)?;
        Ok((opened, records, next))
    };
    // Nothing outside sees what a panic left half done: the database is dropped with it.
    catch_unwind(AssertUnwindSafe(open)).unwrap_or_else(|_| {
        let damaged = "its content is damaged, so that reading it failed".to_owned();
        Err(database("open", path, redb::Error::Corrupted(damaged)))
    })
}

/// Refuses the records of a state directory if their owner is not `member`.
///
/// # Errors
/// [`StoreError::OtherOwner`].
pub fn other_owner(directory: &Path, owner: Option<String>, member: &str) -> Result<(), StoreError> {
    match owner {
        Some(owner) if owner != member => {
            Err(StoreError::OtherOwner { path: directory.join(STORE_FILE), owner, member: member.to_owned() })
        }
        _ => Ok(()),
    }
}

fn database(operation: &'static str, path: &Path, source: impl Into<redb::Error>) -> StoreError {
    StoreError::Database { operation, path: path.to_owned(), source: Box::new(source.into()) }
}

#[cfg(test)]
mod fuzz_records;
#[cfg(test)]
mod tests;
