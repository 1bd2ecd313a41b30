//! AMD's GPUs, whole. Source: ROCm/k8s-device-plugin, docs/user-guide/resource-allocation and its node labeller.

use comity_agent_kubernetes::gpu_resource::AMD_GPU;
use comity_proto::v1::{Device, Sharing};

use super::{GpuPool, exclusive};
use crate::observe::node_facts::NodeFacts;

/// Why partitions are not offered.
pub(super) const PARTITIONED: &str =
    "GPUs in partitions cannot be offered; set their compute partition to spx, and their memory to nps1";

/// Whether the resource counts partitions, as in "amd.com/cpx_nps4" (the naming strategy mixed).
pub(super) fn is_partition(resource: &str) -> bool {
    let mode = resource.strip_prefix("amd.com/").and_then(|mode| mode.split_once("_nps"));
    mode.is_some_and(|(compute, _)| matches!(compute, "spx" | "dpx" | "tpx" | "qpx" | "cpx"))
}

pub(super) fn pool(node: &NodeFacts, allocatable: u64, capacity: u64) -> Result<GpuPool, String> {
    let label = |key: &str| node.labels.get(&format!("amd.com/gpu.{key}")).map_or("", String::as_str);
    if label("product-name").is_empty() {
        return Err("the node has no label amd.com/gpu.product-name; install AMD's node labeller".to_owned());
    }
    let partition = label("compute-memory-partition");
    if !partition.is_empty() && !partition.starts_with("spx") {
        return Err(format!("{PARTITIONED}; they are in {partition}"));
    }
    // The labeller writes GiB as "192G".
    let memory_mib =
        label("vram").strip_suffix('G').and_then(|gib| gib.parse::<u64>().ok()).unwrap_or(0).saturating_mul(1_024);
    let model = Device {
        product_name: label("product-name").to_owned(),
        architecture: label("family").to_ascii_lowercase(),
        memory_mib,
        driver_version: label("driver-version").to_owned(),
        sharing: Some(Sharing { mode: Some(exclusive()) }),
        healthy: true,
        resource_name: AMD_GPU.to_owned(),
        ..Device::default()
    };
    Ok(GpuPool {
        counted_by: AMD_GPU.to_owned(),
        model,
        units_each: 1,
        units: allocatable,
        unhealthy: capacity - allocatable,
    })
}
