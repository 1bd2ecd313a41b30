//! Leases whose work is saved.

use std::collections::BTreeSet;

use comity_types::LeaseId;

/// Leases under reclaim whose work is saved, by source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// Every running pod on the lease's virtual node reported so, or none runs.
    pub by_pods: BTreeSet<LeaseId>,
    /// An annotation of the lease's `GpuLease` says so.
    pub by_hand: BTreeSet<LeaseId>,
}

impl Saved {
    /// Leases of either source.
    #[must_use]
    pub fn leases(&self) -> BTreeSet<LeaseId> {
        self.by_pods.union(&self.by_hand).copied().collect()
    }
}
