//! The folder that a run takes along: its files but the ignored ones, as a tar stream.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use ignore::WalkBuilder;
use tar::{Builder, EntryType, Header};

use crate::failure::Failure;
use crate::units::format_bytes;

/// Ignore file of runs, with the patterns of a `.gitignore`.
pub(super) const IGNORE_FILE: &str = ".comityignore";
const MAX_FILES: usize = 100_000;
/// Largest files that a refusal names.
const NAMED_FILES: usize = 3;

/// A file, folder or link of the folder.
struct Item {
    /// Below the folder.
    path: PathBuf,
    kind: Kind,
}

enum Kind {
    Folder,
    File {
        bytes: u64,
    },
    /// Where it leads.
    Link(PathBuf),
}

/// What is taken along.
pub(super) struct WorkFolder {
    root: PathBuf,
    items: Vec<Item>,
    pub(super) files: usize,
    pub(super) bytes: u64,
    /// When its newest file was written.
    pub(super) newest: SystemTime,
}

impl WorkFolder {
    /// Lists the files below `root` that neither `.gitignore` nor `.comityignore` excludes; never those of `.git`.
    ///
    /// # Errors
    /// [`Failure`] if the folder cannot be read, is a home folder or `/`, or has more than `most` bytes.
    pub(super) fn collect(root: &Path, most: u64) -> Result<Self, Failure> {
        let named = |failure: Failure| failure.field("--folder", root.display());
        let root_path = fs::canonicalize(root)
            .map_err(|error| named(Failure::usage(format!("the folder cannot be read: {error}"))))?;
        let home = std::env::home_dir().and_then(|home| fs::canonicalize(home).ok());
        if root_path.parent().is_none() || Some(&root_path) == home.as_ref() {
            let failure = Failure::usage("this is a home folder or /, which is not taken along");
            return Err(named(failure.remedy("run it in the folder of your work, or add --no-upload")));
        }
        let mut folder = Self { root: root_path, items: Vec::new(), files: 0, bytes: 0, newest: UNIX_EPOCH };
        let walk = WalkBuilder::new(&folder.root)
            .hidden(false)
            .ignore(false)
            .git_global(false)
            .require_git(false)
            .add_custom_ignore_filename(IGNORE_FILE)
            .filter_entry(|entry| entry.file_name() != ".git")
            .sort_by_file_path(Ord::cmp)
            .build();
        for entry in walk {
            let entry = entry.map_err(|error| named(Failure::usage(format!("a file cannot be read: {error}"))))?;
            let Ok(path) = entry.path().strip_prefix(&folder.root) else { continue };
            if path.as_os_str().is_empty() {
                continue;
            }
            let unreadable = |error: &dyn std::fmt::Display| {
                named(Failure::usage(format!("{} cannot be read: {error}", path.display())))
            };
            let metadata = entry.metadata().map_err(|error| unreadable(&error))?;
            let kind = if metadata.is_dir() {
                Kind::Folder
            } else if metadata.is_file() {
                folder.files += 1;
                folder.newest = metadata.modified().map_or(folder.newest, |modified| modified.max(folder.newest));
                folder.bytes = folder.bytes.saturating_add(metadata.len());
                Kind::File { bytes: metadata.len() }
            } else if metadata.is_symlink() {
                Kind::Link(fs::read_link(entry.path()).map_err(|error| unreadable(&error))?)
            } else {
                // Sockets, pipes and devices are of this machine.
                continue;
            };
            folder.items.push(Item { path: path.to_owned(), kind });
            if folder.items.len() > MAX_FILES {
                let failure = Failure::usage(format!("the folder has more than {MAX_FILES} files"));
                return Err(named(failure.remedy(format!("exclude some in {IGNORE_FILE}, or give another --folder"))));
            }
        }
        if folder.bytes > most {
            return Err(named(folder.too_large(most)));
        }
        Ok(folder)
    }

    fn too_large(&self, most: u64) -> Failure {
        let size = |item: &Item| match item.kind {
            Kind::File { bytes } => bytes,
            Kind::Folder | Kind::Link(_) => 0,
        };
        let mut largest: Vec<&Item> = self.items.iter().collect();
        largest.sort_by_key(|item| std::cmp::Reverse(size(item)));
        let named = largest.iter().take(NAMED_FILES);
        let named: Vec<String> =
            named.map(|item| format!("{} ({})", item.path.display(), format_bytes(size(item)))).collect();
        Failure::usage(format!(
            "the folder has {}, more than {}; its largest files: {}",
            format_bytes(self.bytes),
            format_bytes(most),
            named.join(", ")
        ))
        .remedy(format!("exclude files in {IGNORE_FILE}, or raise --max-upload"))
    }

    /// Writes the files as a tar stream; `sent` counts bytes of files.
    ///
    /// # Errors
    /// A file changed or vanished, or the stream broke.
    pub(super) fn write(&self, stream: impl Write, sent: &Arc<AtomicU64>) -> io::Result<()> {
        let mut archive = Builder::new(stream);
        for item in &self.items {
            let path = self.root.join(&item.path);
            let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", item.path.display()));
            match &item.kind {
                Kind::Folder => {
                    archive.append_data(&mut header(EntryType::Directory, 0, 0o755, 0), &item.path, io::empty())?
                }
                Kind::Link(to) => {
                    archive.append_link(&mut header(EntryType::Symlink, 0, 0o777, 0), &item.path, to).map_err(named)?;
                }
                Kind::File { bytes } => {
                    let file = File::open(&path).map_err(named)?;
                    let mut head = header(EntryType::Regular, *bytes, mode(&file)?, modified_s(&file)?);
                    let exactly = Exactly { file, left: *bytes, sent };
                    archive.append_data(&mut head, &item.path, exactly).map_err(named)?;
                }
            }
        }
        archive.into_inner()?.flush()
    }
}

fn header(kind: EntryType, size: u64, mode: u32, modified_s: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(mode);
    header.set_mtime(modified_s);
    header
}

/// The owner's rights, for everybody: the owner is another user there.
fn mode(file: &File) -> io::Result<u32> {
    use std::os::unix::fs::PermissionsExt as _;
    let may_execute = file.metadata()?.permissions().mode() & 0o100 != 0;
    Ok(if may_execute { 0o755 } else { 0o644 })
}

fn modified_s(file: &File) -> io::Result<u64> {
    let modified = file.metadata()?.modified()?;
    Ok(modified.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// Exactly the bytes that the archive's header announces.
struct Exactly<'a> {
    file: File,
    left: u64,
    sent: &'a AtomicU64,
}

impl Read for Exactly<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let read = self.file.read(&mut buffer[..most])?;
        if read == 0 {
            return Err(io::Error::other("it became shorter while it was sent"));
        }
        self.left -= read as u64;
        self.sent.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("made");
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("it has one")).expect("made");
            fs::write(path, text).expect("written");
        }
        folder
    }

    fn names(folder: &WorkFolder) -> Vec<String> {
        let mut bytes = Vec::new();
        folder.write(&mut bytes, &Arc::default()).expect("written");
        let mut archive = tar::Archive::new(&bytes[..]);
        let entries = archive.entries().expect("an archive").map(|entry| entry.expect("an entry"));
        entries.map(|entry| entry.path().expect("a path").display().to_string()).collect()
    }

    #[test]
    fn ignored_files_and_git_stay_here() {
        let folder = folder(&[
            ("train.py", "print()"),
            (".env", "A=1"),
            ("data/big.bin", "x"),
            ("data/.keep", ""),
            ("out/model.pt", "x"),
            (".git/config", "x"),
            (".gitignore", "out/\n"),
            (".comityignore", "*.bin\n"),
        ]);
        std::os::unix::fs::symlink("train.py", folder.path().join("link")).expect("made");
        let collected = WorkFolder::collect(folder.path(), 1 << 20).expect("collected");
        assert_eq!(
            names(&collected),
            [".comityignore", ".env", ".gitignore", "data", "data/.keep", "link", "train.py"]
        );
        assert_eq!(collected.files, 5);
    }

    #[test]
    fn a_folder_that_is_too_large_names_its_largest_files() {
        let folder = folder(&[("small", "x"), ("large", &"x".repeat(5_000))]);
        let failure = WorkFolder::collect(folder.path(), 4_096).err().expect("too large");
        assert!(failure.reason.contains("large (4.9 KiB)"), "{failure}");
        assert!(failure.remedy.contains(".comityignore"), "{failure:?}");
        let failure = WorkFolder::collect(Path::new("/"), 4_096).err().expect("/");
        assert!(failure.remedy.contains("--no-upload"), "{failure:?}");
    }

    #[test]
    fn a_file_that_shrinks_meanwhile_is_no_broken_archive() {
        let folder = folder(&[("a", "12345")]);
        let collected = WorkFolder::collect(folder.path(), 4_096).expect("collected");
        fs::write(folder.path().join("a"), "1").expect("written");
        let error = collected.write(io::sink(), &Arc::default()).expect_err("shorter");
        assert!(error.to_string().contains("a: it became shorter"), "{error}");
    }
}
