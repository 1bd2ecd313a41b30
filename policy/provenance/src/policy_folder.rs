//! The folder of a repository that has the policy, and its files at a commit.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use comity_policy::SourceFile;
use comity_policy::is_policy_file;
use comity_policy::limits::{MAX_BUNDLE_BYTES, MAX_FILE_BYTES, MAX_FILES, MAX_FOLDER_DEPTH};
use serde::{Deserialize, Serialize};

use crate::limits::MAX_TREE_BYTES;
use crate::object_id::ObjectId;
use crate::object_kind::ObjectKind;
use crate::object_store::{ObjectStore, StoreError, read};

/// Bytes of the folder's path.
const MAX_FOLDER_BYTES: usize = 255;

/// A folder within a repository; empty for the whole repository.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct PolicyFolder(String);

/// Text that is no folder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no folder of a repository: write it as `policy` or `a/b`, without `..` and without a leading `/`")]
pub struct InvalidFolder(pub String);

impl PolicyFolder {
    /// The path, without slashes around it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PolicyFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "." } else { &self.0 })
    }
}

impl FromStr for PolicyFolder {
    type Err = InvalidFolder;

    fn from_str(text: &str) -> Result<Self, InvalidFolder> {
        let invalid = || InvalidFolder(text.chars().take(MAX_FOLDER_BYTES).collect());
        let path = text.strip_suffix('/').unwrap_or(text);
        if path.is_empty() || path == "." {
            return if text.starts_with('/') { Err(invalid()) } else { Ok(Self::default()) };
        }
        let is_name = |part: &str| {
            !part.is_empty() && part != "." && part != ".." && part.chars().all(|c| !c.is_control() && c != '\\')
        };
        if path.len() > MAX_FOLDER_BYTES || !path.split('/').all(is_name) {
            return Err(invalid());
        }
        Ok(Self(path.to_owned()))
    }
}

impl TryFrom<String> for PolicyFolder {
    type Error = InvalidFolder;

    fn try_from(text: String) -> Result<Self, InvalidFolder> {
        text.parse()
    }
}

impl From<PolicyFolder> for String {
    fn from(folder: PolicyFolder) -> Self {
        folder.0
    }
}

/// Why the files of a commit are no bundle, or the files.
pub(crate) type Files = Result<Vec<SourceFile>, String>;

/// One entry of a tree.
struct Entry<'t> {
    mode: &'t [u8],
    name: &'t [u8],
    id: ObjectId,
}

const MODE_FOLDER: &[u8] = b"40000";
const MODE_LINK: &[u8] = b"120000";
const MODE_SUBMODULE: &[u8] = b"160000";

/// The tree of the folder at a commit; `None` if the commit lacks it.
pub(crate) fn folder_tree(
    store: &dyn ObjectStore,
    root: ObjectId,
    folder: &PolicyFolder,
) -> Result<Option<ObjectId>, StoreError> {
    let mut tree = root;
    for part in folder.0.split('/').filter(|part| !part.is_empty()) {
        let content = read(store, tree, ObjectKind::Tree, MAX_TREE_BYTES)?;
        let entries = entries(&content, tree)?;
        let Some(entry) = entries.iter().find(|entry| entry.name == part.as_bytes() && entry.mode == MODE_FOLDER)
        else {
            return Ok(None);
        };
        tree = entry.id;
    }
    Ok(Some(tree))
}

/// The policy files below a tree, as `comity policy check` would read them from a directory.
pub(crate) fn policy_files(store: &dyn ObjectStore, tree: ObjectId) -> Result<Files, StoreError> {
    let mut files = Vec::new();
    let mut bytes = 0;
    let mut open = vec![(tree, String::new(), 0)];
    while let Some((tree, prefix, depth)) = open.pop() {
        if depth > MAX_FOLDER_DEPTH {
            return Ok(Err(format!("`{prefix}` is nested more than {MAX_FOLDER_DEPTH} folders deep")));
        }
        let content = read(store, tree, ObjectKind::Tree, MAX_TREE_BYTES)?;
        for entry in entries(&content, tree)? {
            if entry.name.starts_with(b".") {
                continue;
            }
            let Ok(name) = std::str::from_utf8(entry.name) else {
                return Ok(Err(format!("a name in `{prefix}` is not UTF-8; rename the file")));
            };
            let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
            let is_wanted = is_policy_file(name);
            match entry.mode {
                MODE_FOLDER => open.push((entry.id, path, depth + 1)),
                // Skipping a folder silently would leave its policy out of the bundle.
                MODE_SUBMODULE => return Ok(Err(format!("`{path}` is a submodule; commit its files instead"))),
                MODE_LINK if is_wanted => return Ok(Err(format!("`{path}` is a link; commit the file instead"))),
                _ if !is_wanted => {}
                _ if files.len() == MAX_FILES => return Ok(Err(format!("there are more than {MAX_FILES} files"))),
                _ => {
                    let content = match read(store, entry.id, ObjectKind::Blob, MAX_FILE_BYTES) {
                        Err(StoreError::TooLarge { .. }) => {
                            return Ok(Err(format!("`{path}` has more than {MAX_FILE_BYTES} bytes; split it")));
                        }
                        content => content?,
                    };
                    bytes += content.len();
                    if bytes > MAX_BUNDLE_BYTES {
                        return Ok(Err(format!("the policy has more than {MAX_BUNDLE_BYTES} bytes")));
                    }
                    let Ok(text) = String::from_utf8(content) else {
                        return Ok(Err(format!("`{path}` is not UTF-8 text; save it as UTF-8")));
                    };
                    files.push(SourceFile { path, text });
                }
            }
        }
    }
    if files.is_empty() {
        return Ok(Err("the folder has no *.yaml or *.yml file".to_owned()));
    }
    files.sort();
    Ok(Ok(files))
}

/// The entries of a tree: `MODE NAME\0` and 20 bytes each.
fn entries(content: &[u8], tree: ObjectId) -> Result<Vec<Entry<'_>>, StoreError> {
    parse_entries(content).ok_or_else(|| StoreError::Corrupt {
        kind: ObjectKind::Tree,
        id: tree,
        reason: "its entries cannot be read".to_owned(),
    })
}

fn parse_entries(mut content: &[u8]) -> Option<Vec<Entry<'_>>> {
    let id_bytes = 20;
    let mut entries: Vec<Entry<'_>> = Vec::new();
    let mut names = BTreeSet::new();
    while !content.is_empty() {
        let blank = content.iter().position(|byte| *byte == b' ')?;
        let (mode, rest) = (&content[..blank], &content[blank + 1..]);
        let end = rest.iter().position(|byte| *byte == 0)?;
        let (name, rest) = (&rest[..end], &rest[end + 1..]);
        let (id, rest) = rest.split_at_checked(id_bytes)?;
        if name.is_empty() || name.contains(&b'/') || !names.insert(name) {
            return None;
        }
        entries.push(Entry { mode, name, id: ObjectId::from_bytes(id)? });
        content = rest;
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use comity_fuzz::fuzz;

    #[test]
    fn folders_stay_within_the_repository() {
        for (text, folder) in [("policy/", "policy"), ("a/b", "a/b"), ("", "."), (".", ".")] {
            assert_eq!(text.parse::<PolicyFolder>().map(|folder| folder.to_string()).as_deref(), Ok(folder));
        }
        for bad in ["/", "/etc", "../x", "a//b", "a/../b", "a\\b", "a\nb", &"x".repeat(300)] {
            assert!(bad.parse::<PolicyFolder>().is_err(), "{bad}");
        }
    }

    #[test]
    fn made_up_trees() {
        let mut tree = b"100644 a.yaml\0".to_vec();
        tree.extend([7; 20]);
        let mut two = tree.clone();
        two.extend(b"40000 sub\0");
        two.extend([8; 20]);
        assert!(parse_entries(&[tree.clone(), tree.clone()].concat()).is_none(), "a name twice");
        fuzz!("tree_objects", vec![tree, two], |bytes: &[u8]| parse_entries(bytes).is_some());
    }
}
