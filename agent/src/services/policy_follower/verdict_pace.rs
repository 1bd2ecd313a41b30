//! How soon the next commit of a broker is fetched and judged.

use std::ops::Range;
use std::time::Duration;

use comity_runtime::{Backoff, Entropy};

/// First and longest pause before a broker is asked again. Each try may cost a broker a fetch, and this agent a verdict.
const HISTORY_BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(120));

/// What came of a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TryOutcome {
    /// All owners signed.
    Verified,
    /// It was judged, and is not verified. That costs time.
    Judged,
    /// There was nothing to judge.
    NotFetched,
}

/// The pause after each try. Another commit ends the pause after a failed fetch, and not the one after a verdict: a
/// broker could have an agent judge one forged commit after the other.
pub(super) struct VerdictPace {
    backoff: Backoff,
    last: Option<(String, TryOutcome)>,
    at: Duration,
    pause: Duration,
}

impl VerdictPace {
    pub(super) fn new() -> Self {
        let backoff = Backoff::new(HISTORY_BACKOFF.0, HISTORY_BACKOFF.1);
        Self { backoff, last: None, at: Duration::ZERO, pause: Duration::ZERO }
    }

    /// The time until a commit may be tried.
    pub(super) fn wait(&self, commit: &str, now: Duration) -> Duration {
        let pause = match &self.last {
            Some((last, TryOutcome::NotFetched)) if last != commit => self.pause.min(HISTORY_BACKOFF.0),
            _ => self.pause,
        };
        self.at.saturating_add(pause).saturating_sub(now)
    }

    /// Notes a try and when it began and ended. How long it took does not count as a pause.
    pub(super) fn note(&mut self, commit: &str, tried: TryOutcome, during: Range<Duration>, entropy: &dyn Entropy) {
        let is_long_ago = during.start.saturating_sub(self.at.saturating_add(self.pause)) > HISTORY_BACKOFF.1;
        if tried == TryOutcome::Verified || is_long_ago {
            self.backoff.reset();
        }
        self.pause = if tried == TryOutcome::Verified { Duration::ZERO } else { self.backoff.next_delay(entropy) };
        self.last = Some((commit.to_owned(), tried));
        self.at = during.end;
    }
}

#[cfg(test)]
mod tests {
    use comity_runtime::SeededEntropy;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// How long it takes to try `tries` commits, if the broker announces each one at once.
    fn time_of(tries: u32, tried: TryOutcome) -> Duration {
        let (mut pace, mut now) = (VerdictPace::new(), Duration::ZERO);
        for number in 0..tries {
            let commit = number.to_string();
            now += pace.wait(&commit, now);
            assert_eq!(pace.wait(&commit, now), Duration::ZERO);
            pace.note(&commit, tried, now..now, &SeededEntropy::new(number.into()));
        }
        now
    }

    #[test]
    fn a_stream_of_forged_commits_is_judged_at_the_pace_of_the_backoff() {
        assert!(time_of(30, TryOutcome::Judged) > 60 * SECOND, "{:?}", time_of(30, TryOutcome::Judged));
        assert!(time_of(30, TryOutcome::NotFetched) <= 15 * SECOND);
        assert_eq!(time_of(30, TryOutcome::Verified), Duration::ZERO);
    }

    #[test]
    fn a_new_commit_ends_the_pause_after_a_failed_fetch_and_not_after_a_verdict() {
        let entropy = SeededEntropy::new(1);
        for (tried, is_ended) in [(TryOutcome::NotFetched, true), (TryOutcome::Judged, false)] {
            let mut pace = VerdictPace::new();
            for _ in 0..12 {
                pace.note("a", tried, SECOND..SECOND, &entropy);
            }
            let (same, other) = (pace.wait("a", SECOND), pace.wait("b", SECOND));
            assert!(same > 2 * SECOND && (other <= SECOND) == is_ended, "{same:?}, {other:?}");
        }
    }

    #[test]
    fn tries_that_take_long_do_not_end_the_backoff() {
        let (mut pace, mut now) = (VerdictPace::new(), Duration::ZERO);
        let mut longest = Duration::ZERO;
        for number in 0..12 {
            let began = now;
            now += 120 * SECOND;
            pace.note("a", TryOutcome::NotFetched, began..now, &SeededEntropy::new(number));
            let pause = pace.wait("a", now);
            longest = longest.max(pause);
            now += pause;
        }
        assert!(longest > 10 * SECOND, "{longest:?}");
    }
}
