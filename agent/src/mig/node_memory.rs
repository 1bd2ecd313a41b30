//! What earlier plans of a node leave to the next one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use comity_types::LeaseId;

use super::mig_book::CutRefusal;
use super::node_change::NodeChange;

/// How long pods that end, and facts that are a moment old, may keep a lease's instances from being cut.
pub(crate) const BLOCKED_PATIENCE: Duration = Duration::from_secs(15);

/// What earlier plans leave to the next one. Lost by a restart, except for the beginning of a change, which an annotation
/// of the node records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeMemory {
    /// Whether there was a plan that knew the node's configurations.
    pub(crate) is_known: bool,
    /// The change under way.
    pub(crate) change: Option<NodeChange>,
    /// The last failed change.
    pub(crate) failure: Option<FailedChange>,
    /// Since when devices are empty.
    pub(crate) empty_since: BTreeMap<usize, Duration>,
    /// Since when leases cannot be served.
    pub(crate) blocked_since: BTreeMap<LeaseId, Duration>,
    /// Leases that were refused, until the broker withdraws them.
    pub(crate) refused: BTreeMap<LeaseId, CutRefusal>,
}

/// A failed change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailedChange {
    /// Until when the node is not changed.
    pub(crate) until: Duration,
    /// One sentence.
    pub(crate) message: String,
}

impl NodeMemory {
    /// Notes a failed change: its leases are refused, and the node is left alone for a while.
    pub(crate) fn fail(&mut self, leases: BTreeSet<LeaseId>, message: String, until: Duration) {
        for lease in leases {
            self.refuse(lease, CutRefusal::new("mig-failed", message.clone()));
        }
        self.failure = Some(FailedChange { until, message });
    }

    pub(crate) fn refuse(&mut self, lease: LeaseId, refusal: CutRefusal) {
        self.refused.entry(lease).or_insert(refusal);
    }

    /// Refuses a lease that has been blocked for too long.
    pub(crate) fn block(&mut self, lease: LeaseId, refusal: CutRefusal, now: Duration) {
        let since = *self.blocked_since.entry(lease).or_insert(now);
        if now.saturating_sub(since) >= BLOCKED_PATIENCE {
            self.refuse(lease, refusal);
        }
    }

    /// Whether the next plan should come soon.
    pub(crate) fn is_busy(&self) -> bool {
        self.change.is_some() || !self.blocked_since.is_empty() || !self.empty_since.is_empty()
    }
}
