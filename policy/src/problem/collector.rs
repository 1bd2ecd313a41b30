//! Collects the problems of a bundle and gives each one its snippet.

use comity_types::redact_secrets;

use super::place::Place;
use super::{Problem, ProblemCode};
use crate::limits::MAX_PROBLEMS;
use crate::source::SourceFile;

/// Collects up to [`MAX_PROBLEMS`] problems; drops the rest.
pub(crate) struct Problems<'s> {
    files: &'s [SourceFile],
    found: Vec<Problem>,
}

impl<'s> Problems<'s> {
    pub(crate) fn new(files: &'s [SourceFile]) -> Self {
        Self { files, found: Vec::new() }
    }

    pub(crate) fn files(&self) -> &'s [SourceFile] {
        self.files
    }

    /// Whether the collector drops further problems.
    pub(crate) fn is_full(&self) -> bool {
        self.found.len() >= MAX_PROBLEMS
    }

    pub(crate) fn has(&self, code: ProblemCode) -> bool {
        self.found.iter().any(|problem| problem.code == code)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Adds a problem at a place.
    pub(crate) fn at(
        &mut self,
        place: Place,
        code: ProblemCode,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        if self.is_full() {
            return;
        }
        let (path, text) = self.files.get(place.file).map_or(("", ""), |file| (file.path.as_str(), file.text.as_str()));
        self.found.push(Problem::in_text(path, text, place, code, &message.into(), &remedy.into()));
    }

    /// Adds a problem of a whole file (by its path) or, with an empty path, of the bundle.
    pub(crate) fn whole(
        &mut self,
        file: &str,
        code: ProblemCode,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        if self.is_full() {
            return;
        }
        self.found.push(Problem {
            file: file.to_owned(),
            line: 0,
            column: 0,
            code,
            message: redact_secrets(&message.into()),
            remedy: redact_secrets(&remedy.into()),
            snippet: String::new(),
            caret: 0,
            width: 1,
        });
    }

    /// All problems by file, line and column, without duplicates.
    pub(crate) fn into_sorted(mut self) -> Vec<Problem> {
        self.found.sort();
        self.found.dedup();
        self.found
    }
}
