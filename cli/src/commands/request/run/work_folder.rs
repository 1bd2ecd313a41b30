//! The folder that a run takes along: its files but the ignored ones, as a tar stream.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};
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
    /// Files and links.
    pub(super) files: usize,
    pub(super) bytes: u64,
    /// Links that lead out of the folder.
    pub(super) left_out: Vec<PathBuf>,
}

impl WorkFolder {
    /// Lists the files below `root` that neither `.gitignore` nor `.comityignore` excludes; never those of `.git`.
    ///
    /// # Errors
    /// [`Failure`] if the folder cannot be read, is a home folder or `/`, or has more than `most` bytes.
    pub(super) fn collect(root: &Path, most: u64) -> Result<Self, Failure> {
        let named = |failure: Failure| failure.field("--folder", root.display());
        let root_path = fs::canonicalize(root).map_err(|error| {
            named(
                Failure::usage(format!("the folder cannot be read: {error}"))
                    .remedy("give one that exists, or --no-upload"),
            )
        })?;
        if !root_path.is_dir() {
            return Err(named(Failure::usage("this is no folder").remedy("give the folder that the file is in")));
        }
        let home = std::env::home_dir().and_then(|home| fs::canonicalize(home).ok());
        if root_path.parent().is_none() || Some(&root_path) == home.as_ref() {
            let failure = Failure::usage("this is a home folder or /, which is not taken along");
            return Err(named(failure.remedy("run it in the folder of your work, or add --no-upload")));
        }
        let mut folder = Self { root: root_path, items: Vec::new(), files: 0, bytes: 0, left_out: Vec::new() };
        // Within a repository its rules above the folder count, too; elsewhere those of the folder alone.
        let is_in_repository = folder.root.ancestors().any(|above| above.join(".git").exists());
        let walk = WalkBuilder::new(&folder.root)
            .hidden(false)
            .ignore(false)
            .git_global(false)
            .parents(is_in_repository)
            .require_git(is_in_repository)
            .add_custom_ignore_filename(IGNORE_FILE)
            .filter_entry(|entry| entry.file_name() != ".git")
            .sort_by_file_path(Ord::cmp)
            .build();
        for entry in walk {
            let entry = entry.map_err(|error| named(Failure::usage(format!("a file cannot be read: {error}"))))?;
            // A rule that cannot be read might have kept a secret here.
            if let Some(error) = entry.error() {
                let failure = Failure::usage(format!("a rule for ignored files is wrong: {error}"));
                return Err(named(failure.remedy("correct it")));
            }
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
                folder.bytes = folder.bytes.saturating_add(metadata.len());
                Kind::File { bytes: metadata.len() }
            } else if metadata.is_symlink() {
                let to = fs::read_link(entry.path()).map_err(|error| unreadable(&error))?;
                if leads_out(path, &to) {
                    folder.left_out.push(path.to_owned());
                    continue;
                }
                folder.files += 1;
                Kind::Link(to)
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

    /// The files, below the folder.
    pub(super) fn names(&self) -> Vec<String> {
        let files = self.items.iter().filter(|item| !matches!(item.kind, Kind::Folder));
        files.map(|item| item.path.display().to_string()).collect()
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

    /// Writes the files as a tar stream; `sent` counts bytes of files. Files that are gone meanwhile are left out.
    ///
    /// # Errors
    /// A file cannot be read or became shorter, or the stream broke.
    pub(super) fn write(&self, stream: impl Write, sent: &AtomicU64) -> io::Result<()> {
        let mut archive = Builder::new(stream);
        for item in &self.items {
            let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", item.path.display()));
            match &item.kind {
                Kind::Folder => {
                    archive.append_data(&mut header(EntryType::Directory, 0o755), &item.path, io::empty())?;
                }
                Kind::Link(to) => {
                    archive.append_link(&mut header(EntryType::Symlink, 0o777), &item.path, to).map_err(named)?;
                }
                Kind::File { .. } => {
                    let file = match File::open(self.root.join(&item.path)) {
                        Ok(file) => file,
                        Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                        Err(error) => return Err(named(error)),
                    };
                    let metadata = file.metadata().map_err(named)?;
                    let mut head = header(EntryType::Regular, mode(&metadata));
                    head.set_size(metadata.len());
                    head.set_mtime(sent_time_s(metadata.modified().map_err(named)?, SystemTime::now()));
                    let exactly = Exactly { file, left: metadata.len(), sent };
                    archive.append_data(&mut head, &item.path, exactly).map_err(named)?;
                }
            }
        }
        archive.into_inner()?.flush()
    }
}

/// Whether a link at `path` in the folder leads out of it.
fn leads_out(path: &Path, to: &Path) -> bool {
    let mut depth = path.components().count().saturating_sub(1);
    for component in to.components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::ParentDir if depth > 0 => depth -= 1,
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return true,
        }
    }
    false
}

fn header(kind: EntryType, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(0);
    header.set_mode(mode);
    header
}

/// The owner's rights, for everybody: the owner is another user there.
fn mode(metadata: &fs::Metadata) -> u32 {
    use std::os::unix::fs::PermissionsExt as _;
    if metadata.permissions().mode() & 0o100 != 0 { 0o755 } else { 0o644 }
}

/// The time that a file has there, in seconds since 1970: an hour before its own, and before now. Results are told from
/// what was sent by their times, and the donor's clock may be behind.
fn sent_time_s(modified: SystemTime, now: SystemTime) -> u64 {
    const BACK_S: u64 = 3_600;
    modified.min(now).duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs().saturating_sub(BACK_S))
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
        folder.write(&mut bytes, &AtomicU64::new(0)).expect("written");
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
        assert_eq!(collected.files, collected.names().len());
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
    fn files_are_sent_as_they_are_then() {
        let folder = folder(&[("a", "12345"), ("gone", "1"), ("grown", "1")]);
        let collected = WorkFolder::collect(folder.path(), 4_096).expect("collected");
        fs::remove_file(folder.path().join("gone")).expect("removed");
        fs::write(folder.path().join("grown"), "123").expect("written");
        let mut bytes = Vec::new();
        collected.write(&mut bytes, &AtomicU64::new(0)).expect("written");
        let mut archive = tar::Archive::new(&bytes[..]);
        let sizes = archive.entries().expect("an archive").map(|entry| entry.expect("an entry").size());
        assert_eq!(sizes.collect::<Vec<_>>(), [5, 3]);
    }

    #[test]
    fn a_wrong_rule_sends_nothing() {
        let folder = folder(&[("secret", "x"), (".comityignore", "{secret\n")]);
        let failure = WorkFolder::collect(folder.path(), 4_096).err().expect("a wrong rule");
        assert!(failure.reason.contains("rule"), "{failure}");
    }

    #[test]
    fn links_that_lead_out_are_left_out() {
        let out = |path: &str, to: &str| leads_out(Path::new(path), Path::new(to));
        assert!(out("data", "/scratch") && out("data", "../x") && out("a/data", "../../x"));
        assert!(!out("data", "x") && !out("a/data", "../x") && !out("a/b/data", "../c/./../../x"));
    }

    #[test]
    fn sent_files_are_older_than_results() {
        let at = |seconds| UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        assert_eq!(sent_time_s(at(10_000), at(20_000)), 6_400);
        assert_eq!(sent_time_s(at(90_000), at(20_000)), 16_400, "a time in the future");
    }
}
