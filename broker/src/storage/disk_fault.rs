//! Disk faults that the operating system reports. Unlike damage they pass and lose no data.

pub(crate) mod disk_watch;

use std::error::Error;
use std::fmt;
use std::io::{self, ErrorKind};

/// Free space needed, in MiB: two chunks of the log.
const NEEDED_MIB: u64 = 64;

/// Kinds of faults, by remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskFault {
    /// No space, or no inodes.
    Full,
    /// The quota of the user or the volume.
    Quota,
    /// Mounted read-only, most often by the kernel after an error of the device.
    ReadOnly,
    /// Permission denied.
    Denied,
    /// The device failed.
    Device,
    /// The limit of the process or the system for open files.
    Files,
}

impl DiskFault {
    /// The fault behind an error, from its OS error number, kind or text: raft-log does not always keep the number.
    pub(super) fn of(error: &io::Error) -> Option<Self> {
        let number = numbers(error).find_map(Self::of_number);
        number.or_else(|| Self::of_kind(error.kind())).or_else(|| Self::of_text(&error.to_string()))
    }

    /// Parses "(os error N)" in an error's text.
    pub(crate) fn of_text(text: &str) -> Option<Self> {
        let (_, rest) = text.rsplit_once("(os error ")?;
        Self::of_number(rest.split_once(')')?.0.parse().ok()?)
    }

    fn of_number(number: i32) -> Option<Self> {
        // Linux error numbers.
        match number {
            28 => Some(Self::Full),
            122 => Some(Self::Quota),
            30 => Some(Self::ReadOnly),
            1 | 13 => Some(Self::Denied),
            5 | 6 | 19 | 116 | 117 | 121 => Some(Self::Device),
            23 | 24 => Some(Self::Files),
            _ => None,
        }
    }

    const fn of_kind(kind: ErrorKind) -> Option<Self> {
        match kind {
            ErrorKind::StorageFull => Some(Self::Full),
            ErrorKind::QuotaExceeded => Some(Self::Quota),
            ErrorKind::ReadOnlyFilesystem => Some(Self::ReadOnly),
            ErrorKind::PermissionDenied => Some(Self::Denied),
            _ => None,
        }
    }

    /// Remedy, as an imperative.
    pub(super) const fn remedy(self) -> &'static str {
        match self {
            Self::Full => "free space there or enlarge it",
            Self::Quota => "raise the quota or free space there",
            Self::ReadOnly => "look into the kernel's log for why, and mount it writable",
            Self::Denied => "give the files to the user that runs the broker",
            Self::Device => "look into the kernel's log; replace the disk where it is failing",
            Self::Files => "raise the limit of open files (ulimit -n, or LimitNOFILE= of the service)",
        }
    }
}

impl fmt::Display for DiskFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => write!(f, "the file system is full, at least {NEEDED_MIB} MiB are needed"),
            Self::Quota => write!(f, "the quota is used up, at least {NEEDED_MIB} MiB are needed"),
            Self::ReadOnly => f.write_str("the file system is read-only"),
            Self::Denied => f.write_str("this process may not use it"),
            Self::Device => f.write_str("the device reports an error"),
            Self::Files => f.write_str("too many files are open"),
        }
    }
}

/// OS error numbers along the chain of causes.
fn numbers(error: &io::Error) -> impl Iterator<Item = i32> {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    std::iter::from_fn(move || {
        while let Some(error) = cause {
            let io = error.downcast_ref::<io::Error>();
            // An io::Error that wraps another hides it from source().
            cause = match io.and_then(io::Error::get_ref) {
                Some(inner) => Some(inner as &(dyn Error + 'static)),
                None => error.source(),
            };
            if let Some(number) = io.and_then(io::Error::raw_os_error) {
                return Some(number);
            }
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_found_however_they_are_wrapped() {
        for (number, fault) in [
            (28, DiskFault::Full),
            (122, DiskFault::Quota),
            (30, DiskFault::ReadOnly),
            (13, DiskFault::Denied),
            (5, DiskFault::Device),
            (24, DiskFault::Files),
        ] {
            let bare = || io::Error::from_raw_os_error(number);
            let by_text = io::Error::other(format!("Failed to write chunk: {}", bare()));
            let by_kind = io::Error::new(bare().kind(), "short write");
            for error in [bare(), io::Error::other(bare()), io::Error::other(io::Error::other(bare())), by_text] {
                assert_eq!(DiskFault::of(&error), Some(fault), "{error:?}");
            }
            if !matches!(fault, DiskFault::Device | DiskFault::Files) {
                assert_eq!(DiskFault::of(&by_kind), Some(fault), "{by_kind:?}");
            }
        }
    }

    #[test]
    fn damage_is_no_fault_of_the_disk() {
        let checksum = io::Error::new(ErrorKind::InvalidData, "checksum mismatch: 28 expected");
        let torn = io::Error::from(ErrorKind::UnexpectedEof);
        let gone = io::Error::from_raw_os_error(2);
        for error in [checksum, torn, gone] {
            assert_eq!(DiskFault::of(&error), None, "{error:?}");
        }
    }
}
