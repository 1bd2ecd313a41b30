//! How the parts of a node are connected: NUMA nodes, NVLink, RDMA. Any of it may be unknown; a request that needs an
//! unknown part is not placed there.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::inventory::{Device, Node};
use crate::model::limits::{MAX_AMOUNT, MAX_NAME_BYTES, MAX_NETWORKS_PER_NODE, MAX_NUMA_NODES, MAX_RDMA_GBITS};
use crate::model::refusal::Refusal;

/// CPU and main memory of one NUMA node, or a part of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaAmounts {
    /// CPU in thousandths of a core.
    pub cpu_milli: u64,
    /// Main memory in MiB.
    pub memory_mib: u64,
}

/// Wiring of a node, apart from its devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeWiring {
    /// Allocatable resources of each NUMA node, by number; empty if unknown.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub numa: BTreeMap<u32, NumaAmounts>,
    /// RDMA bandwidth in Gbit/s per network. All nodes of a network use the same name for it. Empty if unknown.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rdma_gbits: BTreeMap<String, u32>,
    /// Virtual functions by network, for networks lent by virtual functions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rdma_functions: BTreeMap<String, RdmaFunctions>,
}

/// Wiring of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceWiring {
    /// The nearest NUMA node; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// The NVLink clique of the device: devices of one node with equal names form a clique. `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink: Option<String>,
}

impl NumaAmounts {
    /// The amounts times `count`.
    #[must_use]
    pub fn times(self, count: u32) -> Self {
        let count = u64::from(count);
        Self { cpu_milli: self.cpu_milli.saturating_mul(count), memory_mib: self.memory_mib.saturating_mul(count) }
    }

    /// Sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            cpu_milli: self.cpu_milli.saturating_add(other.cpu_milli),
            memory_mib: self.memory_mib.saturating_add(other.memory_mib),
        }
    }

    /// Difference of both; saturates at zero.
    #[must_use]
    pub fn less(self, other: Self) -> Self {
        Self {
            cpu_milli: self.cpu_milli.saturating_sub(other.cpu_milli),
            memory_mib: self.memory_mib.saturating_sub(other.memory_mib),
        }
    }

    /// How often `each` fits; `u32::MAX` if `each` is zero.
    #[must_use]
    pub fn holds(self, each: Self) -> u32 {
        let times = |whole: u64, part: u64| {
            whole.checked_div(part).map_or(u32::MAX, |times| u32::try_from(times).unwrap_or(u32::MAX))
        };
        times(self.cpu_milli, each.cpu_milli).min(times(self.memory_mib, each.memory_mib))
    }
}

impl NodeWiring {
    pub(crate) fn check(&self, node: &Node, field: &str) -> Result<(), Refusal> {
        if self.numa.len() > MAX_NUMA_NODES {
            return Err(Refusal::invalid(
                &format!("{field}.numa"),
                self.numa.len(),
                "NUMA nodes are too many for one node",
                format!("name at most {MAX_NUMA_NODES}"),
            ));
        }
        let mut all = NumaAmounts::default();
        for (number, has) in &self.numa {
            for (name, amount) in [("cpu_milli", has.cpu_milli), ("memory_mib", has.memory_mib)] {
                if amount > MAX_AMOUNT {
                    let field = format!("{field}.numa[{number}].{name}");
                    return Err(Refusal::invalid(&field, amount, "is too large", format!("use at most {MAX_AMOUNT}")));
                }
            }
            all = all.plus(*has);
        }
        for (name, sum, whole) in
            [("cpu_milli", all.cpu_milli, node.cpu_milli), ("memory_mib", all.memory_mib, node.memory_mib)]
        {
            if sum > whole {
                return Err(Refusal::invalid(
                    &format!("{field}.numa"),
                    sum,
                    &format!("is the sum of {name}, and the node has {whole}"),
                    "give what of each NUMA node pods can have",
                ));
            }
        }
        if self.rdma_gbits.len() > MAX_NETWORKS_PER_NODE {
            return Err(Refusal::invalid(
                &format!("{field}.rdma"),
                self.rdma_gbits.len(),
                "networks are too many for one node",
                format!("name at most {MAX_NETWORKS_PER_NODE}"),
            ));
        }
        for (network, &gbits) in &self.rdma_gbits {
            check_name(network, &format!("{field}.rdma"))?;
            if gbits == 0 || gbits > MAX_RDMA_GBITS {
                return Err(Refusal::invalid(
                    &format!("{field}.rdma[{network}].gbits"),
                    gbits,
                    "is out of range",
                    format!("use 1 to {MAX_RDMA_GBITS} Gbit/s"),
                ));
            }
        }
        self.check_functions(field)
    }
}

impl DeviceWiring {
    pub(crate) fn check(&self, node: &Node, field: &str) -> Result<(), Refusal> {
        if let Some(numa) = self.numa.filter(|numa| !node.wiring.numa.contains_key(numa)) {
            return Err(Refusal::invalid(
                &format!("{field}.numa"),
                numa,
                "is no NUMA node of this node",
                "list the node's NUMA nodes with the CPU and memory of each",
            ));
        }
        self.nvlink.as_ref().map_or(Ok(()), |clique| check_name(clique, &format!("{field}.nvlink")))
    }
}

impl Device {
    /// The same device with this wiring.
    #[must_use]
    pub fn wired(self, numa: Option<u32>, nvlink: Option<&str>) -> Self {
        Self { wiring: DeviceWiring { numa, nvlink: nvlink.map(str::to_owned) }, ..self }
    }
}

fn check_name(name: &str, field: &str) -> Result<(), Refusal> {
    if !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.chars().all(|c| c.is_ascii_graphic()) {
        return Ok(());
    }
    Err(Refusal::invalid(
        field,
        name,
        "is not a name",
        format!("use 1 to {MAX_NAME_BYTES} visible ASCII characters without spaces"),
    ))
}

/// A node's virtual functions for one network. Together they carry the node's bandwidth on that network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaFunctions {
    /// The Kubernetes resource that counts them, as in "nvidia.com/ib_vf".
    pub resource: String,
    /// Number of functions on this node; at least 1.
    pub count: u32,
    /// Number of functions in local use.
    pub local: u32,
}
