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

    /// This time plus `ms`, which may be negative; saturates.
    #[must_use]
    pub fn shifted(self, ms: i64) -> Self {
        Self(self.0.saturating_add_signed(ms))
    }

    /// Date and time for people, rounded up to the minute: "2026-11-22 18:40 UTC".
    #[must_use]
    pub fn to_minute(self) -> String {
        let minutes = self.0.div_ceil(60_000);
        format!("{} {:02}:{:02} UTC", date(minutes / 1_440), minutes / 60 % 24, minutes % 60)
    }

    /// Date and time for people, rounded up to the second: "2026-11-22 18:40:00 UTC".
    #[must_use]
    pub fn to_second(self) -> String {
        let seconds = self.0.div_ceil(1_000);
        let (hours, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
        format!("{} {:02}:{minute:02}:{second:02} UTC", date(hours / 24), hours % 24)
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

/// The date of a day that is `days` after 1970-01-01. Uses `civil_from_days` of Howard Hinnant, "chrono-Compatible
/// Low-Level Date Algorithms".
fn date(days: u64) -> String {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + era * 400 + next;
    format!("{year:04}-{month:02}-{day:02}")
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
    }
}
