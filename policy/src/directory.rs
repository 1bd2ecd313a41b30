//! Reads a directory of policy files. No other part of this crate touches the disk.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::limits::{MAX_BUNDLE_BYTES, MAX_FILE_BYTES, MAX_FILES, MAX_FOLDER_DEPTH};
use crate::problem::{Place, Problem, ProblemCode, to_u32};
use crate::source::SourceFile;

/// Why a policy directory cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A file system error.
    #[error("cannot read {path}: {source}", path = .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// A link to a folder, or to a file outside the directory.
    #[error(
        "{path} is a link out of the policy directory or to a folder; replace it by the files",
        path = .path.display()
    )]
    Link {
        /// The link.
        path: PathBuf,
    },
    /// A file or a path that is not UTF-8.
    #[error("{path} is not UTF-8 text; save it as UTF-8", path = .path.display())]
    NotText {
        /// The file.
        path: PathBuf,
    },
    /// The directory exceeds a bound.
    #[error("{path}: more than {limit} {unit}; is this the right directory?", path = .path.display())]
    TooMuch {
        /// The file or folder that exceeds it.
        path: PathBuf,
        /// The bound.
        limit: usize,
        /// The counted items.
        unit: &'static str,
    },
    /// A directory without tests.
    #[error(
        "{path} has no *.test.yaml file; write one beside the policy files: docs/policy.md shows how",
        path = .path.display()
    )]
    NoTests {
        /// The directory.
        path: PathBuf,
    },
    /// A directory without policy files.
    #[error(
        "{path} has no *.yaml or *.yml file; name the directory that has the Federation document",
        path = .path.display()
    )]
    Empty {
        /// The directory.
        path: PathBuf,
    },
}

/// The files of a directory, including files that are not text.
#[derive(Debug)]
pub struct Scan {
    /// All files, sorted by path. U+FFFD replaces bytes that are not UTF-8.
    pub files: Vec<SourceFile>,
    /// The first such byte of each file.
    pub problems: Vec<Problem>,
}

/// Reads a directory like [`read_directory`], but continues after files that are not text, so that a check can list all
/// problems at once.
///
/// # Errors
/// [`ReadError`], naming the path.
pub fn scan_directory(path: &Path) -> Result<Scan, ReadError> {
    let mut reader = DirectoryReader::read(path, Wanted::Policy)?;
    reader.problems.sort();
    Ok(Scan { files: reader.files, problems: reader.problems })
}

/// Reads all `*.yaml` and `*.yml` files below a directory, sorted by path, but for [tests](read_test_files). `path` may
/// also be a single file.
///
/// Skips names that begin with `.` (`.git`, and `..data` of a mounted ConfigMap). Follows a link to a file within the
/// directory, as a mounted ConfigMap has them.
///
/// # Errors
/// [`ReadError`], naming the path.
pub fn read_directory(path: &Path) -> Result<Vec<SourceFile>, ReadError> {
    DirectoryReader::read(path, Wanted::Policy)?.text_files()
}

/// Reads all `*.test.yaml` and `*.test.yml` files below a directory, sorted by path. They are no part of its bundle.
///
/// # Errors
/// [`ReadError`], naming the path.
pub fn read_test_files(path: &Path) -> Result<Vec<SourceFile>, ReadError> {
    DirectoryReader::read(path, Wanted::Tests)?.text_files()
}

/// The files that a reader collects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// Those of the bundle.
    Policy,
    /// Those with tests.
    Tests,
}

impl Wanted {
    fn takes(self, name: &str) -> bool {
        match self {
            Self::Policy => is_policy_file(name),
            Self::Tests => is_test_file(name),
        }
    }
}

/// Whether a file of this name belongs to a bundle: YAML that is no test.
#[must_use]
pub fn is_policy_file(name: &str) -> bool {
    (name.ends_with(".yaml") || name.ends_with(".yml")) && !is_test_file(name)
}

fn is_test_file(name: &str) -> bool {
    name.ends_with(".test.yaml") || name.ends_with(".test.yml")
}

struct DirectoryReader {
    wanted: Wanted,
    root: PathBuf,
    files: Vec<SourceFile>,
    /// Paths on disk of the files that are not text.
    not_text: Vec<PathBuf>,
    problems: Vec<Problem>,
    total_bytes: usize,
}

impl DirectoryReader {
    fn read(path: &Path, wanted: Wanted) -> Result<Self, ReadError> {
        let root = path.canonicalize().map_err(|source| ReadError::Io { path: path.to_owned(), source })?;
        let mut reader = Self {
            wanted,
            root: root.clone(),
            files: Vec::new(),
            not_text: Vec::new(),
            problems: Vec::new(),
            total_bytes: 0,
        };
        if root.is_file() {
            let name = root
                .file_name()
                .and_then(|name| name.to_str())
                .ok_or_else(|| ReadError::NotText { path: root.clone() })?;
            reader.read_file(&root, name.to_owned())?;
        } else {
            reader.read_folder(&root, "", 0)?;
        }
        if reader.files.is_empty() {
            let path = path.to_owned();
            return Err(match wanted {
                Wanted::Policy => ReadError::Empty { path },
                Wanted::Tests => ReadError::NoTests { path },
            });
        }
        reader.files.sort();
        Ok(reader)
    }

    /// The files, unless one is not text.
    fn text_files(self) -> Result<Vec<SourceFile>, ReadError> {
        match self.not_text.into_iter().min() {
            Some(path) => Err(ReadError::NotText { path }),
            None => Ok(self.files),
        }
    }

    fn read_folder(&mut self, folder: &Path, prefix: &str, depth: usize) -> Result<(), ReadError> {
        if depth > MAX_FOLDER_DEPTH {
            return Err(ReadError::TooMuch {
                path: folder.to_owned(),
                limit: MAX_FOLDER_DEPTH,
                unit: "nested folders",
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
            let is_wanted = self.wanted.takes(&name);
            let bundle_path = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
            let kind = entry.file_type().map_err(|source| ReadError::Io { path: path.clone(), source })?;
            if kind.is_dir() {
                self.read_folder(&path, &bundle_path, depth + 1)?;
            } else if kind.is_file() && is_wanted {
                self.read_file(&path, bundle_path)?;
            } else if kind.is_symlink() {
                let target = path.canonicalize().map_err(|source| ReadError::Io { path: path.clone(), source })?;
                // Skipping a folder silently would leave its policy out of the bundle.
                if target.is_dir() || (is_wanted && !target.starts_with(&self.root)) {
                    return Err(ReadError::Link { path });
                }
                if is_wanted {
                    self.read_file(&target, bundle_path)?;
                }
            }
        }
        Ok(())
    }

    fn read_file(&mut self, path: &Path, bundle_path: String) -> Result<(), ReadError> {
        if self.files.len() == MAX_FILES {
            return Err(ReadError::TooMuch { path: self.root.clone(), limit: MAX_FILES, unit: "files" });
        }
        let failed = |source| ReadError::Io { path: path.to_owned(), source };
        let mut bytes = Vec::new();
        let file = fs::File::open(path).map_err(failed)?;
        // One byte above the bound reveals a file that is too large, even one that is growing.
        file.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() > MAX_FILE_BYTES {
            return Err(ReadError::TooMuch { path: path.to_owned(), limit: MAX_FILE_BYTES, unit: "bytes in one file" });
        }
        self.total_bytes += bytes.len();
        if self.total_bytes > MAX_BUNDLE_BYTES {
            return Err(ReadError::TooMuch {
                path: self.root.clone(),
                limit: MAX_BUNDLE_BYTES,
                unit: "bytes in all files",
            });
        }
        let text = String::from_utf8(bytes).unwrap_or_else(|error| {
            let valid_bytes = error.utf8_error().valid_up_to();
            let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
            self.not_text.push(path.to_owned());
            self.problems.push(not_text(&bundle_path, &text, valid_bytes));
            text
        });
        self.files.push(SourceFile { path: bundle_path, text });
        Ok(())
    }
}

/// The problem of a file that stops being UTF-8 after `valid_bytes`. `lossy` is its text with U+FFFD.
fn not_text(file: &str, lossy: &str, valid_bytes: usize) -> Problem {
    let before = lossy.get(..valid_bytes).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
    Problem::in_text(
        file,
        lossy,
        Place { file: 0, line: to_u32(line), column: to_u32(column), width: 1 },
        ProblemCode::NotText,
        "the file is not UTF-8 text from here on",
        "save it as UTF-8",
    )
}
