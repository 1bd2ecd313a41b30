//! Files that come back from the donor, which may send anything: they stay in one folder, in bounds, and out of `.git`.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

use tar::{Archive, EntryType};

use super::work_folder::IGNORE_FILE;
use crate::units::format_bytes;

/// Most files of a run.
const MAX_RESULTS: u64 = 100_000;
/// Longest path.
const MAX_PATH: usize = 4_096;

/// What was fetched.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Fetched {
    pub(super) files: u64,
    pub(super) bytes: u64,
    /// Paths that were not written, and why; the first few.
    pub(super) refused: Vec<String>,
    /// Further ones.
    pub(super) more_refused: u64,
}

/// Most refusals that are kept.
const MAX_REFUSED: usize = 5;
/// Most bytes of an archive beside the files' own, for each file: head, long name, padding.
const OVERHEAD: u64 = 8 << 10;

/// Writes the regular files of tar archives, one after another, below `folder`.
///
/// # Errors
/// The stream broke or is no archive, a file cannot be written, or there is more than `most` bytes. What was written
/// stays, each file whole.
pub(super) fn unpack(stream: impl Read, folder: &Path, most: u64) -> io::Result<Fetched> {
    let mut archive = Archive::new(stream.take(most.saturating_add(MAX_RESULTS * OVERHEAD)));
    // `find -exec … +` makes an archive for each part of a long list.
    archive.set_ignore_zeros(true);
    let mut fetched = Fetched::default();
    let (mut long_name, mut has_other_name) = (None, false);
    // Raw: otherwise names of any length are read into memory.
    for entry in archive.entries()?.raw(true) {
        let mut entry = entry?;
        match entry.header().entry_type() {
            EntryType::GNULongName => {
                long_name = Some(read_long_name(&mut entry)?);
                continue;
            }
            // Its name is in a form that is not read here (POSIX pax).
            EntryType::XHeader => {
                has_other_name = true;
                continue;
            }
            _ => {}
        }
        let path = match long_name.take() {
            Some(path) => path,
            None => entry.path()?.into_owned(),
        };
        let kind = match (entry.header().entry_type(), std::mem::take(&mut has_other_name)) {
            (EntryType::Directory, _) => continue,
            (EntryType::Regular, false) => Ok(()),
            (EntryType::Regular, true) => Err("its name is too long for this tar"),
            (EntryType::Link, _) => Err("it is another name of a file that was fetched"),
            _ => Err("it is no regular file"),
        };
        let place = match kind.and_then(|()| checked(&path)).and_then(|path| without_links(folder, &path)) {
            Ok(place) => place,
            Err(why) => {
                if fetched.refused.len() < MAX_REFUSED {
                    fetched.refused.push(format!("{}: {why}", path.display()));
                } else {
                    fetched.more_refused += 1;
                }
                continue;
            }
        };
        let (files, bytes) = (fetched.files + 1, fetched.bytes.saturating_add(entry.size()));
        if files > MAX_RESULTS {
            return Err(io::Error::other(format!("there are more than {MAX_RESULTS} files; pack them into one")));
        }
        if bytes > most {
            let (path, size) = (path.display(), format_bytes(entry.size()));
            let most = format_bytes(most);
            return Err(io::Error::other(format!(
                "with {path} ({size}) they have more than {most}; raise --max-results"
            )));
        }
        let may_execute = entry.header().mode().unwrap_or(0) & 0o100 != 0;
        let size = entry.size();
        write_whole(&mut entry, size, &place, may_execute)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", place.display())))?;
        (fetched.files, fetched.bytes) = (files, bytes);
    }
    Ok(fetched)
}

/// The name of the next entry, which is too long for its header (GNU tar, "L").
fn read_long_name(entry: &mut impl Read) -> io::Result<PathBuf> {
    let mut name = Vec::new();
    entry.take(MAX_PATH as u64 + 2).read_to_end(&mut name)?;
    if name.last() == Some(&0) {
        name.pop();
    }
    if name.len() > MAX_PATH {
        return Err(io::Error::other(format!("a path is longer than {MAX_PATH} bytes")));
    }
    Ok(PathBuf::from(std::ffi::OsString::from_vec(name)))
}

/// Names, of files and folders, that no result has: Git runs programs of the first, and the others choose what the next
/// run sends.
const KEPT_NAMES: [&str; 3] = [".git", ".gitignore", IGNORE_FILE];

/// A path that stays below its folder.
fn checked(path: &Path) -> Result<PathBuf, &'static str> {
    let mut kept = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) if KEPT_NAMES.iter().any(|kept| name.eq_ignore_ascii_case(kept)) => {
                return Err("files of this name are not replaced");
            }
            Component::Normal(name) => kept.push(name),
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err("it leads out of the folder");
            }
        }
    }
    if kept.as_os_str().is_empty() || kept.as_os_str().len() > MAX_PATH {
        return Err("it has no usable name");
    }
    Ok(kept)
}

/// The place of a file, if none of its folders is a link, which could lead anywhere.
fn without_links(folder: &Path, path: &Path) -> Result<PathBuf, &'static str> {
    let mut place = folder.to_owned();
    let parents = path.parent().into_iter().flat_map(Path::components);
    for component in parents {
        place.push(component);
        match fs::symlink_metadata(&place) {
            Ok(there) if there.is_dir() => {}
            Ok(_) => return Err("a folder on its way is a link or a file here"),
            Err(_) => break,
        }
    }
    let place = folder.join(path);
    match fs::symlink_metadata(&place) {
        Ok(there) if there.is_dir() => Err("it is a folder here"),
        _ => Ok(place),
    }
}

/// Writes a file beside its place and puts it there whole, in place of a link, too.
fn write_whole(entry: &mut impl Read, size: u64, place: &Path, may_execute: bool) -> io::Result<()> {
    let folder = place.parent().ok_or_else(|| io::Error::other("it has no folder"))?;
    fs::create_dir_all(folder)?;
    let beside = folder.join(format!(".comity-{}.part", std::process::id()));
    let before = fs::symlink_metadata(place).ok().filter(fs::Metadata::is_file).map(|it| it.permissions().mode());
    // No link there is followed.
    _ = fs::remove_file(&beside);
    let mut write = || {
        let mut file = File::create_new(&beside)?;
        if io::copy(entry, &mut file)? != size {
            return Err(io::Error::other("the stream ended within it"));
        }
        // The mode of the file that was there, or what the umask leaves.
        let mode = before.unwrap_or(file.metadata()?.permissions().mode());
        let executable = if may_execute { (mode & 0o444) >> 2 } else { 0 };
        file.set_permissions(fs::Permissions::from_mode((mode & 0o777) | executable))?;
        fs::rename(&beside, place)
    };
    write().inspect_err(|_| _ = fs::remove_file(&beside))
}

#[cfg(test)]
mod tests {
    use tar::{Builder, Header};

    use super::*;

    /// An archive of files as they are given, good paths or not.
    fn archive(files: &[(&str, &str)]) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (path, text) in files {
            let mut header = Header::new_gnu();
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_size(text.len() as u64);
            header.set_mode(0o4755);
            header.set_cksum();
            builder.append(&header, text.as_bytes()).expect("appended");
        }
        builder.into_inner().expect("finished")
    }

    #[test]
    fn files_of_several_archives_come_back() {
        let folder = tempfile::tempdir().expect("made");
        let mut stream = archive(&[("./model.pt", "weights"), ("./logs/a.txt", "1")]);
        stream.extend(archive(&[("./logs/b.txt", "22")]));
        let fetched = unpack(&stream[..], folder.path(), 1_000).expect("unpacked");
        assert_eq!(fetched, Fetched { files: 3, bytes: 10, ..Fetched::default() });
        assert_eq!(fs::read_to_string(folder.path().join("logs/b.txt")).expect("there"), "22");
        let mode = fs::metadata(folder.path().join("model.pt")).expect("there").permissions().mode();
        assert_eq!(mode & 0o4100, 0o100, "executable, and no set-user-ID");
    }

    #[test]
    fn donor_writes_outside_the_folder_of_results() {
        let outside = tempfile::tempdir().expect("made");
        let folder = tempfile::tempdir().expect("made");
        let target = outside.path().join("victim");
        fs::write(&target, "mine").expect("written");
        std::os::unix::fs::symlink(outside.path(), folder.path().join("link")).expect("made");
        std::os::unix::fs::symlink(&target, folder.path().join("file")).expect("made");
        let absolute = target.display().to_string();
        let paths = [
            "../victim",
            absolute.as_str(),
            "a/../../victim",
            "link/victim",
            ".git/hooks/x",
            "sub/.GIT/config",
            "sub/.comityignore",
            ".",
        ];
        let files: Vec<(&str, &str)> = paths.iter().map(|path| (*path, "theirs")).collect();
        let fetched = unpack(&archive(&files)[..], folder.path(), 1_000).expect("unpacked");
        assert_eq!((fetched.files, fetched.refused.len(), fetched.more_refused), (0, MAX_REFUSED, 3), "{fetched:?}");
        // A link in the folder is replaced, not followed.
        unpack(&archive(&[("file", "theirs")])[..], folder.path(), 1_000).expect("unpacked");
        assert_eq!(fs::read_to_string(&target).expect("there"), "mine");
        assert_eq!(fs::read_dir(outside.path()).expect("there").count(), 1);
    }

    #[test]
    fn donor_fills_the_disk_with_results() {
        let folder = tempfile::tempdir().expect("made");
        let error = unpack(&archive(&[("a", "12345"), ("b", "12345")])[..], folder.path(), 9).expect_err("too much");
        assert!(error.to_string().contains("--max-results"), "{error}");
        assert!(!folder.path().join("b").exists());
    }

    #[test]
    fn long_paths_come_back_within_bounds() {
        let folder = tempfile::tempdir().expect("made");
        let path = format!("{}/{}/a", "d".repeat(90), "e".repeat(90));
        let mut builder = Builder::new(Vec::new());
        let mut header = Header::new_gnu();
        header.set_size(1);
        header.set_mode(0o644);
        builder.append_data(&mut header, &path, &b"1"[..]).expect("appended");
        let fetched = unpack(&builder.into_inner().expect("finished")[..], folder.path(), 10).expect("unpacked");
        assert_eq!((fetched.files, folder.path().join(&path).exists()), (1, true));
        let mut builder = Builder::new(Vec::new());
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::GNULongName);
        header.set_size(1 << 20);
        header.set_cksum();
        builder.append(&header, &vec![b'x'; 1 << 20][..]).expect("appended");
        assert!(unpack(&builder.into_inner().expect("finished")[..], folder.path(), 10).is_err());
    }

    #[test]
    fn a_file_that_others_may_not_read_stays_so() {
        let folder = tempfile::tempdir().expect("made");
        let place = folder.path().join("a");
        fs::write(&place, "old").expect("written");
        fs::set_permissions(&place, fs::Permissions::from_mode(0o600)).expect("set");
        unpack(&archive(&[("a", "new")])[..], folder.path(), 100).expect("unpacked");
        assert_eq!(fs::metadata(&place).expect("there").permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn what_is_no_archive_is_an_error() {
        let folder = tempfile::tempdir().expect("made");
        assert!(unpack(&[7_u8; 2_000][..], folder.path(), 1_000).is_err());
        let cut = &archive(&[("a", &"x".repeat(900))])[..700];
        assert!(unpack(cut, folder.path(), 10_000).is_err());
        assert!(!folder.path().join("a").exists(), "no file is left in part");
    }
}
