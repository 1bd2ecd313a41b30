//! What leases take of each donor's devices: derived from the leases, kept at hand for the matcher.

use std::collections::BTreeMap;

use crate::id::{ClusterId, NodeId};
use crate::placement::{NodePlacement, Placement};

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

/// What is lent of one donor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct DonorOccupancy {
    nodes: BTreeMap<NodeId, NodeOccupancy>,
    /// Thousandths of devices in all.
    milli: u64,
}

/// What is lent, by donor and node. A lease counts from its placement until its donor reported clean.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    donors: BTreeMap<ClusterId, DonorOccupancy>,
}

impl NodeOccupancy {
    /// Adds what `taken` takes, as instances of `profile` if it is of MIG.
    pub(crate) fn take(&mut self, taken: &NodePlacement, profile: Option<&str>) {
        self.cpu_milli = self.cpu_milli.saturating_add(taken.cpu_milli);
        self.memory_mib = self.memory_mib.saturating_add(taken.memory_mib);
        for (&index, share) in &taken.devices {
            let milli = self.devices.entry(index).or_default();
            *milli = milli.saturating_add(share.milli);
            if let Some(profile) = profile {
                let instances = self.profiles.entry((index, profile.to_owned())).or_default();
                *instances = instances.saturating_add(share.units);
            }
        }
    }
}

impl Occupancy {
    /// What is lent of `node` of `donor`; `None` if nothing is.
    #[must_use]
    pub fn node(&self, donor: &ClusterId, node: &NodeId) -> Option<&NodeOccupancy> {
        self.donors.get(donor)?.nodes.get(node)
    }

    /// What is lent of the nodes of `donor`; nodes of which nothing is are not named.
    pub fn nodes(&self, donor: &ClusterId) -> impl Iterator<Item = (&NodeId, &NodeOccupancy)> {
        self.donors.get(donor).into_iter().flat_map(|donor| &donor.nodes)
    }

    /// Thousandths of devices that `donor` lends in all.
    #[must_use]
    pub fn lent_milli(&self, donor: &ClusterId) -> u64 {
        self.donors.get(donor).map_or(0, |donor| donor.milli)
    }

    /// Adds what `placement` takes.
    pub fn take(&mut self, placement: &Placement) {
        let donor = self.donors.entry(placement.donor.clone()).or_default();
        donor.milli = donor.milli.saturating_add(placement.milli());
        for (id, taken) in &placement.nodes {
            donor.nodes.entry(id.clone()).or_default().take(taken, placement.profile.as_deref());
        }
    }

    /// Gives back what `placement` took. Entries that become empty go, so that equal states are equal values.
    pub fn give_back(&mut self, placement: &Placement) {
        let Some(donor) = self.donors.get_mut(&placement.donor) else { return };
        donor.milli = donor.milli.saturating_sub(placement.milli());
        for (id, taken) in &placement.nodes {
            let Some(node) = donor.nodes.get_mut(id) else { continue };
            node.cpu_milli = node.cpu_milli.saturating_sub(taken.cpu_milli);
            node.memory_mib = node.memory_mib.saturating_sub(taken.memory_mib);
            for (index, share) in &taken.devices {
                reduce(&mut node.devices, index, share.milli);
                if let Some(profile) = &placement.profile {
                    reduce(&mut node.profiles, &(*index, profile.clone()), share.units);
                }
            }
            if *node == NodeOccupancy::default() {
                donor.nodes.remove(id);
            }
        }
        if *donor == DonorOccupancy::default() {
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
