//! States of a request and their legal transitions.

use std::fmt;

use serde::{Deserialize, Serialize};

/// State of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequestState {
    /// Waits for capacity.
    Queued,
    /// Has a lease that has not ended.
    Placed,
    /// Its lease ended as planned.
    Completed,
    /// Its owner cancelled it.
    Cancelled,
    /// It cannot be served.
    Failed,
}

impl RequestState {
    /// The table of legal transitions.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        use RequestState::{Cancelled, Completed, Failed, Placed, Queued};
        matches!(
            (self, next),
            (Queued, Placed | Cancelled | Failed) | (Placed, Queued | Completed | Cancelled | Failed)
        )
    }

    /// Whether it can no longer change.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Cancelled | Self::Failed)
    }

    /// The text form, as in "queued".
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Placed => "placed",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for RequestState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
