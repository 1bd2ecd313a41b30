//! Placements: the nodes and devices chosen for a request.

use comity_types::{ClusterId, NodeId};
use litemap::LiteMap;
use serde::{Deserialize, Serialize};

use crate::model::inventory::NumaAmounts;
use crate::model::mig::Slots;

/// The part of one device that a placement takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceShare {
    /// Thousandths of the device.
    pub milli: u32,
    /// Number of the request's shares on this device.
    pub units: u32,
    /// MIG slots of the shares, if the donor reports slots.
    #[serde(default, skip_serializing_if = "Slots::is_empty")]
    pub slots: Slots,
}

impl DeviceShare {
    /// First slots of the MIG instances, lowest first; empty if slots are unknown.
    #[must_use]
    pub fn starts(&self) -> Vec<u8> {
        let size = self.slots.count().checked_div(self.units).and_then(|size| u8::try_from(size).ok());
        size.and_then(|size| self.slots.starts(size)).unwrap_or_default()
    }
}

/// Virtual functions that a placement takes on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenFunctions {
    /// The Kubernetes resource that counts them on the donor.
    pub resource: String,
    /// Number of functions.
    pub count: u32,
}

/// The part of one node that a placement takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePlacement {
    /// Devices by index.
    pub devices: LiteMap<u32, DeviceShare>,
    /// CPU in thousandths of a core.
    pub cpu_milli: u64,
    /// Main memory in MiB.
    pub memory_mib: u64,
    /// CPU and memory per NUMA node, by number; empty if any NUMA node will do.
    #[serde(default, skip_serializing_if = "LiteMap::is_empty")]
    pub numa: LiteMap<u32, NumaAmounts>,
    /// RDMA bandwidth in Gbit/s, by network.
    #[serde(default, skip_serializing_if = "LiteMap::is_empty")]
    pub rdma_gbits: LiteMap<String, u32>,
    /// Virtual functions that carry the bandwidth, by network; empty if the network is not lent by functions.
    #[serde(default, skip_serializing_if = "LiteMap::is_empty")]
    pub rdma_functions: LiteMap<String, TakenFunctions>,
}

/// Donor, nodes and devices chosen for a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Donor.
    pub donor: ClusterId,
    /// Nodes by id.
    pub nodes: LiteMap<NodeId, NodePlacement>,
    /// Generation of the offer that it is based on.
    pub offer_generation: u64,
    /// Name of the Kubernetes resource that counts the shares on the donor.
    pub resource_name: String,
    /// Amount of that resource for the donor's quota.
    pub resource_count: u64,
    /// MIG profile, if the shares are MIG instances.
    pub profile: Option<String>,
}

impl Placement {
    /// Thousandths of devices, in total.
    #[must_use]
    pub fn milli(&self) -> u64 {
        self.nodes.values().flat_map(|node| node.devices.values()).map(|share| u64::from(share.milli)).sum()
    }

    /// Number of the request's shares, in total.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.nodes.values().flat_map(|node| node.devices.values()).map(|share| u64::from(share.units)).sum()
    }

    /// CPU in total, in thousandths of a core.
    #[must_use]
    pub fn cpu_milli(&self) -> u64 {
        self.nodes.values().map(|node| node.cpu_milli).sum()
    }

    /// Main memory in total, in MiB.
    #[must_use]
    pub fn memory_mib(&self) -> u64 {
        self.nodes.values().map(|node| node.memory_mib).sum()
    }
}
