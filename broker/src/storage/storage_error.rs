//! Errors of the data directory.

use std::io;
use std::path::PathBuf;

use comity_runtime::atomic_file::FileError;
use thiserror::Error;

use crate::storage::disk_fault::DiskFault;

/// Why a data directory cannot be used.
#[derive(Debug, Error)]
pub enum StorageError {
    /// A file operation failed.
    #[error(transparent)]
    File(FileError),
    /// A disk fault; the data is intact.
    #[error("cannot use {}: {fault} ({reason}); {}, then start the broker again; nothing is lost, leave the directory \
        where it is", path.display(), fault.remedy())]
    Disk {
        /// The file or directory.
        path: PathBuf,
        /// The fault.
        fault: DiskFault,
        /// Error of the operating system.
        reason: String,
    },
    /// The directory belongs to another broker.
    #[error("{} belongs to broker {found}, not to broker {wanted}; give each broker a directory of its \
        own", path.display())]
    OtherBroker {
        /// The marker.
        path: PathBuf,
        /// Broker of the directory.
        found: u64,
        /// This broker.
        wanted: u64,
    },
    /// Written by a later release.
    #[error("{} has format {found}, this broker reads up to {known}; install the newer release", path.display())]
    FromTheFuture {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
        /// Newest format known.
        known: u64,
    },
    /// The log is in use.
    #[error("the log in {} is in use by another process; stop that one first", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// A file is damaged.
    #[error("{} is damaged: {reason}; stop this broker and run `comity-broker rebuild --data DIR`, which sets its log \
        aside and has the other brokers send it again; without other brokers, run `comity-broker recover` on a \
        backup", path.display())]
    Damaged {
        /// The file, or its directory where the file is not known.
        path: PathBuf,
        /// The damage.
        reason: String,
    },
    /// An internal failure.
    #[error("opening the data directory failed: {0}")]
    Internal(String),
}

impl StorageError {
    pub(super) fn damaged(path: impl Into<PathBuf>, reason: impl ToString) -> Self {
        Self::Damaged { path: path.into(), reason: reason.to_string() }
    }

    /// An I/O error: a disk fault if the operating system names one, else damage.
    pub(super) fn of_io(path: impl Into<PathBuf>, error: &io::Error) -> Self {
        match DiskFault::of(error) {
            Some(fault) => Self::Disk { path: path.into(), fault, reason: error.to_string() },
            None => Self::damaged(path, error),
        }
    }
}

impl From<FileError> for StorageError {
    fn from(error: FileError) -> Self {
        match DiskFault::of(&error.source) {
            Some(fault) => Self::Disk { path: error.path, fault, reason: error.source.to_string() },
            None => Self::File(error),
        }
    }
}

impl From<StorageError> for io::Error {
    fn from(error: StorageError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}
