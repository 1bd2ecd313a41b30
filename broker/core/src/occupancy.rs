//! What leases take of each donor's devices: derived from the leases, kept at hand for the matcher.

use std::collections::BTreeMap;

use crate::id::{ClusterId, NodeId};
use crate::placement::Placement;

/// What is lent of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeOccupancy {
    /// Thousandths lent, by device index.
    pub devices: BTreeMap<u32, u32>,
    /// MIG instances lent, by device index and profile.
    pub profiles: BTreeMap<(u32, String), u32>,
    /// CPU lent, in thousandths of a core.
    pub cpu_milli: u64,
    /// Main memory lent, in MiB.
    pub memory_mib: u64,
}

/// What is lent, by donor and node. A lease counts from its placement until its donor reported clean.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    donors: BTreeMap<ClusterId, BTreeMap<NodeId, NodeOccupancy>>,
}

impl Occupancy {
    /// What is lent of `node` of `donor`; `None` if nothing is.
    #[must_use]
    pub fn node(&self, donor: &ClusterId, node: &NodeId) -> Option<&NodeOccupancy> {
        self.donors.get(donor)?.get(node)
    }

    /// Thousandths of devices that `donor` lends in all.
    #[must_use]
    pub fn lent_milli(&self, donor: &ClusterId) -> u64 {
        self.donors
            .get(donor)
            .into_iter()
            .flat_map(BTreeMap::values)
            .flat_map(|node| node.devices.values())
            .map(|&milli| u64::from(milli))
            .sum()
    }

    /// Adds what `placement` takes.
    pub fn take(&mut self, placement: &Placement) {
        let donor = self.donors.entry(placement.donor.clone()).or_default();
        for (id, taken) in &placement.nodes {
            let node = donor.entry(id.clone()).or_default();
            node.cpu_milli = node.cpu_milli.saturating_add(taken.cpu_milli);
            node.memory_mib = node.memory_mib.saturating_add(taken.memory_mib);
            for (&index, share) in &taken.devices {
                let milli = node.devices.entry(index).or_default();
                *milli = milli.saturating_add(share.milli);
                if let Some(profile) = &placement.profile {
                    let instances = node.profiles.entry((index, profile.clone())).or_default();
                    *instances = instances.saturating_add(share.units);
                }
            }
        }
    }

    /// Gives back what `placement` took. Entries that become empty go, so that equal states are equal values.
    pub fn give_back(&mut self, placement: &Placement) {
        let Some(donor) = self.donors.get_mut(&placement.donor) else { return };
        for (id, taken) in &placement.nodes {
            let Some(node) = donor.get_mut(id) else { continue };
            node.cpu_milli = node.cpu_milli.saturating_sub(taken.cpu_milli);
            node.memory_mib = node.memory_mib.saturating_sub(taken.memory_mib);
            for (index, share) in &taken.devices {
                reduce(&mut node.devices, index, share.milli);
                if let Some(profile) = &placement.profile {
                    reduce(&mut node.profiles, &(*index, profile.clone()), share.units);
                }
            }
            if *node == NodeOccupancy::default() {
                donor.remove(id);
            }
        }
        if donor.is_empty() {
            self.donors.remove(&placement.donor);
        }
    }
}

fn reduce<K: Ord>(table: &mut BTreeMap<K, u32>, key: &K, by: u32) {
    if let Some(amount) = table.get_mut(key) {
        *amount = amount.saturating_sub(by);
        if *amount == 0 {
            table.remove(key);
        }
    }
}
