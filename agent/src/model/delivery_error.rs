//! Why work on a lease or a peering failed, and whether trying again can help.

/// Why a delivery could not be carried out. Never holds a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeliveryError {
    /// May go away by itself: tried again with growing pauses until the lease's hold ends.
    #[error("cannot {operation}: {reason}")]
    Temporary {
        /// What was tried, as in "create namespace comity-lease-7".
        operation: String,
        /// What went wrong.
        reason: String,
    },
    /// Trying again is of no use: reported to the broker.
    #[error("{message}")]
    Permanent {
        /// Stable code, as in "quota-refused".
        code: &'static str,
        /// For people.
        message: String,
    },
}

impl DeliveryError {
    /// An error that may go away.
    pub fn temporary(operation: impl Into<String>, reason: impl ToString) -> Self {
        Self::Temporary { operation: operation.into(), reason: reason.to_string() }
    }

    /// An error that will not.
    pub fn permanent(code: &'static str, message: impl Into<String>) -> Self {
        Self::Permanent { code, message: message.into() }
    }
}
