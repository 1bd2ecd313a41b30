//! Log time. Nothing in this crate reads a clock.

use serde::{Deserialize, Serialize};

/// Milliseconds since the Unix epoch, UTC, as stamped by the leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

/// A duration in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

impl Timestamp {
    /// This time plus `span`; saturates.
    #[must_use]
    pub fn after(self, span: Millis) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// This time minus `span`; saturates.
    #[must_use]
    pub fn before(self, span: Millis) -> Self {
        Self(self.0.saturating_sub(span.0))
    }

    /// This time plus `ms`, which may be negative; saturates.
    #[must_use]
    pub fn shifted(self, ms: i64) -> Self {
        Self(self.0.saturating_add_signed(ms))
    }

    /// Date and time for people, rounded up to the minute: "2026-11-22 18:40 UTC".
    #[must_use]
    pub fn to_minute(self) -> String {
        date_and_time(self.0.div_ceil(60_000).saturating_mul(60), "%F %H:%M UTC")
    }

    /// Date and time for people, rounded up to the second: "2026-11-22 18:40:00 UTC".
    #[must_use]
    pub fn to_second(self) -> String {
        date_and_time(self.0.div_ceil(1_000), "%F %T UTC")
    }

    /// Time elapsed since `earlier`; zero if this is not later.
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

/// Formats a Unix time in seconds. Times after the year 9999 show as its end.
fn date_and_time(seconds: u64, format: &str) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    time.unwrap_or(jiff::Timestamp::MAX).strftime(format).to_string()
}

#[cfg(test)]
mod tests {
    use super::Timestamp;

    #[test]
    fn dates_match_the_calendar() {
        for (ms, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_400_000, "2000-02-29 00:00 UTC"),
            (1_795_372_799_001, "2026-11-22 18:40 UTC"),
            (4_107_542_399_999, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(Timestamp(ms).to_minute(), text);
        }
        assert_eq!(Timestamp(1_795_372_739_001).to_second(), "2026-11-22 18:39:00 UTC");
        assert_eq!(Timestamp(1_795_372_739_000).to_second(), "2026-11-22 18:38:59 UTC");
        assert_eq!(Timestamp(u64::MAX).to_minute(), "9999-12-30 22:00 UTC");
    }
}
