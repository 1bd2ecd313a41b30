//! Nodes and devices of an offer.

mod wiring;

use comity_proto::v1;
use serde::Serialize;

use super::value::non_empty;

pub use wiring::{NumaAmounts, RdmaBandwidth};

/// One node of an offer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Salted hash of its name.
    pub id: String,
    /// Whether new work may be placed on it: false while cordoned.
    pub schedulable: bool,
    /// Whether Kubernetes reports it as ready.
    pub ready: bool,
    /// Allocatable CPU in thousandths of a core.
    pub cpu_milli: u64,
    /// Allocatable memory in MiB.
    pub memory_mib: u64,
    /// CPU that local work requests, in thousandths of a core.
    pub local_cpu_milli: u64,
    /// Memory that local work requests, in MiB.
    pub local_memory_mib: u64,
    /// CPU and memory of each NUMA node, if known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub numa: Vec<NumaAmounts>,
    /// RDMA bandwidth by network.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rdma: Vec<RdmaBandwidth>,
    /// Parts of a placement that the donor enforces: `devices`, `numa`.
    pub enforces: Vec<&'static str>,
    /// GPUs of the node.
    pub devices: Vec<Device>,
}

/// One GPU of a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Index on its node.
    pub index: u32,
    /// Model name.
    pub product_name: String,
    /// GPU architecture, such as Hopper.
    pub architecture: String,
    /// Device memory in MiB.
    pub memory_mib: u64,
    /// CUDA compute capability.
    pub cuda_compute_capability: String,
    /// Driver version.
    pub driver_version: Option<String>,
    /// Sharing mode: `exclusive`, `time-slicing:4`, `mps:8`, `mig:1g.10gb*7` or `fractional`. If the memory slots of
    /// MIG instances are known, each instance shows its first slot, as in `mig:1g.10gb@0,3g.40gb@4`; a final
    /// `repartition` says that the donor creates other instances on demand.
    pub sharing: String,
    /// Isolation of a share of it: `none`, `memory` or `hardware`.
    pub isolation: &'static str,
    /// Whether it may be lent.
    pub healthy: bool,
    /// End of the quarantine that it, or its node, is in after repeated failures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quarantined_until_ms: Option<u64>,
    /// Its fault, such as "lost: XID 79".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Thousandths of it that local work uses.
    pub local_use_milli: u32,
    /// Kubernetes resource name.
    pub resource_name: String,
    /// Nearest NUMA node, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Group of devices of its node that NVLink connects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink_clique: Option<String>,
}

impl From<v1::Node> for Node {
    fn from(node: v1::Node) -> Self {
        Self {
            id: node.id,
            schedulable: node.schedulable,
            ready: !node.not_ready,
            cpu_milli: node.cpu_milli,
            memory_mib: node.memory_mib,
            local_cpu_milli: node.local_cpu_milli,
            local_memory_mib: node.local_memory_mib,
            numa: node.numa.into_iter().map(NumaAmounts::from).collect(),
            rdma: node.rdma.into_iter().map(RdmaBandwidth::from).collect(),
            enforces: enforced_parts(node.enforces.unwrap_or_default()),
            devices: node.devices.into_iter().map(Device::from).collect(),
        }
    }
}

/// `devices`, `numa`.
pub(super) fn enforced_parts(enforces: v1::Enforcement) -> Vec<&'static str> {
    [("devices", enforces.devices), ("numa", enforces.numa)]
        .into_iter()
        .filter(|(_, set)| *set)
        .map(|(part, _)| part)
        .collect()
}

impl Node {
    /// Marks the devices that are in quarantine.
    #[must_use]
    pub fn with_quarantines(mut self, quarantines: &[v1::Quarantine]) -> Self {
        for quarantine in quarantines.iter().filter(|quarantine| quarantine.node == self.id) {
            let affected = |device: &&mut Device| quarantine.device.is_none_or(|index| index == device.index);
            for device in self.devices.iter_mut().filter(affected) {
                device.quarantined_until_ms = device.quarantined_until_ms.max(Some(quarantine.until_ms));
            }
        }
        self
    }
}

impl From<v1::Device> for Device {
    fn from(device: v1::Device) -> Self {
        Self {
            index: device.index,
            product_name: device.product_name,
            architecture: device.architecture,
            memory_mib: device.memory_mib,
            cuda_compute_capability: device.cuda_compute_capability,
            driver_version: non_empty(device.driver_version),
            isolation: isolation_text(device.sharing.as_ref().and_then(|sharing| sharing.mode.as_ref())),
            sharing: sharing_text(device.sharing.and_then(|sharing| sharing.mode)),
            healthy: device.healthy,
            quarantined_until_ms: None,
            fault: device.fault.as_ref().map(fault_text),
            local_use_milli: device.local_use_milli,
            resource_name: device.resource_name,
            numa_node: device.numa_node,
            nvlink_clique: non_empty(device.nvlink_clique),
        }
    }
}

fn fault_text(fault: &v1::DeviceFault) -> String {
    let class = match fault.class() {
        v1::FaultClass::Application => "application",
        v1::FaultClass::Link => "link",
        v1::FaultClass::Lost => "lost",
        v1::FaultClass::Unspecified | v1::FaultClass::Degraded => "degraded",
    };
    if fault.message.is_empty() { class.to_owned() } else { format!("{class}: {}", fault.message) }
}

/// The level that the broker grants to shares of such a device.
fn isolation_text(mode: Option<&v1::sharing::Mode>) -> &'static str {
    use v1::sharing::Mode;
    match mode {
        Some(Mode::TimeSlicing(_)) => "none",
        Some(Mode::Mps(_) | Mode::Fractional(_)) => "memory",
        None | Some(Mode::Exclusive(_) | Mode::Mig(_)) => "hardware",
    }
}

fn sharing_text(mode: Option<v1::sharing::Mode>) -> String {
    use v1::sharing::Mode;
    match mode {
        None | Some(Mode::Exclusive(_)) => "exclusive".to_owned(),
        Some(Mode::TimeSlicing(slicing)) => format!("time-slicing:{}", slicing.replicas),
        Some(Mode::Mps(mps)) => format!("mps:{}", mps.shares),
        Some(Mode::Mig(v1::sharing::Mig { layout: Some(layout), .. })) => {
            let instances = layout.instances.iter().map(|i| format!("{}@{}", i.profile, i.start));
            let cut = layout.repartition.then(|| "repartition".to_owned());
            format!("mig:{}", instances.chain(cut).collect::<Vec<_>>().join(","))
        }
        Some(Mode::Mig(mig)) => {
            let instances: Vec<_> = mig.instances.iter().map(|i| format!("{}*{}", i.profile, i.count)).collect();
            format!("mig:{}", instances.join(","))
        }
        Some(Mode::Fractional(_)) => "fractional".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mig_instances_show_their_number_or_their_first_slots() {
        use v1::sharing::{Mig, MigInstance, MigInstances, MigLayout, Mode};
        let instances = vec![MigInstances { profile: "1g.10gb".to_owned(), count: 7 }];
        assert_eq!(sharing_text(Some(Mode::Mig(Mig { instances, layout: None }))), "mig:1g.10gb*7");
        let of = |instances: &[(&str, u32)], repartition| {
            let instance =
                |&(profile, start): &(&str, u32)| MigInstance { profile: profile.to_owned(), start, local: false };
            let layout = MigLayout { instances: instances.iter().map(instance).collect(), repartition };
            sharing_text(Some(Mode::Mig(Mig { instances: Vec::new(), layout: Some(layout) })))
        };
        assert_eq!(of(&[("1g.10gb", 0), ("3g.40gb", 4)], false), "mig:1g.10gb@0,3g.40gb@4");
        assert_eq!(of(&[("3g.40gb", 4)], true), "mig:3g.40gb@4,repartition");
        assert_eq!(of(&[], true), "mig:repartition");
    }
}
