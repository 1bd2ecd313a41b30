//! Nodes and devices of an offer.

use comity_proto::v1;
use serde::Serialize;

use super::absent::non_empty;
use super::wiring::{NumaAmounts, RdmaBandwidth};

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Salted hash of its name.
    pub id: String,
    /// Whether something new may be placed there.
    pub schedulable: bool,
    /// Whether it answers.
    pub ready: bool,
    /// Allocatable CPU in thousandths of a core.
    pub cpu_milli: u64,
    /// Allocatable memory.
    pub memory_mib: u64,
    /// CPU that local work requests.
    pub local_cpu_milli: u64,
    /// Memory that local work requests.
    pub local_memory_mib: u64,
    /// What each NUMA node has, where it is known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub numa: Vec<NumaAmounts>,
    /// Bandwidth for RDMA, by network.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rdma: Vec<RdmaBandwidth>,
    /// Devices.
    pub devices: Vec<Device>,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Index on its node.
    pub index: u32,
    /// Model.
    pub product_name: String,
    /// Architecture.
    pub architecture: String,
    /// Memory.
    pub memory_mib: u64,
    /// CUDA compute capability.
    pub cuda_compute_capability: String,
    /// Driver.
    pub driver_version: Option<String>,
    /// How it may be shared: `exclusive`, `time-slicing:4`, `mps:8`, `mig:1g.10gb*7`, `fractional`. Where the slots of
    /// MIG instances are known, they are listed by the first one: `mig:1g.10gb@0,3g.40gb@4`, with `repartition` at the
    /// end where others are made as leases need them.
    pub sharing: String,
    /// Whether it may be given out.
    pub healthy: bool,
    /// Until when it, or its node, is kept out because it failed too often.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quarantined_until_ms: Option<u64>,
    /// What is wrong with it, as in "lost: XID 79".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Thousandths that local work takes.
    pub local_use_milli: u32,
    /// Kubernetes resource name.
    pub resource_name: String,
    /// NUMA node that it is nearest to, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Clique of devices of its node that NVLink joins.
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
            devices: node.devices.into_iter().map(Device::from).collect(),
        }
    }
}

impl Node {
    /// With what is kept out of it.
    #[must_use]
    pub fn with_quarantines(mut self, quarantines: &[v1::Quarantine]) -> Self {
        for quarantine in quarantines.iter().filter(|quarantine| quarantine.node == self.id) {
            let hit = |device: &&mut Device| quarantine.device.is_none_or(|index| index == device.index);
            for device in self.devices.iter_mut().filter(hit) {
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
            sharing: sharing(device.sharing.and_then(|sharing| sharing.mode)),
            healthy: device.healthy,
            quarantined_until_ms: None,
            fault: device.fault.as_ref().map(fault),
            local_use_milli: device.local_use_milli,
            resource_name: device.resource_name,
            numa_node: device.numa_node,
            nvlink_clique: non_empty(device.nvlink_clique),
        }
    }
}

fn fault(fault: &v1::DeviceFault) -> String {
    let class = match fault.class() {
        v1::FaultClass::Application => "application",
        v1::FaultClass::Link => "link",
        v1::FaultClass::Lost => "lost",
        v1::FaultClass::Unspecified | v1::FaultClass::Degraded => "degraded",
    };
    if fault.message.is_empty() { class.to_owned() } else { format!("{class}: {}", fault.message) }
}

fn sharing(mode: Option<v1::sharing::Mode>) -> String {
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
    fn mig_is_told_by_number_or_by_first_slots() {
        use v1::sharing::{Mig, MigInstance, MigInstances, MigLayout, Mode};
        let instances = vec![MigInstances { profile: "1g.10gb".to_owned(), count: 7 }];
        assert_eq!(sharing(Some(Mode::Mig(Mig { instances, layout: None }))), "mig:1g.10gb*7");
        let of = |instances: &[(&str, u32)], repartition| {
            let instance =
                |&(profile, start): &(&str, u32)| MigInstance { profile: profile.to_owned(), start, local: false };
            let layout = MigLayout { instances: instances.iter().map(instance).collect(), repartition };
            sharing(Some(Mode::Mig(Mig { instances: Vec::new(), layout: Some(layout) })))
        };
        assert_eq!(of(&[("1g.10gb", 0), ("3g.40gb", 4)], false), "mig:1g.10gb@0,3g.40gb@4");
        assert_eq!(of(&[("3g.40gb", 4)], true), "mig:3g.40gb@4,repartition");
        assert_eq!(of(&[], true), "mig:repartition");
    }
}
