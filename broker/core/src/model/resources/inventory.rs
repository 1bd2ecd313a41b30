//! The inventory of clusters: devices, nodes, offers.

pub(crate) mod devices;
pub(crate) mod enforcement;
pub(crate) mod fault;
pub(crate) mod functions;
pub(crate) mod layout;
pub(crate) mod offer_size;
pub(crate) mod resource_name;
pub(crate) mod stored_offer;
pub(crate) mod wiring;

use std::collections::{BTreeMap, BTreeSet};

use comity_policy::DeviceFacts;
use comity_types::{ClusterId, Delivery, Isolation, NodeId, SharingMode, is_printable};
use litemap::LiteMap;
use serde::{Deserialize, Serialize};

use crate::model::data::DataSite;
use crate::model::limits::{MAX_AMOUNT, MAX_DEVICES_PER_NODE, MAX_NODES_PER_OFFER, WHOLE_MILLI};
use crate::model::mig::Board;
use crate::model::refusal::Refusal;

pub use devices::{DeviceIter, DeviceIterMut, DevicePool, Devices};
pub use enforcement::Enforcement;
pub use fault::{Fault, FaultClass};
pub use wiring::{DeviceWiring, NodeWiring, NumaAmounts, RdmaFunctions};

/// How a device may be shared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "mode")]
pub enum Sharing {
    /// One tenant at a time.
    Exclusive,
    /// Equal replicas by time-slicing.
    TimeSlicing {
        /// Replicas per device, 2 to 64.
        replicas: u32,
    },
    /// Equal shares by CUDA MPS.
    Mps {
        /// Shares per device, 2 to 48.
        shares: u32,
    },
    /// MIG instances by profile, as configured.
    Mig {
        /// Number of instances per profile.
        instances: BTreeMap<String, u32>,
        /// Positions of the instances; `None` if unknown, and then they are lent by count.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        layout: Option<MigLayout>,
    },
    /// Any fraction of the device (HAMi, GaiaGPU).
    Fractional {
        /// Smallest step in thousandths.
        step_milli: u32,
    },
}

/// Positions of a device's MIG instances.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MigLayout {
    /// Whether the donor repartitions slots that no used instance holds, as leases need them.
    pub repartition: bool,
    /// Existing instances, by first slot.
    #[serde(with = "layout::as_list")]
    pub instances: BTreeMap<u8, MigInstance>,
}

/// An existing instance.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MigInstance {
    /// Profile, by the name that the device reports.
    pub profile: String,
    /// Whether local work uses it.
    pub local: bool,
}

impl MigLayout {
    /// Number of instances per profile.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<String, u32> {
        self.instances.values().fold(BTreeMap::new(), |mut counts, instance| {
            *counts.entry(instance.profile.clone()).or_default() += 1;
            counts
        })
    }
}

impl Sharing {
    /// The mode alone.
    #[must_use]
    pub const fn mode(&self) -> SharingMode {
        match self {
            Self::Exclusive => SharingMode::Exclusive,
            Self::TimeSlicing { .. } => SharingMode::TimeSlicing,
            Self::Mps { .. } => SharingMode::Mps,
            Self::Mig { .. } => SharingMode::Mig,
            Self::Fractional { .. } => SharingMode::Fractional,
        }
    }

    /// The isolation of a share on such a device.
    #[must_use]
    pub const fn isolation(&self) -> Isolation {
        self.mode().isolation()
    }
}

/// One device, with the attribute names of Kubernetes DRA drivers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Device {
    /// Model, as in "NVIDIA-H100-80GB-HBM3".
    pub product_name: String,
    /// Architecture, as in "Hopper".
    pub architecture: String,
    /// Device memory in MiB.
    pub memory_mib: u64,
    /// CUDA compute capability, as in "9.0".
    pub cuda_compute_capability: String,
    /// Driver version.
    pub driver_version: String,
    /// How it may be shared.
    pub sharing: Sharing,
    /// Whether it may be lent.
    pub healthy: bool,
    /// Its fault, if one is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// Thousandths in local use, not counting Comity's leases.
    pub local_use_milli: u32,
    /// Name of the Kubernetes resource that counts it, as in "nvidia.com/gpu".
    pub resource_name: String,
    /// Its position in the node.
    pub wiring: DeviceWiring,
}

/// One node of an offer. A device's index is its position in the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Allocatable CPU in thousandths of a core.
    pub cpu_milli: u64,
    /// Allocatable main memory in MiB.
    pub memory_mib: u64,
    /// CPU requested by local work, in thousandths of a core.
    pub local_cpu_milli: u64,
    /// Main memory requested by local work, in MiB.
    pub local_memory_mib: u64,
    /// Devices by index.
    pub devices: Devices,
    /// Whether new leases may be placed here.
    pub schedulable: bool,
    /// Whether the node responds. If not, its work may have stopped, and nothing new is placed here.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub ready: bool,
    /// How its parts are connected.
    pub wiring: NodeWiring,
    /// Parts of a placement that the donor enforces here.
    #[serde(default, skip_serializing_if = "Enforcement::is_none")]
    pub enforces: Enforcement,
}

/// Nodes by id. A sorted array, because offers have up to 10,000 nodes and seldom change.
pub type NodeMap = LiteMap<NodeId, Node>;

/// The capacity that one cluster advertises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Strictly increasing per cluster, also after an offer was withdrawn.
    pub generation: u64,
    /// Nodes by id.
    pub nodes: NodeMap,
    /// Deliveries that the cluster supports now; never empty.
    pub deliveries: BTreeSet<Delivery>,
    /// Datasets that it holds.
    pub data: DataSite,
}

const fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_yes(value: &bool) -> bool {
    *value
}

impl Offer {
    /// Checks all bounds of the offer. The refusal names `cluster`.
    pub fn check(&self, cluster: &ClusterId) -> Result<(), Refusal> {
        if self.generation == 0 {
            return Err(Refusal::invalid("offer.generation", 0, "is not a generation", "count from 1"));
        }
        check_node_count(self.nodes.len(), cluster)?;
        if self.deliveries.is_empty() {
            return Err(Refusal::invalid(
                "offer.deliveries",
                0,
                "deliveries serve nobody",
                "name one that this cluster can serve, and no nodes while it can serve none",
            ));
        }
        self.data.check()?;
        for (id, node) in &self.nodes {
            node.check(id)?;
        }
        offer_size::check_offer_size(self.bytes(), cluster)
    }
}

/// Checks the number of nodes in an offer.
pub(crate) fn check_node_count(nodes: usize, cluster: &ClusterId) -> Result<(), Refusal> {
    if nodes > MAX_NODES_PER_OFFER {
        return Err(Refusal::invalid(
            "offer.nodes",
            nodes,
            &format!("nodes are more than cluster {cluster} may offer"),
            format!("offer at most {MAX_NODES_PER_OFFER} nodes"),
        ));
    }
    Ok(())
}

impl Node {
    pub(crate) fn check(&self, id: &NodeId) -> Result<(), Refusal> {
        let field = |name: &str| format!("offer.nodes[{id}].{name}");
        for (name, amount) in [
            ("cpu_milli", self.cpu_milli),
            ("memory_mib", self.memory_mib),
            ("local_cpu_milli", self.local_cpu_milli),
            ("local_memory_mib", self.local_memory_mib),
        ] {
            if amount > MAX_AMOUNT {
                return Err(Refusal::invalid(
                    &field(name),
                    amount,
                    "is too large",
                    format!("use at most {MAX_AMOUNT}"),
                ));
            }
        }
        if self.devices.len() > MAX_DEVICES_PER_NODE {
            return Err(Refusal::invalid(
                &field("devices"),
                self.devices.len(),
                "devices are too many for one node",
                format!("offer at most {MAX_DEVICES_PER_NODE}"),
            ));
        }
        self.wiring.check(self, &format!("offer.nodes[{id}]"))?;
        for (index, device) in self.devices.iter().enumerate() {
            let field = field(&format!("devices[{index}]"));
            device.check(&field)?;
            device.wiring.check(self, &field)?;
        }
        Ok(())
    }
}

impl Device {
    /// The attributes that policy selectors see.
    #[must_use]
    pub fn facts(&self) -> DeviceFacts {
        DeviceFacts {
            architecture: self.architecture.clone(),
            memory_mib: self.memory_mib,
            cuda_compute_capability: self.cuda_compute_capability.clone(),
            driver_version: self.driver_version.clone(),
            ..DeviceFacts::of_product(&self.product_name, self.sharing.mode())
        }
    }

    /// Whether the two differ only in use, health and wiring.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        self.product_name == other.product_name
            && self.architecture == other.architecture
            && self.memory_mib == other.memory_mib
            && self.cuda_compute_capability == other.cuda_compute_capability
            && self.driver_version == other.driver_version
            && self.sharing == other.sharing
            && self.resource_name == other.resource_name
    }

    /// The device's MIG board; `None` if its geometry is unknown.
    #[must_use]
    pub fn board(&self) -> Option<Board> {
        Board::of(&self.product_name, self.memory_mib)
    }

    /// The same device, healthy and without local use.
    #[must_use]
    pub fn idle(&self) -> Self {
        let mut idle = Self { local_use_milli: 0, healthy: true, fault: None, ..self.clone() };
        if let Sharing::Mig { layout: Some(layout), .. } = &mut idle.sharing {
            layout.instances.values_mut().for_each(|instance| instance.local = false);
        }
        idle
    }

    fn check(&self, field: &str) -> Result<(), Refusal> {
        if let Some(fault) = &self.fault {
            fault.check(self, field)?;
        }
        if self.local_use_milli > WHOLE_MILLI {
            return Err(Refusal::invalid(
                &format!("{field}.local_use_milli"),
                self.local_use_milli,
                "is more than a whole device",
                format!("use 0 to {WHOLE_MILLI}"),
            ));
        }
        if self.memory_mib > MAX_AMOUNT {
            return Err(Refusal::invalid(
                &format!("{field}.memory_mib"),
                self.memory_mib,
                "is too large",
                format!("use at most {MAX_AMOUNT}"),
            ));
        }
        if !resource_name::is_extended_resource(&self.resource_name) {
            return Err(Refusal::invalid(
                &format!("{field}.resource_name"),
                &self.resource_name,
                "is not the name of an extended resource",
                "use the resource that counts the devices, such as nvidia.com/gpu",
            ));
        }
        for (name, text) in [
            ("product_name", &self.product_name),
            ("architecture", &self.architecture),
            ("cuda_compute_capability", &self.cuda_compute_capability),
            ("driver_version", &self.driver_version),
        ] {
            if text.len() > 128 {
                return Err(Refusal::invalid(&format!("{field}.{name}"), text, "is too long", "use at most 128 bytes"));
            }
            if !is_printable(text) {
                let remedy = "send it as the driver names it, in visible characters";
                return Err(Refusal::invalid(
                    &format!("{field}.{name}"),
                    text,
                    "has control or invisible characters",
                    remedy,
                ));
            }
        }
        let (name, parts, low, high) = match &self.sharing {
            Sharing::Exclusive => return Ok(()),
            Sharing::TimeSlicing { replicas } => ("replicas", *replicas, 2, 64),
            Sharing::Mps { shares } => ("shares", *shares, 2, 48),
            Sharing::Fractional { step_milli } => ("step_milli", *step_milli, 1, WHOLE_MILLI),
            Sharing::Mig { instances, layout } => {
                if let Some(layout) = layout {
                    layout::check(self, instances, layout, &format!("{field}.sharing.mig"))?;
                }
                // A device with on-demand partitioning may have no instances yet.
                let least = u32::from(!layout.as_ref().is_some_and(|layout| layout.repartition));
                ("instances", instances.values().copied().fold(0, u32::saturating_add), least, 8)
            }
        };
        if !(low..=high).contains(&parts) {
            return Err(Refusal::invalid(
                &format!("{field}.sharing.{name}"),
                parts,
                "is out of range",
                format!("use {low} to {high}"),
            ));
        }
        Ok(())
    }
}
