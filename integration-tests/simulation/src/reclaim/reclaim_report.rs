//! The counts of a simulation of reclaims.

use std::fmt::Write as _;

use serde::Serialize;

/// Counts over a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReclaimReport {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Leases reclaimed.
    pub reclaimed: u64,
    /// Leases reclaimed for local work.
    pub for_local_need: u64,
    /// Leases reclaimed because the policy changed.
    pub for_policy: u64,
    /// Leases reclaimed for a request of higher priority.
    pub for_requests: u64,
    /// GPUs of all reclaimed leases.
    pub gpus_reclaimed: u64,
    /// Requests placed on the capacity that was reclaimed for them.
    pub rooms_taken: u64,
    /// Leases whose reclaim was withdrawn.
    pub spared: u64,
    /// Leases that ended before their deadline because their work was saved.
    pub saved: u64,
    /// Leases that ended at their deadline.
    pub at_deadline: u64,
    /// Reclaimed leases whose request already had a new lease.
    pub moved: u64,
    /// Reclaimed leases whose request queued again or had no time left to start.
    pub waited_again: u64,
    /// Proposed sets of leases compared with all other sets.
    pub sets_checked: u64,
    /// Leases that stopped with unsaved work before their notice was over. Must be 0.
    pub stopped_before_grace: u64,
    /// Sets for which a cheaper one would have sufficed. Must be 0.
    pub more_than_needed: u64,
    /// Reclaimed leases without a new place while another donor had room, over all checks. Must be 0.
    pub could_have_moved: u64,
    /// Reclaims that the state machine refused although they were proposed for the same state. Must be 0.
    pub refused: u64,
}

impl ReclaimReport {
    /// Whether all values that must be 0 are 0.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.stopped_before_grace + self.more_than_needed + self.could_have_moved + self.refused == 0
    }

    /// The report as text.
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
