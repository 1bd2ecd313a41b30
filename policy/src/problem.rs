//! What is wrong with a policy document, where, and what to do about it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::place::snippet;

/// The stable code of a [`Problem`], for scripts and for the documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProblemCode {
    /// The file is not UTF-8 text.
    NotText,
    /// The text is not YAML.
    YamlSyntax,
    /// YAML that policy does not use: anchors, aliases, tags, directives, keys that are not text.
    UnsupportedYaml,
    /// A limit of this crate is exceeded: file size, count, depth, length.
    TooLarge,
    /// `apiVersion` is missing or is not `policy.comity.dev/v1`.
    UnknownApiVersion,
    /// `kind` is missing or is no kind of policy.
    UnknownKind,
    /// A field that its kind does not have.
    UnknownField,
    /// The same key twice in one mapping.
    DuplicateField,
    /// A field that its kind needs.
    MissingField,
    /// A list where text is expected, text where a mapping is expected, and the like.
    WrongType,
    /// A name or id that breaks the rules for names.
    InvalidName,
    /// A user id that is not `spiffe://<trust domain>/user/<name>`.
    InvalidUserId,
    /// A signing key that is not `ed25519:<base64 of 32 bytes>`.
    InvalidKey,
    /// A duration without a unit, negative, or too long.
    InvalidDuration,
    /// A number that is negative, out of range, or not a number.
    InvalidQuantity,
    /// A date that is not RFC 3339.
    InvalidDate,
    /// One of a few words is expected, another was found.
    InvalidValue,
    /// Two dates, or two limits, that exclude each other.
    Contradiction,
    /// Two documents of one kind with the same name, or two entries for the same thing.
    DuplicateName,
    /// A name that no document declares.
    UnknownReference,
    /// A CEL selector that cannot be parsed.
    CelSyntax,
    /// A CEL selector that names an attribute, variable or function that does not exist.
    CelUnknownName,
    /// A CEL selector that compares or combines values of types that do not go together.
    CelType,
    /// A CEL selector that is longer, deeper or costlier than allowed.
    CelTooCostly,
    /// The bundle has no Federation document.
    NoFederation,
    /// A warning: work that is being reclaimed has no time to save itself.
    NoNotice,
    /// A warning: a notice is longer than any lease.
    NoticeTooLong,
    /// A warning: two priority classes have one value.
    EqualPriorities,
    /// A warning: a limit that another one always comes before.
    LimitOfNoUse,
    /// A warning: a class is lent that no device can be of.
    ClassWithoutDevices,
    /// A warning: an agreement is shorter than a lease.
    AgreementTooShort,
    /// A warning: no rule lets a tenant borrow anything.
    BorrowsNothing,
}

impl ProblemCode {
    /// The code as it is written in output: kebab case.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotText => "not-text",
            Self::YamlSyntax => "yaml-syntax",
            Self::UnsupportedYaml => "unsupported-yaml",
            Self::TooLarge => "too-large",
            Self::UnknownApiVersion => "unknown-api-version",
            Self::UnknownKind => "unknown-kind",
            Self::UnknownField => "unknown-field",
            Self::DuplicateField => "duplicate-field",
            Self::MissingField => "missing-field",
            Self::WrongType => "wrong-type",
            Self::InvalidName => "invalid-name",
            Self::InvalidUserId => "invalid-user-id",
            Self::InvalidKey => "invalid-key",
            Self::InvalidDuration => "invalid-duration",
            Self::InvalidQuantity => "invalid-quantity",
            Self::InvalidDate => "invalid-date",
            Self::InvalidValue => "invalid-value",
            Self::Contradiction => "contradiction",
            Self::DuplicateName => "duplicate-name",
            Self::UnknownReference => "unknown-reference",
            Self::CelSyntax => "cel-syntax",
            Self::CelUnknownName => "cel-unknown-name",
            Self::CelType => "cel-type",
            Self::CelTooCostly => "cel-too-costly",
            Self::NoFederation => "no-federation",
            Self::NoNotice => "no-notice",
            Self::NoticeTooLong => "notice-too-long",
            Self::EqualPriorities => "equal-priorities",
            Self::LimitOfNoUse => "limit-of-no-use",
            Self::ClassWithoutDevices => "class-without-devices",
            Self::AgreementTooShort => "agreement-too-short",
            Self::BorrowsNothing => "borrows-nothing",
        }
    }

    /// Whether it is a warning: the bundle compiles all the same.
    #[must_use]
    pub const fn is_warning(self) -> bool {
        matches!(
            self,
            Self::NoNotice
                | Self::NoticeTooLong
                | Self::EqualPriorities
                | Self::LimitOfNoUse
                | Self::ClassWithoutDevices
                | Self::AgreementTooShort
                | Self::BorrowsNothing
        )
    }
}

impl fmt::Display for ProblemCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One thing wrong with a bundle, or surely not meant. [`Display`](fmt::Display) renders it in the way of rustc, with
/// the line and a caret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// The path of the file within the bundle; empty if the problem is of the bundle as a whole.
    pub file: String,
    /// The line, from 1; 0 if the problem has no place.
    pub line: u32,
    /// The column in characters, from 1; 0 if the problem has no place.
    pub column: u32,
    /// The stable code.
    pub code: ProblemCode,
    /// What is wrong, naming field and value.
    pub message: String,
    /// What to do about it; may be empty.
    pub remedy: String,
    /// The line of the source, cut to a readable width; empty if the problem has no place.
    pub snippet: String,
    /// Where the caret goes in the snippet, in characters from 0.
    pub caret: u32,
    /// How many characters are underlined, at least 1.
    pub width: u32,
}

impl Problem {
    /// A problem of one character of a file that no bundle holds.
    pub(crate) fn in_text(
        file: &str,
        text: &str,
        (line, column): (u32, u32),
        code: ProblemCode,
        message: String,
        remedy: &str,
    ) -> Self {
        let (snippet, caret, _) = snippet(text, line, column);
        Self { file: file.to_owned(), line, column, code, message, remedy: remedy.to_owned(), snippet, caret, width: 1 }
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

/// Renders all problems for people, one after the other, with a count at the end.
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
    text.push_str(&format!("{} in {}\n", plural(problems.len(), "problem"), plural(files.len(), "file")));
    text
}
