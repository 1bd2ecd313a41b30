//! Reading a directory of policy files. The only part of this crate that touches the disk.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::bundle::SourceFile;
use crate::limits::{MAX_BUNDLE_BYTES, MAX_FILE_BYTES, MAX_FILES, MAX_FOLDER_DEPTH};
use crate::place::to_u32;
use crate::problem::{Problem, ProblemCode};

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

/// The files of a directory as far as they can be checked.
#[derive(Debug)]
pub struct Scan {
    /// All files, sorted by path. Bytes that are no text are replaced by U+FFFD.
    pub files: Vec<SourceFile>,
    /// Files with such bytes, and where.
    pub problems: Vec<Problem>,
}

/// Reads a directory as [`read_directory`] does, but goes on after files that are not text, so that a check can list
/// everything at once.
///
/// # Errors
/// [`ReadError`], naming the path.
pub fn scan_directory(path: &Path) -> Result<Scan, ReadError> {
    let mut reader = Reader::read(path)?;
    reader.problems.sort();
    Ok(Scan { files: reader.files, problems: reader.problems })
}

/// Reads all `*.yaml` and `*.yml` files below a directory, sorted by path; a single file may be named too.
///
/// Names that begin with `.` are passed over (`.git`, and `..data` of a mounted ConfigMap). A link to a file is
/// followed if it stays within the directory, as the files of a mounted ConfigMap do.
///
/// # Errors
/// [`ReadError`], naming the path.
pub fn read_directory(path: &Path) -> Result<Vec<SourceFile>, ReadError> {
    let reader = Reader::read(path)?;
    match reader.not_text.into_iter().min() {
        Some(path) => Err(ReadError::NotText { path }),
        None => Ok(reader.files),
    }
}

struct Reader {
    root: PathBuf,
    files: Vec<SourceFile>,
    /// Files that are not text, on disk and as problems.
    not_text: Vec<PathBuf>,
    problems: Vec<Problem>,
    bytes: usize,
}

impl Reader {
    fn read(path: &Path) -> Result<Self, ReadError> {
        let root = path.canonicalize().map_err(|source| ReadError::Io { path: path.to_owned(), source })?;
        let mut reader =
            Self { root: root.clone(), files: Vec::new(), not_text: Vec::new(), problems: Vec::new(), bytes: 0 };
        if root.is_file() {
            let name = root
                .file_name()
                .and_then(|name| name.to_str())
                .ok_or_else(|| ReadError::NotText { path: root.clone() })?;
            reader.file(&root, name.to_owned())?;
        } else {
            reader.folder(&root, "", 0)?;
        }
        if reader.files.is_empty() {
            return Err(ReadError::Empty { path: path.to_owned() });
        }
        reader.files.sort();
        Ok(reader)
    }

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
        let text = String::from_utf8(bytes).unwrap_or_else(|error| {
            let good = error.utf8_error().valid_up_to();
            let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
            self.not_text.push(path.to_owned());
            self.problems.push(not_text(&shown, &text, good));
            text
        });
        self.files.push(SourceFile { path: shown, text });
        Ok(())
    }
}

/// A file whose first `good` bytes are text and the next is not.
fn not_text(file: &str, lossy: &str, good: usize) -> Problem {
    let before = lossy.get(..good).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
    Problem::in_text(
        file,
        lossy,
        (to_u32(line), to_u32(column)),
        ProblemCode::NotText,
        "the file is not UTF-8 text from here on".to_owned(),
        "save it as UTF-8",
    )
}
