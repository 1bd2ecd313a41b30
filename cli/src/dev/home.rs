//! The directory in which everything of a federation lies: a temporary one, or one that is kept.
//!
//! A lock tells a directory in use from one that a killed process left: the next start removes those.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use comity_runtime::{Entropy as _, SystemEntropy, atomic_file};

use crate::failure::Failure;

const PREFIX: &str = "comity-dev-";
const LOCK: &str = "lock";
/// Directories of earlier runs that are looked at in one start.
const MAX_SWEPT: usize = 1_000;
const REMOVE_TRIES: u32 = 20;
const REMOVE_PAUSE: Duration = Duration::from_millis(50);

/// The directory, locked.
#[derive(Debug)]
pub(super) struct Home {
    path: PathBuf,
    kept: bool,
    _lock: File,
}

impl Home {
    /// Opens the directory that is kept, or makes a temporary one.
    pub(super) fn open(kept: Option<&Path>) -> Result<Self, Failure> {
        let path = match kept {
            Some(path) => std::path::absolute(path).map_err(|error| bad(path, &error))?,
            None => {
                sweep(&std::env::temp_dir());
                // Unix sockets live below, and their paths may not be long.
                let name = format!("{PREFIX}{}", &SystemEntropy.unique_hex()[..8]);
                std::env::temp_dir().join(name)
            }
        };
        atomic_file::create_private_dir(&path).map_err(|error| bad(&path, &error))?;
        let lock = File::create(path.join(LOCK)).map_err(|error| bad(&path, &error))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path, kept: kept.is_some(), _lock: lock }),
            Err(TryLockError::WouldBlock) => {
                Err(bad(&path, &"another 'comity dev' uses it").remedy("stop that one, or name another directory"))
            }
            Err(TryLockError::Error(error)) => Err(bad(&path, &error)),
        }
    }

    /// The directory.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A directory in it.
    pub(super) fn dir(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// What must go even if this process ends at once.
    pub(super) fn path_to_remove(&self) -> Option<PathBuf> {
        (!self.kept).then(|| self.path.clone())
    }

    /// Removes the directory unless it is kept.
    pub(super) fn close(self) -> Result<(), Failure> {
        if self.kept {
            return Ok(());
        }
        // After an interruption some task may still write a last file while the others are being removed.
        let mut tries = 1;
        loop {
            match fs::remove_dir_all(&self.path) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                Err(_) if tries < REMOVE_TRIES => std::thread::sleep(REMOVE_PAUSE),
                Err(error) => return Err(bad(&self.path, &error)),
            }
            tries += 1;
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if !self.kept {
            // After `close` there is nothing left; after a panic nobody can be told.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn bad(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::configuration(format!("cannot use the state directory {}: {error}", path.display()))
        .field("--state", path.display())
}

/// Removes what runs left that were killed.
fn sweep(temp: &Path) {
    let entries = fs::read_dir(temp).into_iter().flatten().flatten().take(MAX_SWEPT);
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX)) {
        // Without a lock file it is not ours, or is being made at this moment.
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
    fn a_temporary_directory_goes_and_so_do_those_of_killed_runs() {
        let home = Home::open(None).expect("opened");
        let path = home.path().to_owned();
        assert!(path.join(LOCK).exists());
        let temp = tempfile::tempdir().expect("made");
        let left = temp.path().join("comity-dev-left");
        fs::create_dir(&left).expect("made");
        File::create(left.join(LOCK)).expect("made");
        fs::create_dir(temp.path().join("comity-dev-foreign")).expect("made");
        sweep(temp.path());
        assert!(!left.exists() && temp.path().join("comity-dev-foreign").exists());
        home.close().expect("closed");
        assert!(!path.exists());
    }
}
