//! What clusters have: devices, nodes, offers.

pub(crate) mod devices;
pub(crate) mod fault;
pub(crate) mod functions;
pub(crate) mod layout;
pub(crate) mod stored_offer;
pub(crate) mod wiring;

use std::collections::{BTreeMap, BTreeSet};

use litemap::LiteMap;
use serde::{Deserialize, Serialize};

use crate::model::data::DataSite;
use crate::model::demand::Delivery;
use crate::model::id::{ClusterId, NodeId};
use crate::model::limits::{MAX_AMOUNT, MAX_DEVICES_PER_NODE, MAX_NODES_PER_OFFER, WHOLE_MILLI};
use crate::model::mig::Board;
use crate::model::refusal::Refusal;

pub use devices::{DeviceIter, DeviceIterMut, DevicePool, Devices};
pub use fault::{Fault, FaultClass};
pub use wiring::{DeviceWiring, NodeWiring, NumaAmounts, RdmaFunctions};

/// How a device may be shared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "mode")]
pub enum Sharing {
    /// One tenant at a time.
    Exclusive,
    /// Equal replicas in time.
    TimeSlicing {
        /// Replicas per device, 2 to 64.
        replicas: u32,
    },
    /// Equal shares by CUDA MPS.
    Mps {
        /// Shares per device, 2 to 48.
        shares: u32,
    },
    /// MIG instances as configured, by profile.
    Mig {
        /// How many instances of each profile exist.
        instances: BTreeMap<String, u32>,
        /// Where they are; `None`: not known, and they are lent by their number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        layout: Option<MigLayout>,
    },
    /// Any part of the device (HAMi, GaiaGPU).
    Fractional {
        /// Smallest step in thousandths.
        step_milli: u32,
    },
}

/// Where the instances of a device are.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MigLayout {
    /// Whether the donor cuts again what no instance in use holds, as leases need it.
    pub repartition: bool,
    /// Instances that exist, by first slot.
    #[serde(with = "layout::as_list")]
    pub instances: BTreeMap<u8, MigInstance>,
}

/// One instance that exists.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MigInstance {
    /// Profile, by its reported name.
    pub profile: String,
    /// Whether local work holds it.
    pub local: bool,
}

impl MigLayout {
    /// How many instances of each profile it has.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<String, u32> {
        self.instances.values().fold(BTreeMap::new(), |mut counts, instance| {
            *counts.entry(instance.profile.clone()).or_default() += 1;
            counts
        })
    }
}

impl Sharing {
    /// The word policy selectors see as `device.sharing`.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::TimeSlicing { .. } => "time-slicing",
            Self::Mps { .. } => "mps",
            Self::Mig { .. } => "mig",
            Self::Fractional { .. } => "fractional",
        }
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
    /// Whether it may be given out.
    pub healthy: bool,
    /// What is wrong with it, if anything is known to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// Thousandths that local work takes; what Comity lent is not in it.
    pub local_use_milli: u32,
    /// Kubernetes resource name it is counted by, as in "nvidia.com/gpu".
    pub resource_name: String,
    /// Where it sits in its node.
    #[serde(default)]
    pub wiring: DeviceWiring,
}

/// One node of an offer. Devices are numbered by their place in the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Allocatable CPU in thousandths of a core.
    pub cpu_milli: u64,
    /// Allocatable main memory in MiB.
    pub memory_mib: u64,
    /// CPU that local work requests, in thousandths of a core.
    pub local_cpu_milli: u64,
    /// Main memory that local work requests, in MiB.
    pub local_memory_mib: u64,
    /// Devices by index.
    pub devices: Devices,
    /// False: nothing new is placed here.
    pub schedulable: bool,
    /// False: it does not answer, and what runs on it may have stopped; then nothing new is placed here either.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub ready: bool,
    /// How its parts are joined.
    #[serde(default)]
    pub wiring: NodeWiring,
}

/// Nodes by id: a sorted array, for offers have up to ten thousand of them and are seldom changed.
pub type NodeMap = LiteMap<NodeId, Node>;

/// What one cluster advertises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Strictly increasing per cluster.
    pub generation: u64,
    /// Nodes by id.
    pub nodes: NodeMap,
    /// How the cluster can deliver leases now; never empty.
    pub deliveries: BTreeSet<Delivery>,
    /// What data it holds.
    pub data: DataSite,
}

/// What a cluster can deliver that does not say: its agent knows nothing else.
#[must_use]
pub fn namespace_alone() -> BTreeSet<Delivery> {
    BTreeSet::from([Delivery::Namespace])
}

const fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_yes(value: &bool) -> bool {
    *value
}

/// The brand that NVML would report, read from the product's name: offers carry no brand of their own, and policy
/// tells consumer cards from data-centre ones by it. Names without one of these words are of the plain brand.
fn brand(product_name: &str) -> &'static str {
    const BRANDS: [(&str, &str); 6] = [
        ("GeForce", "GeForce"),
        ("TITAN", "Titan"),
        ("Quadro", "Quadro"),
        ("Tesla", "Tesla"),
        ("NVS", "NVS"),
        ("RTX", "NvidiaRTX"),
    ];
    BRANDS.iter().find(|(word, _)| product_name.contains(word)).map_or("Nvidia", |(_, brand)| brand)
}

impl Offer {
    /// Checks the bounds that every offer keeps. `cluster` is named in the refusal.
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
        Ok(())
    }
}

/// Checks that a cluster may offer so many nodes.
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
    /// What policy selectors see of it.
    #[must_use]
    pub fn facts(&self) -> comity_policy::DeviceFacts {
        comity_policy::DeviceFacts {
            product_name: self.product_name.clone(),
            architecture: self.architecture.clone(),
            memory_mib: self.memory_mib,
            cuda_compute_capability: self.cuda_compute_capability.clone(),
            driver_version: self.driver_version.clone(),
            brand: brand(&self.product_name).to_owned(),
            sharing: self.sharing.as_str().to_owned(),
            extra: BTreeMap::new(),
        }
    }

    /// Whether nothing but use, health and wiring tells them apart.
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

    /// The board it is, as MIG cuts it; `None` if its geometry is not known.
    #[must_use]
    pub fn board(&self) -> Option<Board> {
        Board::of(&self.product_name, self.memory_mib)
    }

    /// The same device with nothing of it in local use, and healthy.
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
        if self.resource_name.is_empty() || self.resource_name.len() > 253 {
            return Err(Refusal::invalid(
                &format!("{field}.resource_name"),
                &self.resource_name,
                "is not a Kubernetes resource name",
                "use a name such as nvidia.com/gpu",
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
                // A device that is cut as leases need it may have none yet.
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

#[cfg(test)]
mod tests {
    use super::brand;

    #[test]
    fn consumer_cards_are_told_from_data_centre_ones() {
        assert_eq!(brand("NVIDIA-GeForce-RTX-4090"), "GeForce");
        assert_eq!(brand("NVIDIA RTX A6000"), "NvidiaRTX");
        assert_eq!(brand("Tesla-T4"), "Tesla");
        assert_eq!(brand("NVIDIA-H100-80GB-HBM3"), "Nvidia");
    }
}
