//! An error in a selector, positioned within its text.

use crate::problem::ProblemCode;

/// An error in a selector.
#[derive(Debug)]
pub(crate) struct SelectorError {
    /// Offset in the selector, in characters from 0.
    pub(crate) at: usize,
    /// Characters to underline.
    pub(crate) width: usize,
    pub(crate) code: ProblemCode,
    pub(crate) message: String,
    pub(crate) remedy: String,
}

impl SelectorError {
    /// An error of the whole selector; points at its start.
    pub(super) fn whole(code: ProblemCode, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { at: 0, width: 1, code, message: message.into(), remedy: remedy.into() }
    }
}
