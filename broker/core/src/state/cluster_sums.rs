//! Per-cluster sums for the cluster summary. Kept incrementally, so that no summary scans thousands of nodes and
//! leases.

use std::collections::BTreeMap;

use comity_types::ClusterId;

use crate::model::inventory::{Node, Offer};
use crate::model::lease::Lease;
use crate::state::State;

/// The sums of one cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    devices: usize,
    offer_bytes: usize,
    borrowed_milli: u64,
}

/// Sums by cluster, without clusters whose sums are all zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterSums(BTreeMap<ClusterId, Sums>);

impl ClusterSums {
    /// Sets the sums over the cluster's offer.
    pub(crate) fn set_offer(&mut self, cluster: &ClusterId, offer: Option<&Offer>) {
        let nodes = || offer.into_iter().flat_map(|offer| offer.nodes.values());
        let (devices, bytes) = (nodes().map(|node| node.devices.len()).sum(), nodes().map(Node::bytes).sum());
        self.change(cluster, |sums| (sums.devices, sums.offer_bytes) = (devices, bytes));
    }

    /// Replaces a node, added (`before` is `None`) or removed (`after` is `None`) ones included.
    pub(crate) fn note_node(&mut self, cluster: &ClusterId, before: Option<&Node>, after: Option<&Node>) {
        let of = |node: Option<&Node>| node.map_or((0, 0), |node| (node.devices.len(), node.bytes()));
        let ((devices_before, bytes_before), (devices, bytes)) = (of(before), of(after));
        self.change(cluster, |sums| {
            sums.devices = sums.devices.saturating_sub(devices_before) + devices;
            sums.offer_bytes = sums.offer_bytes.saturating_sub(bytes_before) + bytes;
        });
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

    /// Bytes that a cluster's offer counts towards [`MAX_OFFER_BYTES`](crate::model::limits::MAX_OFFER_BYTES).
    pub(crate) fn offer_bytes(&self, cluster: &ClusterId) -> usize {
        self.derived.cluster_sums.0.get(cluster).map_or(0, |sums| sums.offer_bytes)
    }

    /// Thousandths of devices that a cluster borrows.
    #[must_use]
    pub fn borrowed_milli(&self, cluster: &ClusterId) -> u64 {
        self.derived.cluster_sums.0.get(cluster).map_or(0, |sums| sums.borrowed_milli)
    }
}
