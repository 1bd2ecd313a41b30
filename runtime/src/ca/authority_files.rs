//! An authority on disk: `tls.crt` (the intermediate, and what lies between it and the root), `tls.key`, and `ca.crt`
//! (the trusted roots). The names are those of a Kubernetes Secret, so that an authority which cert-manager renews is
//! read where it is mounted.
//!
//! A replacement writes all files into the folder `next`, which appears at once, and then moves them out. Whoever reads
//! the directory after a crash finishes the move.

use std::path::{Path, PathBuf};
use std::{fs, io};

use super::{CaError, CertificateAuthority};
use crate::atomic_file::{self, FileError, PRIVATE, PUBLIC};

const CHAIN_FILE: &str = "tls.crt";
const KEY_FILE: &str = "tls.key";
const ROOTS_FILE: &str = "ca.crt";
/// A complete replacement.
const NEXT_FOLDER: &str = "next";
/// A replacement that is being written.
const UNFINISHED_FOLDER: &str = ".next";

impl CertificateAuthority {
    /// The path of the intermediate's key in the directory of an authority.
    #[must_use]
    pub fn key_file(dir: &Path) -> PathBuf {
        dir.join(KEY_FILE)
    }

    /// Whether the directory has an authority.
    pub fn exists(dir: &Path) -> bool {
        dir.join(KEY_FILE).exists()
    }

    /// The first file of an authority that the directory lacks.
    #[must_use]
    pub fn missing_file(dir: &Path) -> Option<&'static str> {
        [CHAIN_FILE, KEY_FILE, ROOTS_FILE].into_iter().find(|name| !dir.join(name).is_file())
    }

    /// Reads an authority. Finishes a replacement that a crash interrupted.
    ///
    /// # Errors
    /// [`CaError`] if a file is missing, or they do not belong together.
    pub fn load(dir: &Path) -> Result<Self, CaError> {
        publish(dir)?;
        let (chain, roots) = (super::read_text(&dir.join(CHAIN_FILE))?, super::read_text(&dir.join(ROOTS_FILE))?);
        Self::assemble(chain, super::read_key(&dir.join(KEY_FILE))?, roots)
    }

    /// Writes an authority, its key with mode 0600.
    ///
    /// # Errors
    /// [`CaError::File`]. Never replaces an existing one.
    pub fn save(&self, dir: &Path) -> Result<(), CaError> {
        atomic_file::create_private_dir(dir)?;
        // The key comes last. A crash in between leaves certificates without key, which may be replaced.
        if !Self::exists(dir) {
            self.write_certificates(dir)?;
        }
        atomic_file::write_new(&dir.join(KEY_FILE), self.key_pem().expose().as_bytes(), PRIVATE)?;
        Ok(())
    }

    /// Writes an authority in place of the one in the directory, if any. Brokers that run on it take it up.
    ///
    /// # Errors
    /// [`CaError::File`]; the old authority then stays.
    pub fn replace(&self, dir: &Path) -> Result<(), CaError> {
        atomic_file::create_private_dir(dir)?;
        publish(dir)?;
        let (unfinished, next) = (dir.join(UNFINISHED_FOLDER), dir.join(NEXT_FOLDER));
        match fs::remove_dir_all(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("remove", &unfinished)(error)),
            _ => {}
        }
        atomic_file::create_private_dir(&unfinished)?;
        self.write_certificates(&unfinished)?;
        atomic_file::write(&unfinished.join(KEY_FILE), self.key_pem().expose().as_bytes(), PRIVATE)?;
        fs::rename(&unfinished, &next).map_err(failed("write", &next))?;
        publish(dir)
    }

    fn write_certificates(&self, dir: &Path) -> Result<(), CaError> {
        atomic_file::write(&dir.join(CHAIN_FILE), self.chain_pem.as_bytes(), PUBLIC)?;
        atomic_file::write(&dir.join(ROOTS_FILE), self.root_pem.as_bytes(), PUBLIC)?;
        Ok(())
    }
}

/// Moves a complete replacement to its place. Two processes may do so at once.
fn publish(dir: &Path) -> Result<(), CaError> {
    let next = dir.join(NEXT_FOLDER);
    if !next.exists() {
        return Ok(());
    }
    for name in [ROOTS_FILE, CHAIN_FILE, KEY_FILE] {
        match fs::rename(next.join(name), dir.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("write", &dir.join(name))(error));
            }
            _ => {}
        }
    }
    let synced = fs::File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(failed("write", dir))?;
    match fs::remove_dir(&next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", &next)(error)),
        _ => Ok(()),
    }
}

fn failed(operation: &'static str, path: &Path) -> impl Fn(io::Error) -> CaError + use<> {
    let path = path.to_owned();
    move |source| FileError { operation, path: path.clone(), source }.into()
}
