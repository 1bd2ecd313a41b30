//! Stops a gateway that may have been replaced, before its successor starts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Until when a fabric may send and accept packets. Clones share it.
///
/// The fabric reads it for every batch of packets, so a process that was paused sends nothing when it runs again, even
/// before the task that renews its lease does. The time is monotonic: no change of the wall clock moves it.
#[derive(Clone, Debug)]
pub struct Fence(Arc<Deadline>);

#[derive(Debug)]
struct Deadline {
    start: Instant,
    /// After `start`.
    nanos: AtomicU64,
}

impl Fence {
    /// Without a deadline: the only gateway of its cluster.
    #[must_use]
    pub fn always_open() -> Self {
        Self::with(u64::MAX)
    }

    /// Closed until it is [extended](Self::extend_until).
    #[must_use]
    pub fn closed() -> Self {
        Self::with(0)
    }

    fn with(nanos: u64) -> Self {
        Self(Arc::new(Deadline { start: Instant::now(), nanos: AtomicU64::new(nanos) }))
    }

    /// Sets the deadline.
    pub fn extend_until(&self, deadline: Instant) {
        let after_start = deadline.saturating_duration_since(self.0.start);
        self.0.nanos.store(nanos(after_start), Ordering::Release);
    }

    /// Closes it at once.
    pub fn close(&self) {
        self.0.nanos.store(0, Ordering::Release);
    }

    /// Whether the deadline is in the future.
    #[must_use]
    pub fn is_open(&self) -> bool {
        match self.0.nanos.load(Ordering::Acquire) {
            u64::MAX => true,
            0 => false,
            deadline => nanos(self.0.start.elapsed()) < deadline,
        }
    }
}

/// Less than `u64::MAX`, which stands for no deadline.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).min(u64::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_closes_at_its_deadline_and_opens_when_extended() {
        let fence = Fence::closed();
        assert!(!fence.is_open());
        fence.extend_until(Instant::now() + Duration::from_secs(60));
        assert!(fence.is_open());
        fence.extend_until(Instant::now());
        assert!(!fence.is_open());
        fence.extend_until(Instant::now() + Duration::from_secs(60));
        fence.close();
        assert!(!fence.is_open());
        assert!(Fence::always_open().is_open());
    }
}
