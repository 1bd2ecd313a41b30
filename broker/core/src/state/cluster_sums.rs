//! Sums that are shown with a cluster each time that something of it changes: derived, and kept at hand so that nobody
//! adds up thousands of nodes and leases for it.

use std::collections::BTreeMap;

use crate::model::id::ClusterId;
use crate::model::lease::Lease;
use crate::state::State;

/// Of one cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    devices: usize,
    borrowed_milli: u64,
}

/// By cluster; those that have and borrow nothing are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterSums(BTreeMap<ClusterId, Sums>);

impl ClusterSums {
    /// The cluster offers so many devices.
    pub(crate) fn set_devices(&mut self, cluster: &ClusterId, devices: usize) {
        self.change(cluster, |sums| sums.devices = devices);
    }

    /// A node with `before` devices became one with `after`.
    pub(crate) fn note_devices(&mut self, cluster: &ClusterId, before: usize, after: usize) {
        self.change(cluster, |sums| sums.devices = sums.devices.saturating_sub(before) + after);
    }

    /// A lease begins to occupy devices for its origin.
    pub(crate) fn borrow(&mut self, lease: &Lease) {
        let milli = lease.placement.milli();
        self.change(&lease.origin, |sums| sums.borrowed_milli = sums.borrowed_milli.saturating_add(milli));
    }

    /// It occupies them no longer.
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
    /// Devices of a cluster's offer.
    #[must_use]
    pub fn devices_offered(&self, cluster: &ClusterId) -> usize {
        self.derived.cluster_sums.0.get(cluster).map_or(0, |sums| sums.devices)
    }

    /// Thousandths of devices that a cluster's leases take of others.
    #[must_use]
    pub fn borrowed_milli(&self, cluster: &ClusterId) -> u64 {
        self.derived.cluster_sums.0.get(cluster).map_or(0, |sums| sums.borrowed_milli)
    }
}
