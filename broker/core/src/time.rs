//! Log time. Nothing in this crate reads a clock.

use serde::{Deserialize, Serialize};

/// Milliseconds since the Unix epoch, UTC, as the leader stamped them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

/// A length of time in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

impl Timestamp {
    /// Later by `span`; stops at the end of time instead of wrapping.
    #[must_use]
    pub fn after(self, span: Millis) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// How long after `earlier` this is; zero if it is not later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

impl Millis {
    /// From whole seconds.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1_000))
    }

    /// From whole minutes.
    #[must_use]
    pub const fn from_mins(minutes: u64) -> Self {
        Self::from_secs(minutes.saturating_mul(60))
    }

    /// From whole hours.
    #[must_use]
    pub const fn from_hours(hours: u64) -> Self {
        Self::from_mins(hours.saturating_mul(60))
    }
}
