//! Last contact with the leader.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// Shared by the transport, which records contact, and its readers. Without it an isolated follower would name its old
/// leader forever: openraft forgets a leader only when it learns of another.
#[derive(Clone, Default)]
pub(crate) struct Contact(Arc<ContactInner>);

#[derive(Default)]
struct ContactInner {
    last: Mutex<Option<Spoke>>,
    another: Notify,
}

/// The last message of a leader.
#[derive(Clone, Copy)]
struct Spoke {
    leader: u64,
    came: Instant,
    followed: Instant,
}

impl Contact {
    /// Records a message of the leader that arrived at `came`; storing it may have taken time since.
    pub(crate) fn note(&self, leader: u64, came: Instant) {
        let spoke = Spoke { leader, came, followed: Instant::now() };
        let before = self.0.last.lock().unwrap_or_else(PoisonError::into_inner).replace(spoke);
        if before.is_none_or(|before| before.leader != leader) {
            self.0.another.notify_one();
        }
    }

    /// Waits for a new leader; supports one waiter.
    pub(crate) async fn with_another(&self) {
        self.0.another.notified().await;
    }

    /// Whether this broker followed the leader within the last `limit`.
    pub(crate) fn is_within(&self, leader: u64, limit: Duration) -> bool {
        self.last(leader).is_some_and(|last| last.followed.elapsed() < limit)
    }

    /// Whether a message of the leader came since `then`.
    pub(crate) fn is_since(&self, leader: u64, then: Instant) -> bool {
        self.last(leader).is_some_and(|last| last.came >= then)
    }

    fn last(&self, leader: u64) -> Option<Spoke> {
        let last = *self.0.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.filter(|last| last.leader == leader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_came_before_and_was_written_after_says_nothing_of_the_time_since() {
        let contact = Contact::default();
        let came = Instant::now();
        let died = came + Duration::from_micros(1);
        contact.note(1, came);
        assert!(!contact.is_since(1, died), "the leader was dead when its last message was written here");
        assert!(contact.is_since(1, came) && contact.is_within(1, Duration::from_secs(60)));
        contact.note(1, died);
        assert!(contact.is_since(1, died) && !contact.is_since(2, came));
    }
}
