//! What came of it.

use std::fmt::Write as _;

use serde::Serialize;

/// Counts over a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReclaimReport {
    /// Seed of all that was drawn.
    pub seed: u64,
    /// Leases reclaimed.
    pub reclaimed: u64,
    /// Of these, for local work.
    pub for_local_need: u64,
    /// Because policy changed.
    pub for_policy: u64,
    /// For a request of higher priority.
    pub for_requests: u64,
    /// GPUs of all of these.
    pub gpus_reclaimed: u64,
    /// Requests that got the room that was made for them.
    pub rooms_taken: u64,
    /// Leases that stayed after all.
    pub spared: u64,
    /// Leases that ended before their deadline because their work was saved.
    pub saved: u64,
    /// Leases that ended at their deadline.
    pub at_deadline: u64,
    /// Of those that ended by it: whose request had another lease already.
    pub moved: u64,
    /// Of those that ended by it: whose request waited again, or had no time left to start.
    pub waited_again: u64,
    /// Sets of leases that were checked against all others.
    pub sets_checked: u64,
    /// Leases that stopped before their notice was over though their work was not saved. Must be none.
    pub stopped_before_grace: u64,
    /// Sets that took more than needed. Must be none.
    pub more_than_needed: u64,
    /// Looks at which a lease was reclaimed, had no new place, and another donor had room. Must be none.
    pub could_have_moved: u64,
    /// Calls back that apply refused though they were proposed from the same state. Must be none.
    pub refused: u64,
}

impl ReclaimReport {
    /// Whether everything that must be none is none.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.stopped_before_grace + self.more_than_needed + self.could_have_moved + self.refused == 0
    }

    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        let rows = [
            ("reclaimed", self.reclaimed),
            ("  for local work", self.for_local_need),
            ("  because policy changed", self.for_policy),
            ("  for a request of higher priority", self.for_requests),
            ("GPUs reclaimed", self.gpus_reclaimed),
            ("requests that got their room", self.rooms_taken),
            ("spared after all", self.spared),
            ("ended when their work was saved", self.saved),
            ("ended at their deadline", self.at_deadline),
            ("  moved", self.moved),
            ("  waited again", self.waited_again),
            ("sets checked against all others", self.sets_checked),
            ("stopped before their grace", self.stopped_before_grace),
            ("sets that took more than needed", self.more_than_needed),
            ("not moved although there was room", self.could_have_moved),
            ("refused by apply", self.refused),
        ];
        let mut text = String::new();
        for (name, count) in rows {
            let _ = writeln!(text, "{name:<38} {count:>7}");
        }
        text
    }
}
