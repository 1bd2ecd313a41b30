//! Why a repository cannot be read.

use comity_types::{printable, redact_secrets};

/// Characters of what a server says.
const MAX_SAID_CHARS: usize = 200;

/// Why a repository cannot be read, and what to do about it. Names no credentials.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct PullError {
    /// One sentence.
    pub(crate) reason: String,
    /// How to fix the cause.
    pub(crate) remedy: &'static str,
}

impl PullError {
    pub(crate) fn new(reason: impl Into<String>, remedy: &'static str) -> Self {
        Self { reason: reason.into(), remedy }
    }

    /// With the text of an error or of a server, which must not spoil a terminal or show a secret.
    pub(crate) fn saying(what: &str, said: &dyn std::fmt::Display, remedy: &'static str) -> Self {
        let said: String = said.to_string().chars().take(MAX_SAID_CHARS).collect();
        Self::new(format!("{what}: {}", redact_secrets(&printable(said.trim()))), remedy)
    }
}
