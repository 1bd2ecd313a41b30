//! Reading a directory of policy files. The only part of this crate that touches the disk.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::bundle::SourceFile;
use crate::limits::{MAX_BUNDLE_BYTES, MAX_FILE_BYTES, MAX_FILES, MAX_FOLDER_DEPTH};

/// Why a policy directory cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file system refused.
    #[error("cannot read {path}: {source}", path = .path.display())]
    Io {
        /// What was read.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A link that leaves the directory, or that leads to a folder.
    #[error("{path} is a link out of the policy directory or to a folder; put the files themselves there", path = .path.display())]
    Link {
        /// The link.
        path: PathBuf,
    },
    /// A file that is not UTF-8, or a path that is not.
    #[error("{path} is not UTF-8 text; save it as UTF-8", path = .path.display())]
    NotText {
        /// The file.
        path: PathBuf,
    },
    /// A bound is exceeded.
    #[error("{path}: more than {limit} {what}; is this the right directory?", path = .path.display())]
    TooMuch {
        /// Where it is exceeded.
        path: PathBuf,
        /// The bound.
        limit: usize,
        /// What is bounded.
        what: &'static str,
    },
    /// A directory without a single policy file.
    #[error("{path} holds no *.yaml or *.yml file; name the directory that has the Federation document", path = .path.display())]
    Empty {
        /// The directory.
        path: PathBuf,
    },
}

/// Reads all `*.yaml` and `*.yml` files below a directory, sorted by path; a single file may be named too.
///
/// Names that begin with `.` are passed over (`.git`, and `..data` of a mounted ConfigMap). A link to a file is followed if
/// it stays within the directory, as the files of a mounted ConfigMap do.
///
/// # Errors
/// [`ReadError`], naming the path.
pub fn read_directory(path: &Path) -> Result<Vec<SourceFile>, ReadError> {
    let root = path.canonicalize().map_err(|source| ReadError::Io { path: path.to_owned(), source })?;
    let mut reader = Reader { root: root.clone(), files: Vec::new(), bytes: 0 };
    if root.is_file() {
        let name =
            root.file_name().and_then(|name| name.to_str()).ok_or_else(|| ReadError::NotText { path: root.clone() })?;
        reader.file(&root, name.to_owned())?;
    } else {
        reader.folder(&root, "", 0)?;
    }
    if reader.files.is_empty() {
        return Err(ReadError::Empty { path: path.to_owned() });
    }
    reader.files.sort();
    Ok(reader.files)
}

struct Reader {
    root: PathBuf,
    files: Vec<SourceFile>,
    bytes: usize,
}

impl Reader {
    fn folder(&mut self, folder: &Path, prefix: &str, depth: usize) -> Result<(), ReadError> {
        if depth > MAX_FOLDER_DEPTH {
            return Err(ReadError::TooMuch {
                path: folder.to_owned(),
                limit: MAX_FOLDER_DEPTH,
                what: "folders inside each other",
            });
        }
        let failed = |source| ReadError::Io { path: folder.to_owned(), source };
        for entry in fs::read_dir(folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let path = entry.path();
            let name = entry.file_name().into_string().map_err(|_| ReadError::NotText { path: path.clone() })?;
            if name.starts_with('.') {
                continue;
            }
            let is_policy = name.ends_with(".yaml") || name.ends_with(".yml");
            let shown = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
            let kind = entry.file_type().map_err(|source| ReadError::Io { path: path.clone(), source })?;
            if kind.is_dir() {
                self.folder(&path, &shown, depth + 1)?;
            } else if kind.is_file() && is_policy {
                self.file(&path, shown)?;
            } else if kind.is_symlink() {
                let target = path.canonicalize().map_err(|source| ReadError::Io { path: path.clone(), source })?;
                // A folder that is passed over in silence would be policy that is not in force.
                if target.is_dir() || (is_policy && !target.starts_with(&self.root)) {
                    return Err(ReadError::Link { path });
                }
                if is_policy {
                    self.file(&target, shown)?;
                }
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path, shown: String) -> Result<(), ReadError> {
        if self.files.len() == MAX_FILES {
            return Err(ReadError::TooMuch { path: self.root.clone(), limit: MAX_FILES, what: "files" });
        }
        let failed = |source| ReadError::Io { path: path.to_owned(), source };
        let mut bytes = Vec::new();
        let file = fs::File::open(path).map_err(failed)?;
        // One byte more than allowed tells a file that is too large from one that just fits, even while it grows.
        file.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() > MAX_FILE_BYTES {
            return Err(ReadError::TooMuch { path: path.to_owned(), limit: MAX_FILE_BYTES, what: "bytes in one file" });
        }
        self.bytes += bytes.len();
        if self.bytes > MAX_BUNDLE_BYTES {
            return Err(ReadError::TooMuch {
                path: self.root.clone(),
                limit: MAX_BUNDLE_BYTES,
                what: "bytes in all files",
            });
        }
        let text = String::from_utf8(bytes).map_err(|_| ReadError::NotText { path: path.to_owned() })?;
        self.files.push(SourceFile { path: shown, text });
        Ok(())
    }
}
