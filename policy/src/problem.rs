//! Problems of a policy bundle: position, message and remedy, rendered in the style of rustc.

use std::fmt;

use comity_types::redact_secrets;
use serde::{Deserialize, Serialize};

use crate::limits::MAX_PROBLEMS;

pub use code::ProblemCode;
pub(crate) use collector::Problems;
use excerpt::Snippet;
pub(crate) use excerpt::{shorten, shorten_to};
pub(crate) use place::{Place, to_u32};
pub use suggest::nearest;

mod code;
mod collector;
mod excerpt;
mod place;
pub(crate) mod suggest;

/// An error or a warning about a bundle. [`Display`](fmt::Display) renders it with the source line and a caret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// Path of the file within the bundle; empty if the problem concerns the whole bundle.
    pub file: String,
    /// Line, from 1; 0 if the problem has no position.
    pub line: u32,
    /// Column in characters, from 1; 0 if the problem has no position.
    pub column: u32,
    /// Stable code, for scripts.
    pub code: ProblemCode,
    /// The error, naming field and value.
    pub message: String,
    /// How to fix it; may be empty.
    pub remedy: String,
    /// Source line, cut to a readable width; empty if the problem has no position.
    pub snippet: String,
    /// Offset of the caret in `snippet`, in characters from 0.
    pub caret: u32,
    /// Underlined characters, at least 1.
    pub width: u32,
}

impl Problem {
    /// A problem in `text`, the content of `file`. Ignores the index `place.file`.
    pub(crate) fn in_text(
        file: &str,
        text: &str,
        place: Place,
        code: ProblemCode,
        message: &str,
        remedy: &str,
    ) -> Self {
        let snippet = match code {
            // Only a part of what is secret in the line may be recognised.
            ProblemCode::Secret => Snippet { line: "[redacted]".to_owned(), ..Snippet::default() },
            _ => excerpt::snippet(text, place.line, place.column),
        };
        Self {
            file: file.to_owned(),
            line: place.line,
            column: place.column,
            code,
            message: redact_secrets(message),
            remedy: redact_secrets(remedy),
            snippet: snippet.line,
            caret: snippet.caret,
            width: place.width.clamp(1, snippet.chars_after_caret.max(1)),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = if self.code.is_warning() { "warning" } else { "error" };
        write!(f, "{level}[{}]: {}", self.code, self.message)?;
        let number = self.line.to_string();
        let margin = " ".repeat(number.len());
        if self.line > 0 {
            write!(
                f,
                "\n{margin}--> {}:{}:{}\n{margin} |\n{number} | {}\n{margin} | {}{}",
                self.file,
                self.line,
                self.column,
                self.snippet,
                " ".repeat(self.caret as usize),
                "^".repeat(self.width.max(1) as usize),
            )?;
        } else if !self.file.is_empty() {
            write!(f, "\n{margin}--> {}", self.file)?;
        }
        if !self.remedy.is_empty() {
            write!(f, "\n{margin} = help: {}", self.remedy)?;
        }
        Ok(())
    }
}

/// Renders all problems, followed by their count.
#[must_use]
pub fn render_problems(problems: &[Problem]) -> String {
    let mut text = String::new();
    for problem in problems {
        text.push_str(&problem.to_string());
        text.push_str("\n\n");
    }
    let mut files: Vec<&str> = problems.iter().map(|problem| problem.file.as_str()).collect();
    files.sort_unstable();
    files.dedup();
    let plural = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
    let first = if problems.len() >= MAX_PROBLEMS { "the first " } else { "" };
    text.push_str(&format!("{first}{} in {}\n", plural(problems.len(), "problem"), plural(files.len(), "file")));
    text
}
