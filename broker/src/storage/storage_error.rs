//! Errors of the data directory.

use std::io;
use std::path::{Path, PathBuf};

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
    /// The audit log's file is damaged.
    #[error("{} is damaged: {reason}; keep it as evidence, move it away and start the broker again: the other \
        brokers send the records, and without other brokers those before the last snapshot are lost", path.display())]
    DamagedAuditLog {
        /// The file.
        path: PathBuf,
        /// The damage.
        reason: String,
    },
    /// The audit log's file and the state do not belong together.
    #[error("{0}")]
    AuditLog(String),
    /// There is nothing to make a state of.
    #[error("{} has neither a log entry nor a snapshot", path.display())]
    NoEntry {
        /// The directory.
        path: PathBuf,
    },
    /// No copy in a data directory has anything.
    #[error("nothing is left to recover in {} ({looked}); put a backup of the data directory back; without a backup, \
        begin again: `comity-broker init` with another data directory makes a new federation, which all clusters and \
        users join", path.display())]
    NothingLeft {
        /// The directory.
        path: PathBuf,
        /// Each place, and what was found there.
        looked: String,
    },
    /// An internal failure.
    #[error("opening the data directory failed: {0}")]
    Internal(String),
}

impl StorageError {
    pub(super) fn damaged(path: impl Into<PathBuf>, reason: impl ToString) -> Self {
        Self::Damaged { path: path.into(), reason: reason.to_string() }
    }

    /// The same error, with the paths of the original in place of those of a copy that is removed after it was read.
    pub(super) fn of_original(self, copy: &Path, original: &Path) -> Self {
        let path_in = |path: PathBuf| match path.strip_prefix(copy) {
            Ok(rest) if rest.as_os_str().is_empty() => original.to_owned(),
            Ok(rest) => original.join(rest),
            Err(_) => path,
        };
        let text_with = |text: String| text.replace(&*copy.to_string_lossy(), &original.to_string_lossy());
        match self {
            Self::File(error) => Self::File(FileError { path: path_in(error.path), ..error }),
            Self::Disk { path, fault, reason } => Self::Disk { path: path_in(path), fault, reason: text_with(reason) },
            Self::OtherBroker { path, found, wanted } => Self::OtherBroker { path: path_in(path), found, wanted },
            Self::FromTheFuture { path, found, known } => Self::FromTheFuture { path: path_in(path), found, known },
            Self::InUse { path } => Self::InUse { path: path_in(path) },
            Self::Damaged { path, reason } => Self::Damaged { path: path_in(path), reason: text_with(reason) },
            Self::DamagedAuditLog { path, reason } => {
                Self::DamagedAuditLog { path: path_in(path), reason: text_with(reason) }
            }
            Self::AuditLog(reason) => Self::AuditLog(text_with(reason)),
            Self::NoEntry { path } => Self::NoEntry { path: path_in(path) },
            Self::NothingLeft { path, looked } => Self::NothingLeft { path: path_in(path), looked: text_with(looked) },
            Self::Internal(reason) => Self::Internal(text_with(reason)),
        }
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
