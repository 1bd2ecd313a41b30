//! Backoff for repairs of objects that somebody keeps changing.

use std::time::Duration;

use tokio::time::Instant;

const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// After this time without a repair, the next one is made at once.
const QUIET: Duration = Duration::from_secs(120);

/// Backoff of the repairs of one object.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    last: Option<Instant>,
    pause: Duration,
}

impl Pace {
    /// When the next attempt may be made.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.last.map(|last| last + self.pause)
    }

    /// Records an attempt.
    pub(crate) fn attempt(&mut self, now: Instant) {
        let quiet = self.last.is_none_or(|last| now.saturating_duration_since(last) > QUIET);
        self.pause = if quiet { MIN_PAUSE } else { (self.pause * 2).clamp(MIN_PAUSE, MAX_PAUSE) };
        self.last = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_repairs_slow_down_until_a_quiet_time() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        assert_eq!(pace.due(), None);
        for _ in 0..20 {
            pace.attempt(now);
            now = pace.due().unwrap_or(now);
        }
        assert_eq!(pace.pause, MAX_PAUSE);
        pace.attempt(now + QUIET * 2);
        assert_eq!(pace.pause, MIN_PAUSE);
    }
}
