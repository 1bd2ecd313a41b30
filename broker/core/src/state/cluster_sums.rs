//! Per-cluster sums for the cluster summary. Kept incrementally, so that no summary scans thousands of nodes and
//! leases.

use std::collections::BTreeMap;

use comity_types::ClusterId;

use crate::model::lease::Lease;
use crate::state::State;

/// The sums of one cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    devices: usize,
    borrowed_milli: u64,
}

/// Sums by cluster, without clusters whose sums are all zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterSums(BTreeMap<ClusterId, Sums>);

impl ClusterSums {
    /// Sets the number of devices that the cluster offers.
    pub(crate) fn set_devices(&mut self, cluster: &ClusterId, devices: usize) {
        self.change(cluster, |sums| sums.devices = devices);
    }

    /// Changes a node's number of devices.
    pub(crate) fn note_devices(&mut self, cluster: &ClusterId, before: usize, after: usize) {
        self.change(cluster, |sums| sums.devices = sums.devices.saturating_sub(before) + after);
    }

    /// Adds a lease that starts to occupy devices.
    pub(crate) fn borrow(&mut self, lease: &Lease) {
        let milli = lease.placement.milli();
        self.change(&lease.origin, |sums| sums.borrowed_milli = sums.borrowed_milli.saturating_add(milli));
    }

    /// Subtracts a lease that no longer occupies devices.
    pub(crate) fn give_back(&mut self, lease: &Lease) {
        let milli = lease.placement.milli();
        self.change(&lease.origin, |sums| sums.borrowed_milli = sums.borrowed_milli.saturating_sub(milli));
    }

    fn change(&mut self, cluster: &ClusterId, change: impl FnOnce(&mut Sums)) {
        let mut sums = self.0.remove(cluster).unwrap_or_default();
        change(&mut sums);
        if sums != Sums::default() {
            self.0.insert(cluster.clone(), sums);
        }
    }
}

impl State {
    /// Number of devices in a cluster's offer.
    #[must_use]
    pub fn devices_offered(&self, cluster: &ClusterId) -> usize {
        self.derived.cluster_sums.0.get(cluster).map_or(0, |sums| sums.devices)
    }

    /// Thousandths of devices that a cluster borrows.
    #[must_use]
    pub fn borrowed_milli(&self, cluster: &ClusterId) -> u64 {
        self.derived.cluster_sums.0.get(cluster).map_or(0, |sums| sums.borrowed_milli)
    }
}
