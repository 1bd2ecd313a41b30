//! Where a request is put: the witness that it fits.

use litemap::LiteMap;
use serde::{Deserialize, Serialize};

use crate::model::id::{ClusterId, NodeId};
use crate::model::inventory::NumaAmounts;
use crate::model::mig::Slots;

/// How much of one device a placement takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceShare {
    /// Thousandths of the device.
    pub milli: u32,
    /// Shares of the request that this holds.
    pub units: u32,
    /// MIG slots that they are, where the donor says which there are.
    #[serde(default, skip_serializing_if = "Slots::is_empty")]
    pub slots: Slots,
}

impl DeviceShare {
    /// First slots of the MIG instances that it is, lowest first; empty where slots are not known.
    #[must_use]
    pub fn starts(&self) -> Vec<u8> {
        let size = self.slots.count().checked_div(self.units).and_then(|size| u8::try_from(size).ok());
        size.and_then(|size| self.slots.starts(size)).unwrap_or_default()
    }
}

/// Virtual functions that a placement takes of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenFunctions {
    /// Kubernetes resource that counts them on the donor.
    pub resource: String,
    /// How many.
    pub count: u32,
}

/// What a placement takes of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePlacement {
    /// Devices by index.
    pub devices: LiteMap<u32, DeviceShare>,
    /// CPU in thousandths of a core.
    pub cpu_milli: u64,
    /// Main memory in MiB.
    pub memory_mib: u64,
    /// What of that each NUMA node gives, by its number; empty: it may come from any.
    #[serde(default, skip_serializing_if = "LiteMap::is_empty")]
    pub numa: LiteMap<u32, NumaAmounts>,
    /// Gbit/s of the node on an RDMA network, by its name.
    #[serde(default, skip_serializing_if = "LiteMap::is_empty")]
    pub rdma_gbits: LiteMap<String, u32>,
    /// Virtual functions that carry it, by the network's name; empty where it is not lent by functions.
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
    /// Generation of the offer it was made from.
    pub offer_generation: u64,
    /// Kubernetes resource name the shares are counted by on the donor.
    pub resource_name: String,
    /// How many of that resource the donor's quota must allow.
    pub resource_count: u64,
    /// MIG profile, if that is what the shares are.
    pub profile: Option<String>,
}

impl Placement {
    /// Thousandths of devices taken in all.
    #[must_use]
    pub fn milli(&self) -> u64 {
        self.nodes.values().flat_map(|node| node.devices.values()).map(|share| u64::from(share.milli)).sum()
    }

    /// Shares of the request held in all.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.nodes.values().flat_map(|node| node.devices.values()).map(|share| u64::from(share.units)).sum()
    }

    /// CPU taken in all, in thousandths of a core.
    #[must_use]
    pub fn cpu_milli(&self) -> u64 {
        self.nodes.values().map(|node| node.cpu_milli).sum()
    }

    /// Main memory taken in all, in MiB.
    #[must_use]
    pub fn memory_mib(&self) -> u64 {
        self.nodes.values().map(|node| node.memory_mib).sum()
    }
}
