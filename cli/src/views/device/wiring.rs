//! NUMA nodes and RDMA networks of offers and placements.

use comity_proto::v1;
use serde::Serialize;

use super::super::value::is_zero;

/// CPU and memory of one NUMA node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NumaAmounts {
    /// Number of the NUMA node.
    pub numa_node: u32,
    /// CPU in thousandths of a core.
    pub cpu_milli: u64,
    /// Memory in MiB.
    pub memory_mib: u64,
}

/// RDMA bandwidth on one network.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RdmaBandwidth {
    /// Name of the network.
    pub network: String,
    /// Bandwidth in Gbit/s.
    pub gbits: u32,
    /// Kubernetes resource of the virtual functions that carry it; empty if it is not lent by function.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource: String,
    /// Number of virtual functions.
    #[serde(skip_serializing_if = "is_zero")]
    pub functions: u32,
    /// Number of them that local work uses.
    #[serde(skip_serializing_if = "is_zero")]
    pub local_functions: u32,
}

impl From<v1::NumaAmounts> for NumaAmounts {
    fn from(amounts: v1::NumaAmounts) -> Self {
        Self { numa_node: amounts.numa_node, cpu_milli: amounts.cpu_milli, memory_mib: amounts.memory_mib }
    }
}

impl From<v1::RdmaBandwidth> for RdmaBandwidth {
    fn from(amounts: v1::RdmaBandwidth) -> Self {
        Self {
            network: amounts.network,
            gbits: amounts.gbits,
            resource: amounts.resource,
            functions: amounts.functions,
            local_functions: amounts.local_functions,
        }
    }
}
