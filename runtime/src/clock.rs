//! Time as a trait, so that a simulation can drive leader tasks and agents.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

/// The future of [`Clock::sleep`].
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send + 'static>>;

/// A clock that tasks read and sleep on. Passed as `Arc<dyn Clock>`.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// Wall-clock time in milliseconds since 1970. May jump forward and back.
    fn unix_ms(&self) -> u64;

    /// Monotonic time since some fixed start, for timeouts and ages.
    fn elapsed(&self) -> Duration;

    /// Waits until `duration` has passed on this clock.
    fn sleep(&self, duration: Duration) -> Sleep;

    /// Wall-clock time, for certificates.
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.unix_ms())
    }
}

/// The clock of the machine. Sleeping needs a tokio runtime.
#[derive(Debug, Clone)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose `elapsed` starts at zero now.
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn unix_ms(&self) -> u64 {
        // A clock before 1970 reads as 1970. Every certificate is then not valid yet, an error that operators
        // understand.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// A clock that only [`advance`](Self::advance) moves. Clones share the time.
#[derive(Debug, Clone)]
pub struct ManualClock {
    start_unix_ms: u64,
    elapsed: Arc<watch::Sender<Duration>>,
}

impl ManualClock {
    /// A clock at the given wall-clock time.
    pub fn at_unix_ms(start_unix_ms: u64) -> Self {
        Self { start_unix_ms, elapsed: Arc::new(watch::Sender::new(Duration::ZERO)) }
    }

    /// Moves the time forward and wakes the sleeps that end.
    pub fn advance(&self, by: Duration) {
        self.elapsed.send_modify(|elapsed| *elapsed = elapsed.saturating_add(by));
    }

    /// Number of waiting sleeps, so that a test can advance once its tasks are asleep.
    pub fn sleepers(&self) -> usize {
        self.elapsed.receiver_count()
    }
}

impl Clock for ManualClock {
    fn unix_ms(&self) -> u64 {
        let elapsed_ms = u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.start_unix_ms.saturating_add(elapsed_ms)
    }

    fn elapsed(&self) -> Duration {
        *self.elapsed.borrow()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        let mut elapsed = self.elapsed.subscribe();
        let end = self.elapsed().saturating_add(duration);
        Box::pin(async move {
            if elapsed.wait_for(|now| *now >= end).await.is_err() {
                // The clock was dropped, so its time stands still.
                std::future::pending::<()>().await;
            }
        })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[tokio::test]
    async fn manual_clock_wakes_sleepers_in_its_own_time() {
        let clock = ManualClock::at_unix_ms(1_000);
        let sleep = tokio::spawn(clock.sleep(Duration::from_secs(10)));
        assert_eq!(clock.sleepers(), 1);
        clock.advance(Duration::from_secs(9));
        tokio::task::yield_now().await;
        assert!(!sleep.is_finished());
        clock.advance(Duration::from_secs(1));
        tokio::time::timeout(Duration::from_secs(5), sleep).await.unwrap().unwrap();
        assert_eq!(clock.unix_ms(), 11_000);
        assert_eq!(clock.now(), UNIX_EPOCH + Duration::from_secs(11));
    }

    #[tokio::test]
    async fn system_clock_moves_forward() {
        let clock = SystemClock::new();
        clock.sleep(Duration::from_millis(5)).await;
        assert!(clock.elapsed() >= Duration::from_millis(5));
        assert!(clock.unix_ms() > 1_700_000_000_000);
    }
}
