//! Index of all deadlines in the state, so that nothing scans for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use comity_types::{ClusterId, LeaseId, PeeringId, RequestId};

use crate::model::envelope::EnvelopeKey;
use crate::model::time::Timestamp;

/// An object with a deadline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// The end of a hold or term.
    Lease(LeaseId),
    /// The release of a request's idle leases.
    IdleLeases(RequestId),
    /// The opening or closing of a start window.
    Request(RequestId),
    /// A handshake step's deadline, a retry, or the end of the idle period.
    Peering(PeeringId),
    /// The deletion of an unread envelope.
    Envelope(EnvelopeKey),
    /// The expiry of a join token, by its hash.
    Invite(String),
    /// The expiry of an idempotency record, by its key.
    Idempotency(String),
    /// The end of a quarantine, or of the memory of a failure, at a donor.
    Health(ClusterId),
}

/// Deadlines by object, and objects by deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Table<K> {
    at: BTreeMap<K, Timestamp>,
    order: BTreeSet<(Timestamp, K)>,
}

impl<K: Ord> Default for Table<K> {
    fn default() -> Self {
        Self { at: BTreeMap::new(), order: BTreeSet::new() }
    }
}

impl<K: Clone + Ord> Table<K> {
    fn set(&mut self, key: K, time: Option<Timestamp>) {
        if let Some(old) = self.at.remove(&key) {
            self.order.remove(&(old, key.clone()));
        }
        if let Some(time) = time {
            self.order.insert((time, key.clone()));
            self.at.insert(key, time);
        }
    }

    fn due(&self, now: Timestamp, limit: usize) -> impl Iterator<Item = &(Timestamp, K)> {
        self.order.iter().take_while(move |(time, _)| *time <= now).take(limit)
    }
}

/// All deadlines. Stored replies have their own table, because they are numerous.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Timers {
    things: Table<Due>,
    answers: Table<Arc<str>>,
}

impl Timers {
    /// Sets the deadline of `due`; removes it if `time` is `None`.
    pub(crate) fn set(&mut self, due: Due, time: Option<Timestamp>) {
        match due {
            Due::Idempotency(name) => self.answers.set(name.into(), time),
            due => self.things.set(due, time),
        }
    }

    /// The earliest deadline.
    #[must_use]
    pub(crate) fn next(&self) -> Option<Timestamp> {
        let thing = self.things.order.first().map(|(time, _)| *time);
        let answer = self.answers.order.first().map(|(time, _)| *time);
        thing.into_iter().chain(answer).min()
    }

    /// Up to `limit` objects due at or before `now`, earliest first.
    #[must_use]
    pub(crate) fn due(&self, now: Timestamp, limit: usize) -> Vec<Due> {
        let answers =
            self.answers.due(now, limit).map(|(time, name)| (*time, Due::Idempotency(name.as_ref().to_owned())));
        let mut due: Vec<(Timestamp, Due)> = self.things.due(now, limit).cloned().chain(answers).collect();
        due.sort_unstable();
        due.truncate(limit);
        due.into_iter().map(|(_, due)| due).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_and_other_objects_share_one_order() {
        let mut timers = Timers::default();
        let answer = |name: &str| Due::Idempotency(name.to_owned());
        for (due, at) in [
            (Due::Lease(LeaseId(1)), 3),
            (answer("b"), 2),
            (answer("a"), 2),
            (Due::Lease(LeaseId(2)), 2),
            (answer("c"), 9),
            (Due::Health("campus".parse().unwrap()), 2),
        ] {
            timers.set(due, Some(Timestamp(at)));
        }
        let due = [Due::Lease(LeaseId(2)), answer("a"), answer("b"), Due::Health("campus".parse().unwrap())];
        assert_eq!(timers.due(Timestamp(2), 10), due);
        assert_eq!(timers.due(Timestamp(8), 3), due[..3]);
        assert_eq!(timers.next(), Some(Timestamp(2)));
        for gone in due {
            timers.set(gone, None);
        }
        assert_eq!(timers.next(), Some(Timestamp(3)));
        timers.set(answer("c"), Some(Timestamp(1)));
        assert_eq!(timers.next(), Some(Timestamp(1)));
        timers.set(answer("c"), None);
        timers.set(Due::Lease(LeaseId(1)), None);
        assert_eq!(timers.next(), None);
    }
}
