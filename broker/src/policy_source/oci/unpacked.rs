//! Documents in a tar archive, as `flux push artifact` and `oras push` make it of a folder.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::{Component, Path};

use comity_policy::limits::{MAX_BUNDLE_BYTES, MAX_FILE_BYTES, MAX_FILES, MAX_FOLDER_DEPTH};
use comity_policy::{SourceFile, is_policy_file};
use flate2::read::GzDecoder;

use crate::policy_source::pull_error::PullError;

/// Media types of layers that are one.
pub(super) const FOLDERS: [&str; 2] =
    ["application/vnd.cncf.flux.content.v1.tar+gzip", "application/vnd.oci.image.layer.v1.tar+gzip"];
/// Bytes of the archive: what is no document, such as a README, is in it, too.
pub(super) const MAX_ARCHIVE_BYTES: usize = 8 * 1024 * 1024;
/// Bytes of all that the archive unpacks to.
const MAX_UNPACKED_BYTES: u64 = 32 * 1024 * 1024;
/// Files and folders in the archive.
const MAX_ENTRIES: usize = 4_096;
const ARCHIVE_REMEDY: &str = "push the folder with the policy alone, with `flux push artifact` or `oras push`";

/// The documents in a folder of an archive, sorted by path, which counts from that folder. What is hidden, and what is no
/// YAML, is left out, as in a directory. The rest of the archive may be anything, within the bounds of the whole.
pub(in crate::policy_source) fn unpacked(archive: &[u8], folder: &str) -> Result<Vec<SourceFile>, PullError> {
    let refused = |reason: String| PullError::new(reason, ARCHIVE_REMEDY);
    let unreadable = |error: &io::Error| PullError::saying("the archive of the policy", error, ARCHIVE_REMEDY);
    let bounded = Bounded { inner: GzDecoder::new(archive), left: MAX_UNPACKED_BYTES };
    let mut archive = tar::Archive::new(bounded);
    let (mut files, mut total, mut seen) = (Vec::new(), 0, BTreeSet::new());
    for (index, entry) in archive.entries().map_err(|error| unreadable(&error))?.enumerate() {
        if index == MAX_ENTRIES {
            return Err(refused(format!("the archive of the policy has more than {MAX_ENTRIES} entries")));
        }
        let entry = entry.map_err(|error| unreadable(&error))?;
        let kind = entry.header().entry_type();
        // A comment about the whole archive.
        if kind == tar::EntryType::XGlobalHeader {
            continue;
        }
        let path = entry.path().map_err(|error| unreadable(&error))?.into_owned();
        let shown = comity_types::printable_line(&path.to_string_lossy()).into_owned();
        if path.components().any(|part| !matches!(part, Component::CurDir | Component::Normal(_))) {
            return Err(refused(format!("{shown} leads out of the archive of the policy")));
        }
        let Some(parts) = parts_below(&path, folder) else { continue };
        let is_file = matches!(kind, tar::EntryType::Regular | tar::EntryType::Continuous);
        if !is_file && kind != tar::EntryType::Directory {
            return Err(refused(format!("{shown} in the archive of the policy is neither a file nor a folder")));
        }
        let parts: Option<Vec<&str>> = parts.iter().map(|part| part.to_str()).collect();
        let parts = parts.ok_or_else(|| refused(format!("{shown} has a name that is not UTF-8 text")))?;
        let is_hidden = parts.iter().any(|part| part.starts_with('.'));
        let Some(name) = parts.last().filter(|name| !is_hidden && is_policy_file(name)) else { continue };
        if !is_file {
            continue;
        }
        if parts.len() > MAX_FOLDER_DEPTH + 1 {
            return Err(refused(format!("{name} lies below more than {MAX_FOLDER_DEPTH} folders")));
        }
        let path = parts.join("/");
        if !seen.insert(path.clone()) {
            return Err(refused(format!("{shown} is in the archive of the policy twice")));
        }
        if files.len() == MAX_FILES {
            return Err(refused(format!("the archive of the policy has more than {MAX_FILES} files with documents")));
        }
        let mut bytes = Vec::new();
        // One byte above the bound reveals a file that is too large, whatever its header says.
        entry.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|error| unreadable(&error))?;
        total += bytes.len();
        if bytes.len() > MAX_FILE_BYTES || total > MAX_BUNDLE_BYTES {
            let reason = format!("more than {MAX_FILE_BYTES} bytes in {shown}, or {MAX_BUNDLE_BYTES} in all documents");
            return Err(refused(reason));
        }
        let text = String::from_utf8(bytes).map_err(|_| refused(format!("{shown} is not UTF-8 text")))?;
        files.push(SourceFile { path, text });
    }
    files.sort();
    Ok(files)
}

/// The names of which a path below a folder consists, from there; `None` if it is not in the folder.
fn parts_below<'p>(path: &'p Path, folder: &str) -> Option<Vec<&'p OsStr>> {
    let mut parts = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name),
        _ => None,
    });
    let is_below = folder.split('/').filter(|name| !name.is_empty()).all(|name| parts.next() == Some(OsStr::new(name)));
    is_below.then(|| parts.collect())
}

/// Fails where the content exceeds a bound, so that a small archive cannot unpack without end.
struct Bounded<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        if count as u64 > self.left {
            return Err(io::Error::other(format!("it unpacks to more than {MAX_UNPACKED_BYTES} bytes")));
        }
        self.left = self.left.saturating_sub(count as u64);
        Ok(count)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::io::Write as _;

    use comity_fuzz::fuzz;
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    /// An entry with any name, which the crate's builder would refuse.
    fn entry(name: &str, kind: tar::EntryType, content: &[u8]) -> Vec<u8> {
        let mut header = tar::Header::new_ustar();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(kind);
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        if matches!(kind, tar::EntryType::Symlink | tar::EntryType::Link) {
            header.set_link_name("a.yaml").unwrap();
        }
        header.set_cksum();
        let mut bytes = [header.as_bytes(), content].concat();
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }

    fn file(name: &str, content: &[u8]) -> Vec<u8> {
        entry(name, tar::EntryType::Regular, content)
    }

    fn archive(entries: &[Vec<u8>]) -> Vec<u8> {
        let mut archive = GzEncoder::new(Vec::new(), Compression::fast());
        archive.write_all(&entries.concat()).unwrap();
        archive.write_all(&[0; 1024]).unwrap();
        archive.finish().unwrap()
    }

    #[test]
    fn documents_are_sorted_and_the_rest_is_left_out() {
        let folder = |name: &str| entry(name, tar::EntryType::Directory, b"");
        let entries = [
            entry("pax_global_header", tar::EntryType::XGlobalHeader, b"16 comment=12345\n"),
            folder("./"),
            folder("./sub.yaml/"),
            file("./sub.yaml/b.yml", b"b"),
            file("./a.yaml", b"a"),
            file("./.git/c.yaml", b"c"),
            file("./d.test.yaml", b"d"),
            file("./image.bin", &[0xff; 3 << 20]),
        ];
        let found = unpacked(&archive(&entries), "").unwrap();
        let found: Vec<_> = found.iter().map(|file| (file.path.as_str(), file.text.as_str())).collect();
        assert_eq!(found, [("a.yaml", "a"), ("sub.yaml/b.yml", "b")]);
        assert_eq!(unpacked(&archive(&[]), "").unwrap(), []);
    }

    #[test]
    fn what_leads_out_or_exceeds_a_bound_is_refused() {
        let many = |count: usize, name: &dyn Fn(usize) -> String| {
            (0..count).map(|index| file(&name(index), b"")).collect::<Vec<_>>()
        };
        let huge = vec![b'#'; MAX_FILE_BYTES];
        for (what, entries, reason) in [
            ("a parent", vec![file("../a.yaml", b"")], "leads out"),
            ("a parent inside", vec![file("a/../../a.yaml", b"")], "leads out"),
            ("an absolute path", vec![file("/etc/a.yaml", b"")], "leads out"),
            ("a link", vec![entry("b.yaml", tar::EntryType::Symlink, b"")], "neither a file nor a folder"),
            ("a hard link", vec![entry("b.txt", tar::EntryType::Link, b"")], "neither a file nor a folder"),
            ("a device", vec![entry("b.yaml", tar::EntryType::Char, b"")], "neither a file nor a folder"),
            ("a pipe", vec![entry("b.yaml", tar::EntryType::Fifo, b"")], "neither a file nor a folder"),
            ("twice", vec![file("a.yaml", b"1"), file("./a.yaml", b"2")], "twice"),
            ("no text", vec![file("a.yaml", b"\xff")], "is not UTF-8"),
            ("deep", vec![file(&format!("{}a.yaml", "d/".repeat(9)), b"")], "below more than 8 folders"),
            ("large", vec![file("a.yaml", &[&huge[..], b"#"].concat())], "more than 1048576 bytes"),
            (
                "large together",
                vec![file("a.yaml", &huge), file("b.yaml", &huge), file("c.yaml", b"#")],
                "2097152 in all documents",
            ),
            ("many files", many(MAX_FILES + 1, &|index| format!("{index}.yaml")), "more than 512"),
            ("many entries", many(MAX_ENTRIES + 1, &|index| format!("{index}.txt")), "more than 4096 entries"),
            ("much else", vec![file("zeros", &vec![0; 33 << 20]), file("a.yaml", b"")], "unpacks to more than"),
        ] {
            let error = unpacked(&archive(&entries), "").expect_err(what);
            assert!(error.reason.contains(reason), "{what}: {error}");
        }
        let whole = archive(&[file("a.yaml", b"a")]);
        for cut in [&whole[..whole.len() / 2], b"no gzip", b""] {
            assert!(unpacked(cut, "").unwrap_err().reason.contains("the archive of the policy: "));
        }
    }

    #[test]
    fn what_lies_beside_the_folder_counts_for_nothing() {
        let huge = vec![b'#'; MAX_FILE_BYTES + 1];
        let mut entries: Vec<Vec<u8>> =
            (0..=MAX_FILES).map(|index| file(&format!("charts/{index}.yaml"), b"")).collect();
        entries.extend([
            file("huge.yaml", &huge),
            file("latin-1.yaml", b"\xff"),
            entry("link.yaml", tar::EntryType::Symlink, b""),
            file(&format!("{}a.yaml", "d/".repeat(9)), b""),
            file("policy.yaml", b""),
            file("./a/policy/sub/b.yaml", b"b"),
            file("a/policy/a.yaml", b"a"),
            file("a/policy2/c.yaml", b"c"),
        ]);
        let paths = |folder: &str| {
            let found = unpacked(&archive(&entries), folder).unwrap();
            found.into_iter().map(|file| file.path).collect::<Vec<_>>()
        };
        assert_eq!(paths("a/policy"), ["a.yaml", "sub/b.yaml"]);
        assert_eq!(paths("a/policy/a.yaml"), [] as [&str; 0]);
        assert!(unpacked(&archive(&entries), "").is_err());
    }

    #[test]
    fn made_up_archives() {
        // The checksum of gzip would keep most of them out.
        let valid = vec![file("a.yaml", b"a"), [file("b/a.yaml", b"a"), vec![0; 1024]].concat()];
        fuzz!("policy_archives", valid, |bytes: &[u8]| {
            let mut archive = GzEncoder::new(Vec::new(), Compression::none());
            archive.write_all(bytes).unwrap();
            unpacked(&archive.finish().unwrap(), "").is_ok_and(|files| !files.is_empty())
        });
    }
}
