//! Fills a data directory in one step: everything is made in a folder of it and then moved out, the settings last. So a
//! broker is set up in a directory or not, whenever the process is killed, and repeating the command completes it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use comity_runtime::atomic_file::{self, FileError};

use crate::config::SETTINGS_FILE;

/// The folder in the data directory.
pub(crate) const STAGING_FOLDER: &str = ".setup";
/// Room for authority, identities, policy and settings.
const ROOM_BYTES: usize = 256 << 10;

/// A data directory that is being filled.
pub(crate) struct Staging {
    data: PathBuf,
}

impl Staging {
    /// Begins in a directory that holds nothing else. Keeps of an interrupted setup only the files in `kept`.
    ///
    /// # Errors
    /// [`FileError`], for example of a full disk.
    pub(crate) fn begin(data: &Path, kept: &[&str]) -> Result<Self, FileError> {
        let staging = Self { data: data.to_owned() };
        atomic_file::check_room(&staging.path(), ROOM_BYTES)?;
        for entry in staging.entries()? {
            if !kept.iter().any(|name| entry.ends_with(name)) {
                let removed = if entry.is_dir() { fs::remove_dir_all(&entry) } else { fs::remove_file(&entry) };
                removed.map_err(failed("remove", &entry))?;
            }
        }
        Ok(staging)
    }

    /// Completes an interrupted [`publish`](Self::publish), if there is one in `data`.
    ///
    /// # Errors
    /// [`FileError`].
    pub(crate) fn complete(data: &Path) -> Result<(), FileError> {
        let staging = Self { data: data.to_owned() };
        if staging.path().join(SETTINGS_FILE).exists() { staging.publish(&[]) } else { Ok(()) }
    }

    /// The folder to fill.
    pub(crate) fn path(&self) -> PathBuf {
        self.data.join(STAGING_FOLDER)
    }

    /// Moves everything but the files in `dropped` into the data directory, the settings last.
    ///
    /// # Errors
    /// [`FileError`].
    pub(crate) fn publish(&self, dropped: &[&str]) -> Result<(), FileError> {
        let mut entries = self.entries()?;
        entries.retain(|entry| !dropped.iter().any(|name| entry.ends_with(name)));
        entries.sort_by_key(|entry| entry.ends_with(SETTINGS_FILE));
        for entry in entries {
            let target = entry.file_name().map(|name| self.data.join(name)).unwrap_or_default();
            fs::rename(&entry, &target).map_err(failed("write", &target))?;
        }
        let synced = File::open(&self.data).and_then(|directory| directory.sync_all());
        synced.map_err(failed("write", &self.data))?;
        // With the settings in place the folder is of no use; what stays of it harms nobody.
        let _ = fs::remove_dir_all(self.path());
        Ok(())
    }

    fn entries(&self) -> Result<Vec<PathBuf>, FileError> {
        let read = || fs::read_dir(self.path())?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>();
        read().map_err(failed("read", &self.path()))
    }
}

fn failed(operation: &'static str, path: &Path) -> impl Fn(io::Error) -> FileError + use<> {
    let path = path.to_owned();
    move |source| FileError { operation, path: path.clone(), source }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn fill(staging: &Staging) {
        fs::create_dir(staging.path().join("ca")).unwrap();
        fs::write(staging.path().join("ca/ca.crt"), "root").unwrap();
        fs::write(staging.path().join(SETTINGS_FILE), "{}").unwrap();
    }

    #[test]
    fn nothing_is_in_the_directory_until_it_is_published() {
        let data = tempfile::tempdir().unwrap();
        let staging = Staging::begin(data.path(), &[]).unwrap();
        fill(&staging);
        assert!(!data.path().join("ca").exists());
        staging.publish(&[]).unwrap();
        assert_eq!(fs::read(data.path().join("ca/ca.crt")).unwrap(), b"root");
        assert!(data.path().join(SETTINGS_FILE).exists() && !staging.path().exists());
    }

    #[test]
    fn a_setup_that_was_killed_begins_again_and_keeps_what_the_group_knows() {
        let data = tempfile::tempdir().unwrap();
        let staging = Staging::begin(data.path(), &[]).unwrap();
        fs::create_dir(staging.path().join("ca")).unwrap();
        fs::write(staging.path().join("key"), "sealing").unwrap();
        Staging::complete(data.path()).unwrap();
        assert!(!data.path().join("ca").exists(), "it was not complete");
        let again = Staging::begin(data.path(), &["key"]).unwrap();
        assert_eq!(again.entries().unwrap(), [again.path().join("key")]);
        fill(&again);
        again.publish(&["key"]).unwrap();
        assert!(!data.path().join("key").exists() && data.path().join("ca").exists());
    }

    #[test]
    fn a_publication_that_was_killed_is_completed() {
        let data = tempfile::tempdir().unwrap();
        let staging = Staging::begin(data.path(), &[]).unwrap();
        fill(&staging);
        // Killed after the first rename.
        fs::rename(staging.path().join("ca"), data.path().join("ca")).unwrap();
        Staging::complete(data.path()).unwrap();
        assert!(data.path().join("ca/ca.crt").exists() && data.path().join(SETTINGS_FILE).exists());
        Staging::complete(data.path()).unwrap();
    }
}
