//! Counts the calls of a connection, which tells whether it is idle.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

/// Calls in progress on a connection. Clones share the count.
#[derive(Debug, Clone, Default)]
pub struct OpenCalls(Arc<Mutex<CallCount>>);

#[derive(Debug, Default)]
struct CallCount {
    open: usize,
    last_end: Option<Instant>,
}

/// What a connection is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Usage {
    /// It never had a call.
    Unused,
    /// Calls are in progress.
    Busy,
    /// It has had no call since.
    IdleSince(Instant),
}

/// A call in progress; it ends on drop.
#[derive(Debug)]
pub struct OpenCall(OpenCalls);

impl OpenCalls {
    /// Begins a call.
    #[must_use]
    pub fn begin(&self) -> OpenCall {
        self.lock().open += 1;
        OpenCall(self.clone())
    }

    pub(super) fn usage(&self) -> Usage {
        match *self.lock() {
            CallCount { open: 0, last_end: None } => Usage::Unused,
            CallCount { open: 0, last_end: Some(end) } => Usage::IdleSince(end),
            CallCount { .. } => Usage::Busy,
        }
    }

    fn lock(&self) -> MutexGuard<'_, CallCount> {
        // Each change completes under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        let mut count = self.0.lock();
        count.open -= 1;
        count.last_end = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_after_its_last_call() {
        let calls = OpenCalls::default();
        assert_eq!(calls.usage(), Usage::Unused);
        let (one, two) = (calls.begin(), calls.begin());
        drop(one);
        assert_eq!(calls.usage(), Usage::Busy);
        tokio::time::advance(std::time::Duration::from_secs(7)).await;
        drop(two);
        assert_eq!(calls.usage(), Usage::IdleSince(Instant::now()));
    }
}
