//! The counts of a simulation of failures.

use std::fmt::Write as _;

use serde::Serialize;

/// Counts over a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FailuresReport {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Failures and recoveries.
    pub events: u64,
    /// Leases placed.
    pub placed: u64,
    /// Leases reclaimed with notice because one of their devices or nodes failed.
    pub reclaimed: u64,
    /// Leases that ended at once because one of their devices or nodes was gone.
    pub lost: u64,
    /// Leases reclaimed because the broker gave up their donor.
    pub given_up: u64,
    /// Leases whose place failed before they became active.
    pub never_in_force: u64,
    /// Leases that stayed because the failed hardware recovered.
    pub spared: u64,
    /// Requests that already had a new lease when theirs ended for a failure.
    pub went_on: u64,
    /// Requests that queued again.
    pub waited_again: u64,
    /// Maximum number of devices in quarantine at a time.
    pub most_quarantined: u64,
    /// Longest chain of leases of one request that replace one another.
    pub longest_chain: u64,
    /// Maximum rounds of the leader's loops until the state was stable.
    pub most_rounds: u64,
    /// Placements on hardware that was failed, quarantined, gone or silent. Must be 0.
    pub placed_on_unhealthy: u64,
    /// Leases reclaimed for hardware that they did not use or that had not failed. Must be 0.
    pub for_nothing: u64,
    /// Leases that stayed on failed hardware, over all checks. Must be 0.
    pub missed: u64,
    /// Affected requests without a place while one was free, over all checks. Must be 0.
    pub could_have_gone_on: u64,
    /// Leases that ended before their notice was over. Must be 0.
    pub stopped_before_grace: u64,
    /// Reclaims that the state machine refused although they were proposed for the same state. Must be 0.
    pub refused: u64,
}

impl FailuresReport {
    /// Whether all values that must be 0 are 0.
    #[must_use]
    pub fn holds(&self) -> bool {
        let wrong = [
            self.placed_on_unhealthy,
            self.for_nothing,
            self.missed,
            self.could_have_gone_on,
            self.stopped_before_grace,
            self.refused,
        ];
        wrong.iter().all(|count| *count == 0)
    }

    /// The report as text.
    #[must_use]
    pub fn table(&self) -> String {
        let rows = [
            ("failed or got well", self.events),
            ("leases placed", self.placed),
            ("reclaimed with notice", self.reclaimed),
            ("ended at once", self.lost),
            ("reclaimed from silent donors", self.given_up),
            ("failed before they were in force", self.never_in_force),
            ("spared after all", self.spared),
            ("requests that went on elsewhere", self.went_on),
            ("requests that waited again", self.waited_again),
            ("most in quarantine at a time", self.most_quarantined),
            ("most leases that replace one another", self.longest_chain),
            ("most rounds until nothing happened", self.most_rounds),
            ("placed on unhealthy hardware", self.placed_on_unhealthy),
            ("reclaimed for nothing", self.for_nothing),
            ("left on failed hardware", self.missed),
            ("left without a place there was", self.could_have_gone_on),
            ("stopped before their grace", self.stopped_before_grace),
            ("refused by apply", self.refused),
        ];
        let mut text = String::new();
        for (name, count) in rows {
            let _ = writeln!(text, "{name:<38} {count:>7}");
        }
        text
    }
}
