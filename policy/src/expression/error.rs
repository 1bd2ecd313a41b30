//! An error in an expression, positioned within its text.

use crate::problem::ProblemCode;

/// An error in an expression.
#[derive(Debug)]
pub(crate) struct ExpressionError {
    /// Offset in the expression, in characters from 0.
    pub(crate) at: usize,
    /// Characters to underline.
    pub(crate) width: usize,
    pub(crate) code: ProblemCode,
    pub(crate) message: String,
    pub(crate) remedy: String,
}

impl ExpressionError {
    /// An error of the whole expression; points at its start.
    pub(super) fn whole(code: ProblemCode, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { at: 0, width: 1, code, message: message.into(), remedy: remedy.into() }
    }
}
