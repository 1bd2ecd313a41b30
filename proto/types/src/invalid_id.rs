//! The error for a malformed id.

/// Characters of a refused value that an error repeats.
const MAX_SHOWN: usize = 80;

/// A text is not a valid id of its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {value:?} {reason}; {remedy}")]
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

/// At most 80 characters of `text`; an ellipsis stands for the rest.
#[must_use]
pub fn shorten(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
