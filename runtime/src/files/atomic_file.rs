//! Replaces files atomically and durably: writes a temporary file, fsyncs it, renames it and fsyncs the directory. All
//! calls block on the disk.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use thiserror::Error;

/// Mode of private keys: only the owner can read and write.
pub const PRIVATE: u32 = 0o600;
/// Mode of certificates: everyone can read.
pub const PUBLIC: u32 = 0o644;

/// Age at which a write removes temporary files that a crash left.
const STALE_AFTER: Duration = Duration::from_secs(600);

/// A failed file operation.
#[derive(Debug, Error)]
#[error("cannot {operation} {}: {source}", path.display())]
pub struct FileError {
    /// `read`, `write` or `create`.
    pub operation: &'static str,
    /// The file or directory.
    pub path: PathBuf,
    /// Error of the operating system.
    #[source]
    pub source: io::Error,
}

impl FileError {
    fn new(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self { operation, path: path.to_owned(), source }
    }

    /// Whether the file does not exist.
    pub fn is_not_found(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }
}

/// Writes or replaces a file with the given permission bits.
///
/// # Errors
/// [`FileError`]. An old file then stays unchanged.
pub fn write(path: &Path, content: &[u8], mode: u32) -> Result<(), FileError> {
    write_with(path, mode, |file| file.write_all(content))
}

/// Writes or replaces a file with the content that `fill` writes.
///
/// # Errors
/// [`FileError`]. An old file then stays unchanged.
pub fn write_with(path: &Path, mode: u32, fill: impl FnOnce(&mut File) -> io::Result<()>) -> Result<(), FileError> {
    write_via_temporary(path, mode, fill, |temporary| fs::rename(temporary, path))
}

/// Writes a file that must not exist yet.
///
/// # Errors
/// [`FileError`] with [`io::ErrorKind::AlreadyExists`] if it exists. The file then stays unchanged.
pub fn write_new(path: &Path, content: &[u8], mode: u32) -> Result<(), FileError> {
    // Unlike a rename, a hard link never replaces a file.
    let fill = |file: &mut File| file.write_all(content);
    write_via_temporary(path, mode, fill, |temporary| {
        fs::hard_link(temporary, path)?;
        fs::remove_file(temporary)
    })
}

/// Reads a file of at most `max_bytes`.
///
/// # Errors
/// [`FileError`], also for a larger file.
pub fn read_bounded(path: &Path, max_bytes: u64) -> Result<Vec<u8>, FileError> {
    let read = || {
        let mut content = Vec::new();
        File::open(path)?.take(max_bytes.saturating_add(1)).read_to_end(&mut content)?;
        if content.len() as u64 > max_bytes {
            let message = format!("it is larger than the {max_bytes} bytes allowed for it");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
        Ok(content)
    };
    read().map_err(|source| FileError::new("read", path, source))
}

/// Creates a directory and its parents with mode 0700.
///
/// # Errors
/// [`FileError`].
pub fn create_private_dir(path: &Path) -> Result<(), FileError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| FileError::new("create", path, source))
}

/// Checks that files of `bytes` in all can be written into a directory, which is created. Leaves nothing behind.
///
/// # Errors
/// [`FileError`], for example of a full disk.
pub fn check_room(dir: &Path, bytes: usize) -> Result<(), FileError> {
    create_private_dir(dir)?;
    let probe = dir.join(temporary_name(&OsString::from(".room")));
    let written = create_and_fill(&probe, PRIVATE, |file| file.write_all(&vec![0; bytes]));
    let removed = fs::remove_file(&probe);
    written.and(removed).map_err(|source| FileError::new("write", dir, source))
}

/// Fills a temporary file beside `path`, and calls `publish` on it to move it to `path`.
fn write_via_temporary(
    path: &Path,
    mode: u32,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
    publish: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<(), FileError> {
    let fail = |source| FileError::new("write", path, source);
    let name =
        path.file_name().ok_or_else(|| fail(io::Error::new(io::ErrorKind::InvalidInput, "the path names no file")))?;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut prefix = OsString::from(".");
    prefix.push(name);
    remove_stale(parent, &prefix);
    let temporary = parent.join(temporary_name(&prefix));
    let result = create_and_fill(&temporary, mode, fill).and_then(|()| publish(&temporary));
    if result.is_err() {
        // Best effort: a later write removes the file once it is stale.
        let _ = fs::remove_file(&temporary);
    }
    result.and_then(|()| sync_dir(parent)).map_err(fail)
}

fn temporary_name(prefix: &OsString) -> OsString {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut name = prefix.clone();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    name.push(format!(".{}-{count}.tmp", std::process::id()));
    name
}

fn create_and_fill(temporary: &Path, mode: u32, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(temporary)?;
    // Independent of the umask of the process.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    fill(&mut file)?;
    file.sync_all()
}

/// Makes renames in a directory durable.
fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Removes temporary files of crashed writers of the same file. They may contain a private key.
fn remove_stale(parent: &Path, prefix: &OsString) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let bytes = name.as_encoded_bytes();
        let ours = bytes.starts_with(prefix.as_encoded_bytes()) && bytes.ends_with(b".tmp");
        let age = entry.metadata().and_then(|m| m.modified()).ok().and_then(|t| t.elapsed().ok());
        if ours && age.is_some_and(|age| age > STALE_AFTER) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn replaces_with_the_mode_and_leaves_nothing_beside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key.pem");
        write(&path, b"one", PUBLIC).unwrap();
        write(&path, b"two", PRIVATE).unwrap();
        assert_eq!(read_bounded(&path, 3).unwrap(), b"two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn new_does_not_replace() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        write_new(&path, b"one", PRIVATE).unwrap();
        let error = write_new(&path, b"two", PRIVATE).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn removes_stale_temporary_files_of_the_same_file_only() {
        let dir = tempfile::tempdir().unwrap();
        let (old, fresh, other) = (".key.1-0.tmp", ".key.2-0.tmp", ".other.1-0.tmp");
        for name in [old, fresh, other] {
            let file = File::create(dir.path().join(name)).unwrap();
            if name != fresh {
                file.set_modified(std::time::SystemTime::now() - STALE_AFTER * 2).unwrap();
            }
        }
        write(&dir.path().join("key"), b"x", PRIVATE).unwrap();
        assert!(!dir.path().join(old).exists());
        assert!(dir.path().join(fresh).exists() && dir.path().join(other).exists());
    }

    #[test]
    fn room_is_checked_without_a_trace() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("new");
        check_room(&dir, 4_096).unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        fs::write(home.path().join("file"), "").unwrap();
        let error = check_room(&home.path().join("file"), 1).unwrap_err().to_string();
        assert!(error.contains("file"), "{error}");
    }

    #[test]
    fn errors_name_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("absent").join("file");
        let error = write(&path, b"x", PRIVATE).unwrap_err();
        assert!(error.to_string().contains("absent/file"), "{error}");
        assert!(read_bounded(&path, 1).unwrap_err().is_not_found());
        write(&dir.path().join("big"), b"four", PRIVATE).unwrap();
        let error = read_bounded(&dir.path().join("big"), 3).unwrap_err();
        assert!(error.to_string().contains("larger than the 3 bytes"), "{error}");
    }
}
