//! When this broker last had contact with the leader it follows.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// Shared by consensus' transport, which takes note, and whoever asks. Without it a follower that is cut off names its
/// old leader for ever: openraft forgets a leader only when it learns of another.
#[derive(Clone, Default)]
pub(crate) struct Contact(Arc<Shared>);

#[derive(Default)]
struct Shared {
    last: Mutex<Option<(u64, Instant)>>,
    another: Notify,
}

impl Contact {
    /// The leader spoke, and this broker follows it.
    pub(crate) fn note(&self, leader: u64) {
        let before = self.0.last.lock().unwrap_or_else(PoisonError::into_inner).replace((leader, Instant::now()));
        if before.is_none_or(|(who, _)| who != leader) {
            self.0.another.notify_one();
        }
    }

    /// Waits for another leader than the one before. For one waiter.
    pub(super) async fn with_another(&self) {
        self.0.another.notified().await;
    }

    /// Whether the leader spoke within the last `limit`.
    pub(super) fn is_within(&self, leader: u64, limit: Duration) -> bool {
        self.last(leader).is_some_and(|at| at.elapsed() < limit)
    }

    /// Whether the leader spoke since `then`.
    pub(super) fn is_since(&self, leader: u64, then: Instant) -> bool {
        self.last(leader).is_some_and(|at| at >= then)
    }

    fn last(&self, leader: u64) -> Option<Instant> {
        let last = *self.0.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.filter(|(who, _)| *who == leader).map(|(_, at)| at)
    }
}
