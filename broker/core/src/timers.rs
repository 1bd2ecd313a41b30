//! What falls due when: derived from the state, kept at hand so that nobody scans for it.

use std::collections::{BTreeMap, BTreeSet};

use crate::envelope::EnvelopeKey;
use crate::id::{ClusterId, LeaseId, PeeringId, RequestId};
use crate::time::Timestamp;

/// Something with a time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// A hold or a term ends.
    Lease(LeaseId),
    /// A start window opens or closes.
    Request(RequestId),
    /// A step's deadline, a retry, or the end of idleness.
    Peering(PeeringId),
    /// An envelope is deleted unread.
    Envelope(EnvelopeKey),
    /// A join token, by its hash.
    Invite(String),
    /// An idempotency record, by its key.
    Idempotency(String),
    /// A node or device of a donor is kept out no longer, or that it failed is forgotten.
    Health(ClusterId),
}

/// Times by object and objects by time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Timers {
    at: BTreeMap<Due, Timestamp>,
    order: BTreeSet<(Timestamp, Due)>,
}

impl Timers {
    /// Sets or, with `None`, removes the time of `due`.
    pub(crate) fn set(&mut self, due: Due, time: Option<Timestamp>) {
        if let Some(old) = self.at.remove(&due) {
            self.order.remove(&(old, due.clone()));
        }
        if let Some(time) = time {
            self.order.insert((time, due.clone()));
            self.at.insert(due, time);
        }
    }

    /// When the next thing falls due.
    #[must_use]
    pub(crate) fn next(&self) -> Option<Timestamp> {
        self.order.first().map(|(time, _)| *time)
    }

    /// Up to `limit` things due at or before `now`, earliest first.
    #[must_use]
    pub(crate) fn due(&self, now: Timestamp, limit: usize) -> Vec<Due> {
        self.order.iter().take_while(|(time, _)| *time <= now).take(limit).map(|(_, due)| due.clone()).collect()
    }
}
