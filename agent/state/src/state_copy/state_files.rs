//! The small files of a state directory: keys, certificate, salt, brokers.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use comity_runtime::atomic_file::{self, FileError};

use crate::record::SecretBlob;

/// Far more than all files of an agent.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The only subdirectory: the certificate and its key.
const IDENTITY: &str = "identity";
/// Name of the file with the documents of the signed policy. Brokers can show them again, and they would fill the copy.
pub const SIGNED_POLICY_FILE: &str = "signed-policy.json";
/// Files of one process or host: they stay where they are.
const LOCAL_FILES: [&str; 5] = ["agent.redb", "agent.sock", "agent.yaml", "inventory.yaml", SIGNED_POLICY_FILE];
/// Marks of crash points, for tests.
const CRASH_MARKS: &str = "crashed-at-";

/// Content by path within the state directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub(crate) struct StateFiles(BTreeMap<String, SecretBlob>);

impl StateFiles {
    /// Reads them.
    pub(crate) fn read(directory: &Path) -> Result<Self, FileError> {
        let mut files = BTreeMap::new();
        for name in names(directory)? {
            let content = atomic_file::read_bounded(&directory.join(&name), MAX_FILE_BYTES)?;
            files.insert(name, SecretBlob::new(content));
        }
        Ok(Self(files))
    }

    /// Writes them in place of those that are there.
    pub(crate) fn write(&self, directory: &Path) -> Result<(), FileError> {
        atomic_file::create_private_dir(&directory.join(IDENTITY))?;
        for gone in names(directory)?.into_iter().filter(|name| !self.0.contains_key(name)) {
            let path = directory.join(gone);
            std::fs::remove_file(&path).map_err(|source| FileError { operation: "remove", path, source })?;
        }
        for (name, content) in self.0.iter().filter(|(name, _)| is_kept(name)) {
            atomic_file::write(&directory.join(name), content.expose(), atomic_file::PRIVATE)?;
        }
        Ok(())
    }
}

fn names(directory: &Path) -> Result<Vec<String>, FileError> {
    let mut names = Vec::new();
    for (path, prefix) in [(directory.to_owned(), ""), (directory.join(IDENTITY), "identity/")] {
        let failed = |path: PathBuf| move |source| FileError { operation: "read", path, source };
        let entries = match std::fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed(path)(error)),
        };
        for entry in entries {
            let entry = entry.map_err(failed(path.clone()))?;
            let is_file = entry.file_type().map_err(failed(path.clone()))?.is_file();
            let name = entry.file_name().to_str().map(|name| format!("{prefix}{name}"));
            names.extend(name.filter(|name| is_file && is_kept(name)));
        }
    }
    Ok(names)
}

/// Whether a path is one of the small files, and no path out of the directory.
fn is_kept(path: &str) -> bool {
    let name = path.strip_prefix("identity/").unwrap_or(path);
    // Temporary files of an atomic write begin with a dot.
    let is_plain = !name.is_empty() && !name.starts_with('.') && !name.contains('/');
    is_plain && !LOCAL_FILES.contains(&path) && !name.starts_with(CRASH_MARKS)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn keys_move_and_files_of_one_host_stay() {
        let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir(old.path().join("identity")).unwrap();
        for name in ["identity-key.pem", "identity/key.pem", "agent.yaml", ".x.1-0.tmp", "crashed-at-psk-after"] {
            std::fs::write(old.path().join(name), name).unwrap();
        }
        std::fs::write(new.path().join("brokers"), "of an earlier life").unwrap();
        std::fs::write(new.path().join("agent.yaml"), "own").unwrap();
        let files = StateFiles::read(old.path()).unwrap();
        files.write(new.path()).unwrap();
        assert_eq!(StateFiles::read(new.path()).unwrap(), files);
        assert_eq!(std::fs::read_to_string(new.path().join("identity/key.pem")).unwrap(), "identity/key.pem");
        assert_eq!(std::fs::read_to_string(new.path().join("agent.yaml")).unwrap(), "own");
        assert!(!new.path().join("brokers").exists() && !new.path().join("crashed-at-psk-after").exists());
    }

    #[test]
    fn no_path_leads_out_of_the_directory() {
        for bad in ["../x", "/etc/x", "identity/../x", "identity/", "", "a/b", "agent.redb"] {
            assert!(!is_kept(bad), "{bad}");
        }
    }
}
