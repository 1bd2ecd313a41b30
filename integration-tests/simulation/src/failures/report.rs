//! What came of it.

use std::fmt::Write as _;

use serde::Serialize;

/// Counts over a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FailuresReport {
    /// Seed of all that was drawn.
    pub seed: u64,
    /// How often something failed or got well.
    pub events: u64,
    /// Leases placed.
    pub placed: u64,
    /// Leases reclaimed with notice because a device or node of theirs failed.
    pub reclaimed: u64,
    /// Leases that ended at once because a device or node of theirs was gone.
    pub lost: u64,
    /// Leases reclaimed because their donor was given up.
    pub given_up: u64,
    /// Leases that ended before they were in force, because their place failed.
    pub never_in_force: u64,
    /// Leases that stayed because what had failed got well.
    pub spared: u64,
    /// Requests that had another lease as soon as theirs ended for a failure.
    pub went_on: u64,
    /// Requests that waited again, until there was room.
    pub waited_again: u64,
    /// Most devices and nodes that were left alone at a time for failing too often.
    pub most_quarantined: u64,
    /// Most leases of one request that replaced one another at a time.
    pub longest_chain: u64,
    /// Most rounds of the leader's loops until nothing more happened.
    pub most_rounds: u64,
    /// Placements on what was ill, left alone, gone or silent. Must be none.
    pub placed_on_unwell: u64,
    /// Leases reclaimed for what they did not have, or what had not failed. Must be none.
    pub for_nothing: u64,
    /// Looks at which a lease lay on what had failed and was neither reclaimed nor ended. Must be none.
    pub missed: u64,
    /// Looks at which a request that was hit had no place though there was one. Must be none.
    pub could_have_gone_on: u64,
    /// Leases with notice that ended before it was over. Must be none.
    pub stopped_before_grace: u64,
    /// Calls back that apply refused though they were proposed from the same state. Must be none.
    pub refused: u64,
}

impl FailuresReport {
    /// Whether everything that must be none is none.
    #[must_use]
    pub fn holds(&self) -> bool {
        let wrong = [
            self.placed_on_unwell,
            self.for_nothing,
            self.missed,
            self.could_have_gone_on,
            self.stopped_before_grace,
            self.refused,
        ];
        wrong.iter().all(|count| *count == 0)
    }

    /// For people.
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
            ("placed on what was not well", self.placed_on_unwell),
            ("reclaimed for nothing", self.for_nothing),
            ("left on what had failed", self.missed),
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
