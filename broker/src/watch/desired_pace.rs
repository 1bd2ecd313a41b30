//! Limits the share of time spent on desired states.
//!
//! Each desired state is complete, so for a large cluster one changed lease costs as much as a thousand. Streams take
//! turns, and a long turn is followed by a pause that batches further changes.

use std::sync::Arc;
use std::time::Duration;

use comity_runtime::clock::Clock;
use tokio::sync::{Mutex, MutexGuard};

/// The pause is this many times as long as the turn, so building desired states takes at most 1/10 of the time;
/// encrypting and sending them takes twice as much.
const DESIRED_PAUSE_FACTOR: u32 = 9;
/// Shorter pauses accumulate: desired states of a few leases do not wait.
const MIN_DESIRED_PAUSE: Duration = Duration::from_millis(20);
/// Bounds the pause after one long turn: the machine may have been suspended.
const MAX_DESIRED_PAUSE: Duration = Duration::from_secs(1);

/// Grants turns, first come, first served.
#[derive(Debug)]
pub struct DesiredPace {
    clock: Arc<dyn Clock>,
    /// When the next turn may begin.
    free_at: Mutex<Duration>,
}

/// A turn; the next one begins once this is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    clock: &'a dyn Clock,
    free_at: MutexGuard<'a, Duration>,
}

impl DesiredPace {
    /// One per broker, shared by all streams.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, free_at: Mutex::default() }
    }

    /// Waits for a turn.
    pub async fn turn(&self) -> Turn<'_> {
        let free_at = self.free_at.lock().await;
        let pause = free_at.saturating_sub(self.clock.elapsed());
        if pause > MIN_DESIRED_PAUSE {
            self.clock.sleep(pause.min(MAX_DESIRED_PAUSE)).await;
        }
        Turn { clock: &*self.clock, free_at }
    }
}

impl Turn<'_> {
    /// Ends the turn, which took `needed`.
    pub fn end(mut self, needed: Duration) {
        let pause = needed.saturating_mul(DESIRED_PAUSE_FACTOR).min(MAX_DESIRED_PAUSE);
        *self.free_at = self.clock.elapsed().max(*self.free_at).saturating_add(pause);
    }
}

#[cfg(test)]
mod tests {
    use comity_runtime::clock::ManualClock;
    use futures::FutureExt as _;

    use super::*;

    fn pace() -> (DesiredPace, ManualClock) {
        let clock = ManualClock::at_unix_ms(0);
        (DesiredPace::new(Arc::new(clock.clone())), clock)
    }

    #[tokio::test]
    async fn after_a_long_turn_all_pause_for_as_long_as_it_was_long() {
        let (pace, clock) = pace();
        pace.turn().await.end(Duration::from_millis(10));
        let mut next = Box::pin(pace.turn());
        assert!((&mut next).now_or_never().is_none());
        clock.advance(Duration::from_millis(89));
        assert!((&mut next).now_or_never().is_none());
        clock.advance(Duration::from_millis(1));
        assert!((&mut next).now_or_never().is_some());
    }

    #[tokio::test]
    async fn short_turns_wait_only_once_they_are_many() {
        let (pace, _clock) = pace();
        let mut turns = 0;
        while let Some(turn) = pace.turn().now_or_never() {
            turn.end(Duration::from_micros(50));
            turns += 1;
        }
        assert_eq!(turns, 45);
    }

    #[tokio::test]
    async fn no_pause_is_longer_than_a_second() {
        let (pace, clock) = pace();
        pace.turn().await.end(Duration::from_secs(3_600));
        clock.advance(MAX_DESIRED_PAUSE);
        assert!(pace.turn().now_or_never().is_some());
    }
}
