//! The state directory of the federation, temporary or kept.
//!
//! A lock distinguishes a directory in use from one that a killed process left; the next start removes the latter.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use comity_runtime::{Entropy as _, SystemEntropy, atomic_file};

use crate::failure::Failure;

const PREFIX: &str = "comity-dev-";
const LOCK: &str = "lock";
/// Directory entries that one start examines for leftovers.
const MAX_ENTRIES: usize = 1_000;
const REMOVE_TRIES: u32 = 20;
const REMOVE_PAUSE: Duration = Duration::from_millis(50);

/// The locked state directory.
#[derive(Debug)]
pub(super) struct Home {
    path: PathBuf,
    kept: bool,
    _lock: File,
}

impl Home {
    /// Opens the kept directory, or creates a temporary one.
    pub(super) fn open(kept: Option<&Path>) -> Result<Self, Failure> {
        let path = match kept {
            Some(path) => std::path::absolute(path).map_err(|error| unusable(path, &error))?,
            None => {
                remove_leftovers(&std::env::temp_dir());
                // Keep the name short: paths of Unix sockets below it are limited in length.
                let name = format!("{PREFIX}{}", &SystemEntropy.unique_hex()[..8]);
                std::env::temp_dir().join(name)
            }
        };
        atomic_file::create_private_dir(&path).map_err(|error| unusable(&path, &error))?;
        let lock = File::create(path.join(LOCK)).map_err(|error| unusable(&path, &error))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path, kept: kept.is_some(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(unusable(&path, &"another 'comity dev' uses it")
                .remedy("stop the other one, or give another directory")),
            Err(TryLockError::Error(error)) => Err(unusable(&path, &error)),
        }
    }

    /// Path of the directory.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Path of an entry in it.
    pub(super) fn dir(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The directory, if it is temporary and must be removed even when the process exits at once.
    pub(super) fn temporary_path(&self) -> Option<PathBuf> {
        (!self.kept).then(|| self.path.clone())
    }

    /// Removes the directory if it is temporary.
    pub(super) fn close(self) -> Result<(), Failure> {
        if self.kept {
            return Ok(());
        }
        // After an interrupt, a task may still write a file during the removal: try again.
        let mut tries = 1;
        loop {
            match fs::remove_dir_all(&self.path) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                Err(_) if tries < REMOVE_TRIES => std::thread::sleep(REMOVE_PAUSE),
                Err(error) => return Err(unusable(&self.path, &error)),
            }
            tries += 1;
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if !self.kept {
            // Nothing is left after `close`; after a panic there is nobody to report an error to.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn unusable(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::configuration(format!("cannot use the state directory {}: {error}", path.display()))
        .field("--state", path.display())
}

/// Removes the directories of killed runs.
fn remove_leftovers(temp: &Path) {
    let entries = fs::read_dir(temp).into_iter().flatten().flatten().take(MAX_ENTRIES);
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX)) {
        // Without a lock file, it is not ours or is just being created.
        let lock = File::open(entry.path().join(LOCK)).ok();
        if lock.is_some_and(|lock| lock.try_lock().is_ok()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_directory_has_one_user_and_stays() {
        let dir = tempfile::tempdir().expect("made");
        let path = dir.path().join("state");
        let home = Home::open(Some(&path)).expect("opened");
        let failure = Home::open(Some(&path)).expect_err("in use");
        assert_eq!(failure.exit.number(), 64);
        assert!(failure.reason.contains("another 'comity dev'"), "{failure}");
        home.close().expect("closed");
        assert!(path.exists());
    }

    #[test]
    fn temporary_directories_of_this_and_of_killed_runs_are_removed() {
        let home = Home::open(None).expect("opened");
        let path = home.path().to_owned();
        assert!(path.join(LOCK).exists());
        let temp = tempfile::tempdir().expect("made");
        let left = temp.path().join("comity-dev-left");
        fs::create_dir(&left).expect("made");
        File::create(left.join(LOCK)).expect("made");
        fs::create_dir(temp.path().join("comity-dev-foreign")).expect("made");
        remove_leftovers(temp.path());
        assert!(!left.exists() && temp.path().join("comity-dev-foreign").exists());
        home.close().expect("closed");
        assert!(!path.exists());
    }
}
