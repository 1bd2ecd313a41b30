//! What leases take of each donor's devices: derived from the leases, kept at hand for the scheduler.

use std::collections::{BTreeMap, VecDeque};

use litemap::LiteMap;

use crate::collections::interner::digest_of;
use crate::model::id::{ClusterId, NodeId};
use crate::model::inventory::NumaAmounts;
use crate::model::mig::Slots;
use crate::model::placement::{NodePlacement, Placement};

/// Changes that are kept for each donor: more than one plan places.
const MAX_CHANGES: usize = 1_024;

/// What is lent of one node.
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
    /// What of CPU and memory is lent of each NUMA node, to those who have it of certain ones.
    pub numa: LiteMap<u32, NumaAmounts>,
    /// Gbit/s lent, by RDMA network.
    pub rdma_gbits: LiteMap<String, u32>,
    /// Virtual functions lent, by resource.
    pub rdma_functions: LiteMap<String, u32>,
}

/// What is lent of one donor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct DonorOccupancy {
    nodes: BTreeMap<NodeId, NodeOccupancy>,
    /// Thousandths of devices in all.
    milli: u64,
    changes: Changes,
}

/// Nodes of one donor in the order in which they changed, as far as that is kept: what is lent of them, or what they
/// are.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    count: u64,
    recent: VecDeque<Change>,
}

/// A change of one node.
#[derive(Clone, Debug)]
pub struct Change {
    /// Which node.
    pub node: NodeId,
    /// The [fingerprint](NodeOccupancy::fingerprint) of what is lent of it then; `None`: the node itself is another.
    pub lent: Option<u64>,
}

/// How a state came about does not tell it from another.
impl PartialEq for Changes {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Changes {}

impl Changes {
    /// Changes so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Nodes that changed since there were `count` changes; `None` where that is not known any more.
    #[must_use]
    pub fn since(&self, count: u64) -> Option<impl Iterator<Item = &Change>> {
        let new = usize::try_from(self.count.checked_sub(count)?).ok()?;
        Some(self.recent.range(self.recent.len().checked_sub(new)?..))
    }

    fn note(&mut self, node: &NodeId, lent: Option<u64>) {
        if self.recent.len() >= MAX_CHANGES {
            self.recent.pop_front();
        }
        self.recent.push_back(Change { node: node.clone(), lent });
        self.count += 1;
    }

    /// Everything may have changed.
    fn note_all(&mut self) {
        self.recent.clear();
        self.count += 1;
    }
}

/// What is lent, by donor and node. A lease counts from its placement until its donor reported clean.
#[derive(Clone, Debug, Default)]
pub struct Occupancy {
    donors: BTreeMap<ClusterId, DonorOccupancy>,
}

/// A donor that lends nothing any more is like one that never did.
impl PartialEq for Occupancy {
    fn eq(&self, other: &Self) -> bool {
        let lends = |(_, donor): &(&ClusterId, &DonorOccupancy)| !donor.nodes.is_empty();
        self.donors.iter().filter(lends).eq(other.donors.iter().filter(lends))
    }
}

impl Eq for Occupancy {}

impl NodeOccupancy {
    /// A digest of the devices, CPU and main memory that are lent: who has counted in as much already need not look
    /// again.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let devices = self.devices.iter().map(|(&index, &milli)| u64::from(index) << 32 | u64::from(milli));
        digest_of([self.cpu_milli, self.memory_mib].into_iter().chain(devices))
    }

    /// Adds what `taken` takes, as instances of `profile` if it is of MIG.
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

    /// Gives back what `taken` took.
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
            reduce(&mut self.rdma_gbits, network, *taken);
        }
        for taken in taken.rdma_functions.values() {
            reduce(&mut self.rdma_functions, &taken.resource, taken.count);
        }
        for (index, share) in &taken.devices {
            reduce(&mut self.devices, index, share.milli);
            if let Some(profile) = profile {
                reduce(&mut self.profiles, &(*index, profile.to_owned()), share.units);
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
    /// What is lent of `node` of `donor`; `None` if nothing is.
    #[must_use]
    pub fn node(&self, donor: &ClusterId, node: &NodeId) -> Option<&NodeOccupancy> {
        self.donors.get(donor)?.nodes.get(node)
    }

    /// Nodes of `donor` of which something is lent, by id.
    pub fn lent_nodes(&self, donor: &ClusterId) -> impl Iterator<Item = &NodeId> {
        self.donors.get(donor).into_iter().flat_map(|donor| donor.nodes.keys())
    }

    /// `donor` made a whole offer: each of its nodes may be another.
    pub(crate) fn note_offer(&mut self, donor: &ClusterId) {
        self.donors.entry(donor.clone()).or_default().changes.note_all();
    }

    /// A node of `donor` is another one than before.
    pub(crate) fn note_node(&mut self, donor: &ClusterId, node: &NodeId) {
        self.donors.entry(donor.clone()).or_default().changes.note(node, None);
    }

    /// Which nodes of `donor` changed lately: something was lent of them or given back, or its offer was revised.
    #[must_use]
    pub fn changes(&self, donor: &ClusterId) -> &Changes {
        const NONE: &Changes = &Changes { count: 0, recent: VecDeque::new() };
        self.donors.get(donor).map_or(NONE, |donor| &donor.changes)
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
            let node = donor.nodes.entry(id.clone()).or_default();
            node.take(taken, placement.profile.as_deref());
            donor.changes.note(id, Some(node.fingerprint()));
        }
    }

    /// Gives back what `placement` took. Entries that become empty go, so that equal states are equal values.
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

fn reduce<K: Ord>(table: &mut LiteMap<K, u32>, key: &K, by: u32) {
    if let Some(amount) = table.get_mut(key) {
        *amount = amount.saturating_sub(by);
        if *amount == 0 {
            table.remove(key);
        }
    }
}
