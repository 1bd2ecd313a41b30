//! Checks that private files are accessible to their owner only, and that what a program obeys is changed by it only.

use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use thiserror::Error;

const OTHERS: u32 = 0o007;
const GROUP: u32 = 0o070;
const OTHERS_WRITE: u32 = 0o022;

/// Why a file or directory is not private.
#[derive(Debug, Error)]
pub enum NotPrivate {
    /// Other users can read or change it.
    #[error(
        "{} has mode {mode:04o}, so users other than its owner can {verb} it; run: chmod {change} {}",
        path.display(),
        path.display()
    )]
    Open {
        /// Path of the file or directory.
        path: PathBuf,
        /// Permission bits.
        mode: u32,
        /// `enter`, `read or write`, or `change`.
        verb: &'static str,
        /// Argument of `chmod` that closes it.
        change: &'static str,
    },
    /// It belongs to another user than root, who can change it.
    #[error(
        "{} belongs to user {owner}, who can change it, and this process runs as user {user}; run as its owner, or run: \
         chown {user} {}",
        path.display(),
        path.display()
    )]
    Foreign {
        /// Path of the file or directory.
        path: PathBuf,
        /// Id of the owner.
        owner: u32,
        /// Id of this process's user.
        user: u32,
    },
    /// Its metadata cannot be read.
    #[error("cannot read the mode of {}: {source}", path.display())]
    Unreadable {
        /// Path of the file or directory.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
}

/// Sets the umask so that all new files of this process are private. Call it at the start, before other threads create
/// files.
pub fn make_private_files_only() {
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}

/// Refuses a file or directory that users other than its owner can access. Accepts a missing one.
///
/// Accepts access by a group of this process if the owner is root, as for a mounted Secret, or if this process runs in
/// a pod, whose volumes belong to the group `fsGroup`.
///
/// # Errors
/// [`NotPrivate`], with the command that fixes it.
pub fn check(path: &Path) -> Result<(), NotPrivate> {
    check_in(path, Environment::of_this_process())
}

/// Refuses a file or directory that users other than root and the one of this process can change: one that belongs to
/// them, or is writable for a group or for all. Accepts a missing one.
///
/// Accepts all in a pod: Kubernetes makes volumes writable for `fsGroup` or for all users, and the pod's processes are
/// the only ones that see them.
///
/// # Errors
/// [`NotPrivate`], with the command that fixes it.
pub fn check_writers(path: &Path) -> Result<(), NotPrivate> {
    check_writers_in(path, Environment::of_this_process())
}

/// Applies [`check`] to each file of a directory with this extension.
///
/// # Errors
/// [`NotPrivate`] for the first file that is not private.
pub fn check_all(dir: &Path, extension: &str) -> Result<(), NotPrivate> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(NotPrivate::Unreadable { path: dir.to_owned(), source }),
    };
    let paths = entries.flatten().map(|entry| entry.path());
    paths.filter(|path| path.extension().is_some_and(|found| found == extension)).try_for_each(|path| check(&path))
}

/// Where this process runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Environment {
    Host,
    Pod,
}

impl Environment {
    fn of_this_process() -> Self {
        if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() { Self::Pod } else { Self::Host }
    }
}

fn metadata_of(path: &Path) -> Result<Option<Metadata>, NotPrivate> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(NotPrivate::Unreadable { path: path.to_owned(), source }),
    }
}

fn check_writers_in(path: &Path, environment: Environment) -> Result<(), NotPrivate> {
    let Some(metadata) = metadata_of(path)?.filter(|_| environment == Environment::Host) else { return Ok(()) };
    let (owner, user) = (metadata.uid(), rustix::process::geteuid().as_raw());
    if owner != 0 && owner != user {
        return Err(NotPrivate::Foreign { path: path.to_owned(), owner, user });
    }
    let mode = metadata.permissions().mode() & 0o777;
    if mode & OTHERS_WRITE == 0 {
        return Ok(());
    }
    Err(NotPrivate::Open { path: path.to_owned(), mode, verb: "change", change: "go-w" })
}

fn check_in(path: &Path, environment: Environment) -> Result<(), NotPrivate> {
    let Some(metadata) = metadata_of(path)? else { return Ok(()) };
    let mode = metadata.permissions().mode() & 0o777;
    let group_is_trusted = || (metadata.uid() == 0 || environment == Environment::Pod) && is_own_group(&metadata);
    if mode & OTHERS == 0 && (mode & GROUP == 0 || group_is_trusted()) {
        return Ok(());
    }
    let verb = if metadata.is_dir() { "enter" } else { "read or write" };
    Err(NotPrivate::Open { path: path.to_owned(), mode, verb, change: "go=" })
}

fn is_own_group(metadata: &Metadata) -> bool {
    let group = metadata.gid();
    let others = rustix::process::getgroups().unwrap_or_default();
    rustix::process::getegid().as_raw() == group || others.iter().any(|other| other.as_raw() == group)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn file(dir: &Path, mode: u32) -> PathBuf {
        let path = dir.join("ca-key.pem");
        fs::write(&path, "secret").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn files_of_others_are_refused_with_the_command_to_run() {
        let dir = tempfile::tempdir().unwrap();
        for mode in [0o604, 0o602, 0o644, 0o666] {
            let path = file(dir.path(), mode);
            let error = check(&path).unwrap_err().to_string();
            assert!(error.contains(&format!("mode {mode:04o}")), "{error}");
            assert!(error.ends_with(&format!("run: chmod go= {}", path.display())), "{error}");
        }
        for mode in [0o600, 0o400, 0o700] {
            check(&file(dir.path(), mode)).unwrap();
        }
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(check(dir.path()).unwrap_err().to_string().contains("can enter it"));
        check(&dir.path().join("absent")).unwrap();
        assert!(check_all(&dir.path().join("absent"), "pem").is_ok());
        file(dir.path(), 0o644);
        assert!(check_all(dir.path(), "pem").is_err() && check_all(dir.path(), "wal").is_ok());
    }

    #[test]
    fn others_change_nothing_on_a_host_and_volumes_are_as_kubernetes_made_them() {
        let dir = tempfile::tempdir().unwrap();
        for mode in [0o660, 0o602, 0o777] {
            let path = file(dir.path(), mode);
            let error = check_writers_in(&path, Environment::Host).unwrap_err().to_string();
            assert!(error.ends_with(&format!("run: chmod go-w {}", path.display())), "{error}");
            check_writers_in(&path, Environment::Pod).unwrap();
        }
        let path = file(dir.path(), 0o644);
        check_writers_in(&path, Environment::Host).unwrap();
        check_writers_in(&dir.path().join("absent"), Environment::Host).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(65_532), None).unwrap();
            let error = check_writers_in(&path, Environment::Host).unwrap_err().to_string();
            assert!(error.contains("belongs to user 65532") && error.contains("run: chown 0 "), "{error}");
            check_writers_in(&path, Environment::Pod).unwrap();
        }
    }

    #[test]
    fn a_group_is_trusted_only_where_kubernetes_or_root_gave_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = file(dir.path(), 0o660);
        let owned_by_root = fs::metadata(&path).unwrap().uid() == 0;
        check_in(&path, Environment::Pod).unwrap();
        assert_eq!(check_in(&path, Environment::Host).is_ok(), owned_by_root);
        if owned_by_root {
            std::os::unix::fs::chown(&path, Some(65_532), None).unwrap();
            check_in(&path, Environment::Host).unwrap_err();
            check_in(&path, Environment::Pod).unwrap();
            // A group that this process is not in.
            std::os::unix::fs::chown(&path, None, Some(65_532)).unwrap();
            check_in(&path, Environment::Pod).unwrap_err();
        }
    }
}
