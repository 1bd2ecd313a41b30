//! The bounds of every duration that a command takes.

use super::time::{DAY, SECOND, format_duration, parse_duration_ms};

/// The shortest and the longest duration that an argument accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurationBounds {
    min_ms: u64,
    max_ms: u64,
}

impl DurationBounds {
    /// Length of a lease, at submission and renewal.
    pub const LEASE: Self = Self { min_ms: 10 * SECOND, max_ms: 90 * DAY };
    /// Lifetime of a cluster's or user's token.
    pub const TOKEN: Self = Self { min_ms: 60 * SECOND, max_ms: 7 * DAY };
    /// Lifetime of a broker's token.
    pub const BROKER_TOKEN: Self = Self { min_ms: 60 * SECOND, max_ms: 3_600 * SECOND };
    /// Notice that preemptible work needs.
    pub const GRACE: Self = Self { min_ms: SECOND, max_ms: DAY };
    /// Idle time after which a lease is released.
    pub const RELEASE_IDLE: Self = Self { min_ms: 10 * SECOND, max_ms: 90 * DAY };
    /// Time between pulls of the policy.
    pub const PULL: Self = Self { min_ms: 5 * SECOND, max_ms: DAY };
    /// How long a command waits.
    pub const WAIT: Self = Self { min_ms: SECOND, max_ms: 90 * DAY };

    /// Parses a duration as milliseconds.
    ///
    /// # Errors
    /// One sentence with the value and the remedy.
    pub fn parse(self, text: &str) -> Result<u64, String> {
        let ms = parse_duration_ms(text)?;
        let problem = match ms {
            ms if ms < self.min_ms => "too short",
            ms if ms > self.max_ms => "too long",
            _ => return Ok(ms),
        };
        Err(format!("{:?} is {problem}; use {self}", text.trim()))
    }

    /// [`parse`](Self::parse) as clap takes it.
    pub fn parser(self) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
        move |text| self.parse(text)
    }
}

impl std::fmt::Display for DurationBounds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} to {}", format_duration(self.min_ms), format_duration(self.max_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_named_in_units() {
        assert_eq!(DurationBounds::LEASE.parse("10s"), Ok(10_000));
        assert_eq!(DurationBounds::LEASE.parse("90d"), Ok(90 * DAY));
        assert_eq!(DurationBounds::LEASE.parse(" 9s"), Err("\"9s\" is too short; use 10s to 90d".to_owned()));
        assert_eq!(DurationBounds::TOKEN.parse("8d"), Err("\"8d\" is too long; use 1m to 7d".to_owned()));
        assert!(DurationBounds::WAIT.parse("soon").expect_err("no duration").contains("1h30m"));
    }

    #[test]
    fn the_book_has_the_table() {
        let page = include_str!("../../../docs/terminal.md");
        for (flags, bounds) in [
            ("`request submit --duration`, `quote --duration`, `lease renew --duration`", DurationBounds::LEASE),
            ("`request submit --grace`, `quote --grace`", DurationBounds::GRACE),
            ("`request submit --release-idle`, `quote --release-idle`", DurationBounds::RELEASE_IDLE),
            ("`cluster invite --ttl`, `user add --ttl`", DurationBounds::TOKEN),
            ("`raft invite --ttl`", DurationBounds::BROKER_TOKEN),
            ("`request submit --timeout`, `request watch --timeout`", DurationBounds::WAIT),
        ] {
            let row = format!("| {flags} | {bounds} |");
            assert!(page.contains(&row), "{row}");
        }
    }
}
