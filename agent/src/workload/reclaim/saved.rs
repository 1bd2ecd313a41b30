//! Which leases' work says that it is saved.

use std::collections::BTreeSet;

/// Leases that are being reclaimed and whose work says that it is saved, by who says it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// All pods on the lease's virtual node, or none is there that runs.
    pub by_pods: BTreeSet<String>,
    /// Somebody, on the lease's `GpuLease`.
    pub by_hand: BTreeSet<String>,
}

impl Saved {
    /// All of them.
    #[must_use]
    pub fn leases(&self) -> BTreeSet<String> {
        self.by_pods.union(&self.by_hand).cloned().collect()
    }
}
