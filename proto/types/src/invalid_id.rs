//! The error for a malformed id.

use crate::printable::printable_line;

/// Characters of a refused value that an error repeats.
const MAX_SHOWN: usize = 80;

/// A text is not a valid id of its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} \"{value}\" {reason}; {remedy}")]
pub struct InvalidId {
    /// Path of the field at fault, as in "spec.tenant".
    pub field: String,
    /// The refused text, shortened.
    pub value: String,
    /// Reason, as in "is not a tenant id".
    pub reason: &'static str,
    /// How to write such an id.
    pub remedy: &'static str,
}

impl InvalidId {
    pub(crate) fn new(field: &str, value: &str, reason: &'static str, remedy: &'static str) -> Self {
        Self { field: field.to_owned(), value: shorten(value), reason, remedy }
    }
}

/// At most 80 characters of `text` as one printable line; an ellipsis stands for the rest.
#[must_use]
pub fn shorten(text: &str) -> String {
    let line: String = text.chars().take(MAX_SHOWN + 1).collect();
    let line = printable_line(&line);
    match line.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_value_is_one_short_printable_line() {
        assert_eq!(shorten("two\nlines"), "two lines");
        assert_eq!(shorten(&"é".repeat(80)), "é".repeat(80));
        assert_eq!(shorten(&"é".repeat(81)), "é".repeat(80) + "…");
        let escapes = shorten(&"\u{1b}".repeat(80));
        assert!(escapes.starts_with("\\u{1b}\\u{1b}") && escapes.chars().count() == 81, "{escapes}");
    }
}
