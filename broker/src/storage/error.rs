//! Why a data directory cannot be used.

use std::io;
use std::path::PathBuf;

use comity_runtime::atomic_file::FileError;
use thiserror::Error;

/// Why a data directory cannot be used.
#[derive(Debug, Error)]
pub enum StorageError {
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The directory belongs to another broker.
    #[error("{} belongs to broker {found}, not to broker {wanted}; give each broker a directory of its own", path.display())]
    OtherBroker {
        /// The marker.
        path: PathBuf,
        /// Whose it is.
        found: u64,
        /// Who asked.
        wanted: u64,
    },
    /// Written by a later release.
    #[error("{} has format {found}, this broker reads up to {known}; install the newer release", path.display())]
    FromTheFuture {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
        /// The newest that is known.
        known: u64,
    },
    /// The log is in use.
    #[error("the log in {} is in use by another process; stop that one first", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// A file is not as it was written.
    #[error("{} is damaged: {reason}; stop this broker and run `comity-broker rebuild --data DIR`, which sets its log aside and has the other brokers send it again; without other brokers, run `comity-broker recover` on a backup", path.display())]
    Damaged {
        /// The file, or its directory where the file is not known.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A thread ended.
    #[error("opening the data directory failed: {0}")]
    Internal(String),
}

impl StorageError {
    pub(super) fn damaged(path: impl Into<PathBuf>, reason: impl ToString) -> Self {
        Self::Damaged { path: path.into(), reason: reason.to_string() }
    }
}

impl From<StorageError> for io::Error {
    fn from(error: StorageError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}
