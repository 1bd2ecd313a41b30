//! Why work on a lease or a peering failed, and whether trying again can help.

/// Why work on a lease or peering failed. Never holds a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeliveryError {
    /// May go away by itself: retried with backoff until the lease's hold ends.
    #[error("cannot {operation}: {reason}")]
    Temporary {
        /// The operation, as in "create namespace comity-lease-7".
        operation: String,
        /// The cause.
        reason: String,
    },
    /// Retrying does not help: reported to the broker.
    #[error("{message}")]
    Permanent {
        /// Stable code, as in "quota-refused".
        code: &'static str,
        /// For people.
        message: String,
    },
}

impl DeliveryError {
    /// Makes a temporary error.
    pub fn temporary(operation: impl Into<String>, reason: impl ToString) -> Self {
        Self::Temporary { operation: operation.into(), reason: reason.to_string() }
    }

    /// Makes a permanent error.
    pub fn permanent(code: &'static str, message: impl Into<String>) -> Self {
        Self::Permanent { code, message: message.into() }
    }
}
