//! Why an object was not written.

use comity_agent_kubernetes::api::CallError;

/// Why work on an object stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WriteError {
    /// The object changed or is gone since it was read; its watch brings the next copy.
    Outdated(String),
    /// Anything else: worked on again after a pause.
    Failed(String),
}

impl WriteError {
    /// The error of a call that writes `what`.
    pub(super) fn of(what: &str, error: &CallError) -> Self {
        let text = format!("{what} cannot be written: {error}");
        match error {
            CallError::Status(status) if matches!(status.code, 404 | 409) => Self::Outdated(text),
            _ => Self::Failed(text),
        }
    }
}
