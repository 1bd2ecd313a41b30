//! NUMA nodes and networks, of offers and placements.

use comity_proto::v1;
use serde::Serialize;

use super::absent::is_zero;

/// CPU and memory of one NUMA node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NumaAmounts {
    /// Its number.
    pub numa_node: u32,
    /// CPU in thousandths of a core.
    pub cpu_milli: u64,
    /// Memory in MiB.
    pub memory_mib: u64,
}

/// Bandwidth on one network.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RdmaBandwidth {
    /// Network.
    pub network: String,
    /// Gbit/s.
    pub gbits: u32,
    /// Kubernetes resource that counts the virtual functions which carry it; empty where it is not lent by functions.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource: String,
    /// How many functions these are.
    #[serde(skip_serializing_if = "is_zero")]
    pub functions: u32,
    /// How many of them local work has.
    #[serde(skip_serializing_if = "is_zero")]
    pub local_functions: u32,
}

impl From<v1::NumaAmounts> for NumaAmounts {
    fn from(has: v1::NumaAmounts) -> Self {
        Self { numa_node: has.numa_node, cpu_milli: has.cpu_milli, memory_mib: has.memory_mib }
    }
}

impl From<v1::RdmaBandwidth> for RdmaBandwidth {
    fn from(has: v1::RdmaBandwidth) -> Self {
        Self {
            network: has.network,
            gbits: has.gbits,
            resource: has.resource,
            functions: has.functions,
            local_functions: has.local_functions,
        }
    }
}
