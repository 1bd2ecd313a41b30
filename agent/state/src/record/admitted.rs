//! What the donor admitted, by its own count: the broker cannot change it afterwards.

use std::collections::BTreeMap;

use comity_agent_model::lease::placement::{DeviceShare, NodePlacement, Placement};
use comity_types::mig::Slots;
use serde::{Deserialize, Serialize};

/// The capacity of an admitted lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmittedCapacity {
    /// Kubernetes resource that counts its GPUs.
    pub resource_name: String,
    /// Amount of that resource.
    pub resource_count: u64,
    /// Profile of its MIG instances; empty without any.
    pub mig_profile: String,
    /// Its part of each node, by the node's id.
    pub nodes: BTreeMap<String, AdmittedPart>,
}

/// The part of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmittedPart {
    /// Parts of devices, by index.
    pub devices: BTreeMap<u32, AdmittedShare>,
    /// CPU in thousandths of a core.
    pub cpu_milli: u64,
    /// Main memory in MiB.
    pub memory_mib: u64,
    /// Virtual functions of RDMA networks, by resource.
    pub functions: BTreeMap<String, u32>,
}

/// The part of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmittedShare {
    /// Thousandths of the device.
    pub milli: u32,
    /// Its part of the lease's amount of the resource.
    pub units: u64,
    /// First slot of each MIG instance; empty if the device's slots are unknown.
    pub mig_starts: Vec<u8>,
    /// All slots of these instances.
    pub slots: Slots,
}

impl AdmittedCapacity {
    /// Thousandths of GPUs.
    #[must_use]
    pub fn milli(&self) -> u64 {
        self.nodes.values().map(AdmittedPart::milli).sum()
    }

    /// Whether it has MIG instances at known slots.
    #[must_use]
    pub fn has_mig_starts(&self) -> bool {
        self.nodes.values().flat_map(|part| part.devices.values()).any(|share| !share.mig_starts.is_empty())
    }

    /// Whether it is the capacity of this placement.
    #[must_use]
    pub fn is_of(&self, placement: &Placement) -> bool {
        let same_part = |node: &NodePlacement| {
            self.nodes.get(&node.node).is_some_and(|part| {
                let same_share = |share: &DeviceShare| {
                    let admitted = part.devices.get(&share.device);
                    admitted.is_some_and(|own| own.milli == share.milli && own.mig_starts == share.mig_starts)
                };
                part.devices.len() == node.devices.len()
                    && (part.cpu_milli, part.memory_mib) == (node.cpu_milli, node.memory_mib)
                    && part.functions == functions_of(node)
                    && node.devices.iter().all(same_share)
            })
        };
        self.resource_name == placement.resource_name
            && self.resource_count == placement.resource_count
            && self.mig_profile == placement.mig_profile
            && self.nodes.len() == placement.nodes.len()
            && placement.nodes.iter().all(same_part)
    }
}

impl AdmittedPart {
    /// Thousandths of GPUs.
    #[must_use]
    pub fn milli(&self) -> u64 {
        self.devices.values().map(|share| u64::from(share.milli)).sum()
    }

    /// Its part of the lease's amount of the resource.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.devices.values().fold(0, |sum: u64, share| sum.saturating_add(share.units))
    }
}

/// Virtual functions that a placement takes of one node, by resource.
#[must_use]
pub fn functions_of(node: &NodePlacement) -> BTreeMap<String, u32> {
    let mut all: BTreeMap<String, u32> = BTreeMap::new();
    for functions in &node.functions {
        let count = all.entry(functions.resource.clone()).or_default();
        *count = count.saturating_add(functions.count);
    }
    all
}
