//! Capacity that leases take at each donor, derived from the leases for the scheduler.

use std::collections::{BTreeMap, VecDeque};

use comity_types::{ClusterId, NodeId};
use litemap::LiteMap;

use crate::collections::interner::digest_of;
use crate::model::inventory::NumaAmounts;
use crate::model::mig::Slots;
use crate::model::placement::{NodePlacement, Placement};

/// Changes kept per donor: more than one plan makes.
const MAX_CHANGES: usize = 1_024;

/// Lent capacity of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeOccupancy {
    /// Thousandths lent, by device index.
    pub devices: LiteMap<u32, u32>,
    /// MIG instances lent, by device index and profile.
    pub profiles: LiteMap<(u32, String), u32>,
    /// MIG slots lent, by device index; of devices whose slots are known.
    pub slots: LiteMap<u32, Slots>,
    /// CPU lent, in thousandths of a core.
    pub cpu_milli: u64,
    /// Main memory lent, in MiB.
    pub memory_mib: u64,
    /// CPU and memory lent per NUMA node, to leases that need NUMA alignment.
    pub numa: LiteMap<u32, NumaAmounts>,
    /// Gbit/s lent, by RDMA network.
    pub rdma_gbits: LiteMap<String, u32>,
    /// Virtual functions lent, by resource.
    pub rdma_functions: LiteMap<String, u32>,
}

/// Lent capacity of one donor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct DonorOccupancy {
    nodes: BTreeMap<NodeId, NodeOccupancy>,
    /// Thousandths of devices in all.
    milli: u64,
    changes: Changes,
}

/// A bounded log of changed nodes of one donor, in order: their lent capacity or the nodes themselves changed.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    count: u64,
    recent: VecDeque<NodeChange>,
}

/// A change of one node.
#[derive(Clone, Debug)]
pub struct NodeChange {
    /// The changed node.
    pub node: NodeId,
    /// The [fingerprint](NodeOccupancy::fingerprint) of the lent capacity after the change; `None` if the node itself
    /// changed.
    pub lent: Option<u64>,
}

/// States with different histories may be equal.
impl PartialEq for Changes {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Changes {}

impl Changes {
    /// Number of changes so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Nodes that changed after the first `count` changes; `None` if the log no longer reaches back so far.
    #[must_use]
    pub fn since(&self, count: u64) -> Option<impl Iterator<Item = &NodeChange>> {
        let new = usize::try_from(self.count.checked_sub(count)?).ok()?;
        Some(self.recent.range(self.recent.len().checked_sub(new)?..))
    }

    fn note(&mut self, node: &NodeId, lent: Option<u64>) {
        if self.recent.len() >= MAX_CHANGES {
            self.recent.pop_front();
        }
        self.recent.push_back(NodeChange { node: node.clone(), lent });
        self.count += 1;
    }

    /// Records that any node may have changed.
    fn note_all(&mut self) {
        self.recent.clear();
        self.count += 1;
    }
}

/// Lent capacity by donor and node. A lease counts from its placement until its donor reports clean.
#[derive(Clone, Debug, Default)]
pub struct Occupancy {
    donors: BTreeMap<ClusterId, DonorOccupancy>,
}

/// A donor that lends nothing equals one that never lent.
impl PartialEq for Occupancy {
    fn eq(&self, other: &Self) -> bool {
        let lends = |(_, donor): &(&ClusterId, &DonorOccupancy)| !donor.nodes.is_empty();
        self.donors.iter().filter(lends).eq(other.donors.iter().filter(lends))
    }
}

impl Eq for Occupancy {}

impl NodeOccupancy {
    /// A digest of the lent devices, CPU and main memory. A reader that saw the same fingerprint need not look again.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let devices = self.devices.iter().map(|(&index, &milli)| u64::from(index) << 32 | u64::from(milli));
        digest_of([self.cpu_milli, self.memory_mib].into_iter().chain(devices))
    }

    /// Adds `taken`, as instances of `profile` if that is set.
    pub(crate) fn take(&mut self, taken: &NodePlacement, profile: Option<&str>) {
        self.cpu_milli = self.cpu_milli.saturating_add(taken.cpu_milli);
        self.memory_mib = self.memory_mib.saturating_add(taken.memory_mib);
        for (&number, taken) in taken.numa.iter().filter(|(_, taken)| **taken != NumaAmounts::default()) {
            let amounts = self.numa.entry(number).or_default();
            *amounts = amounts.plus(*taken);
        }
        for (network, taken) in taken.rdma_gbits.iter().filter(|(_, taken)| **taken > 0) {
            let gbits = self.rdma_gbits.entry(network.clone()).or_default();
            *gbits = gbits.saturating_add(*taken);
        }
        for taken in taken.rdma_functions.values().filter(|taken| taken.count > 0) {
            let functions = self.rdma_functions.entry(taken.resource.clone()).or_default();
            *functions = functions.saturating_add(taken.count);
        }
        for (&index, share) in &taken.devices {
            let milli = self.devices.entry(index).or_default();
            *milli = milli.saturating_add(share.milli);
            if let Some(profile) = profile {
                let instances = self.profiles.entry((index, profile.to_owned())).or_default();
                *instances = instances.saturating_add(share.units);
            }
            if !share.slots.is_empty() {
                let slots = self.slots.entry(index).or_default();
                *slots = slots.with(share.slots);
            }
        }
    }

    /// Subtracts `taken`.
    pub(crate) fn give_back(&mut self, taken: &NodePlacement, profile: Option<&str>) {
        self.cpu_milli = self.cpu_milli.saturating_sub(taken.cpu_milli);
        self.memory_mib = self.memory_mib.saturating_sub(taken.memory_mib);
        for (number, taken) in &taken.numa {
            if let Some(amounts) = self.numa.get_mut(number) {
                *amounts = amounts.less(*taken);
                if *amounts == NumaAmounts::default() {
                    self.numa.remove(number);
                }
            }
        }
        for (network, taken) in &taken.rdma_gbits {
            subtract(&mut self.rdma_gbits, network, *taken);
        }
        for taken in taken.rdma_functions.values() {
            subtract(&mut self.rdma_functions, &taken.resource, taken.count);
        }
        for (index, share) in &taken.devices {
            subtract(&mut self.devices, index, share.milli);
            if let Some(profile) = profile {
                subtract(&mut self.profiles, &(*index, profile.to_owned()), share.units);
            }
            if let Some(slots) = self.slots.get_mut(index) {
                *slots = slots.without(share.slots);
                if slots.is_empty() {
                    self.slots.remove(index);
                }
            }
        }
    }
}

impl Occupancy {
    /// Lent capacity of a node; `None` if it lends nothing.
    #[must_use]
    pub fn node(&self, donor: &ClusterId, node: &NodeId) -> Option<&NodeOccupancy> {
        self.donors.get(donor)?.nodes.get(node)
    }

    /// Nodes of `donor` that lend something, by id.
    pub fn lent_nodes(&self, donor: &ClusterId) -> impl Iterator<Item = &NodeId> {
        self.donors.get(donor).into_iter().flat_map(|donor| donor.nodes.keys())
    }

    /// Records a whole new offer of `donor`: any node may have changed.
    pub(crate) fn note_offer(&mut self, donor: &ClusterId) {
        self.donors.entry(donor.clone()).or_default().changes.note_all();
    }

    /// Records that a node of `donor` itself changed.
    pub(crate) fn note_node(&mut self, donor: &ClusterId, node: &NodeId) {
        self.donors.entry(donor.clone()).or_default().changes.note(node, None);
    }

    /// The log of recent changes of `donor`'s nodes: leases took or returned capacity, or the offer was revised.
    #[must_use]
    pub fn changes(&self, donor: &ClusterId) -> &Changes {
        const NONE: &Changes = &Changes { count: 0, recent: VecDeque::new() };
        self.donors.get(donor).map_or(NONE, |donor| &donor.changes)
    }

    /// Thousandths of devices that `donor` lends in total.
    #[must_use]
    pub fn lent_milli(&self, donor: &ClusterId) -> u64 {
        self.donors.get(donor).map_or(0, |donor| donor.milli)
    }

    /// Adds the capacity that `placement` takes.
    pub fn take(&mut self, placement: &Placement) {
        let donor = self.donors.entry(placement.donor.clone()).or_default();
        donor.milli = donor.milli.saturating_add(placement.milli());
        for (id, taken) in &placement.nodes {
            let node = donor.nodes.entry(id.clone()).or_default();
            node.take(taken, placement.profile.as_deref());
            donor.changes.note(id, Some(node.fingerprint()));
        }
    }

    /// Subtracts the capacity that `placement` took. Removes empty entries, so that equal states compare equal.
    pub fn give_back(&mut self, placement: &Placement) {
        let Some(donor) = self.donors.get_mut(&placement.donor) else { return };
        donor.milli = donor.milli.saturating_sub(placement.milli());
        for (id, taken) in &placement.nodes {
            let Some(node) = donor.nodes.get_mut(id) else { continue };
            node.give_back(taken, placement.profile.as_deref());
            donor.changes.note(id, Some(node.fingerprint()));
            if *node == NodeOccupancy::default() {
                donor.nodes.remove(id);
            }
        }
    }
}

fn subtract<K: Ord>(table: &mut LiteMap<K, u32>, key: &K, by: u32) {
    if let Some(amount) = table.get_mut(key) {
        *amount = amount.saturating_sub(by);
        if *amount == 0 {
            table.remove(key);
        }
    }
}
