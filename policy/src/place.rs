//! Places in source files, and the collector that turns a place into a [`Problem`] with its snippet.

use crate::bundle::SourceFile;
use crate::limits::MAX_PROBLEMS;
use crate::problem::{Problem, ProblemCode};

/// Characters of a source line that a snippet shows.
const SNIPPET_CHARS: usize = 120;

/// A place in one file of the bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Index of the file in the bundle.
    pub(crate) file: usize,
    /// Line, from 1.
    pub(crate) line: u32,
    /// Column in characters, from 1.
    pub(crate) column: u32,
    /// Characters to underline.
    pub(crate) width: u32,
}

/// Collects problems; never stops at the first.
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

    /// Whether so many problems were found that looking for more is of no use.
    pub(crate) fn is_full(&self) -> bool {
        self.found.len() >= MAX_PROBLEMS
    }

    /// Whether anything was found.
    pub(crate) fn any(&self) -> bool {
        !self.found.is_empty()
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
        let (snippet, caret, room) = snippet(text, place.line, place.column);
        self.found.push(Problem {
            file: path.to_owned(),
            line: place.line,
            column: place.column,
            code,
            message: message.into(),
            remedy: remedy.into(),
            snippet,
            caret,
            width: place.width.clamp(1, room.max(1)),
        });
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
            message: message.into(),
            remedy: remedy.into(),
            snippet: String::new(),
            caret: 0,
            width: 1,
        });
    }

    /// All problems, by file, line and column, each once.
    pub(crate) fn into_sorted(mut self) -> Vec<Problem> {
        self.found.sort();
        self.found.dedup();
        self.found
    }
}

/// The line for display, the caret in it, and the characters left after the caret.
pub(crate) fn snippet(text: &str, line: u32, column: u32) -> (String, u32, u32) {
    let Some(source) = (line as usize).checked_sub(1).and_then(|index| text.lines().nth(index)) else {
        return (String::new(), 0, 1);
    };
    let column = (column as usize).saturating_sub(1);
    let skipped = if column > SNIPPET_CHARS * 2 / 3 { column - SNIPPET_CHARS / 2 } else { 0 };
    let shown: String = source
        .chars()
        .skip(skipped)
        .take(SNIPPET_CHARS)
        // A tab or another control character would move the caret, or the terminal.
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let length = shown.chars().count();
    let caret = column.saturating_sub(skipped).min(length);
    let prefix = if skipped > 0 { "…" } else { "" };
    let caret_shown = caret + prefix.chars().count();
    (format!("{prefix}{}", shown.trim_end()), to_u32(caret_shown), to_u32(length.saturating_sub(caret)))
}

/// Narrows a position; files are at most 1 MiB, so nothing is lost.
pub(crate) fn to_u32(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
