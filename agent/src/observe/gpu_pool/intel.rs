//! Intel's GPUs: whole, or shared by time. Source: intel-device-plugins-for-kubernetes, cmd/gpu_plugin/README.md and
//! deployments/nfd/overlays/node-feature-rules.

use comity_agent_kubernetes::gpu_resource::{INTEL_I915, INTEL_XE};
use comity_proto::v1::{Device, Sharing, sharing};

use super::{GpuPool, TIME_SLICES, exclusive, narrow};
use crate::observe::node_facts::NodeFacts;

/// Memory in MiB by the label `gpu.intel.com/product`, which has no figure of its own. Source: Intel's product pages.
/// A Flex 140 card is two GPUs.
const MEMORY_MIB: [(&str, u64); 4] =
    [("Max_1550", 131_072), ("Max_1100", 49_152), ("Flex_170", 16_384), ("Flex_140", 6_144)];

/// The plugin's option `-shared-dev-num` multiplies the count, and no label says so. Node Feature Discovery counts the
/// devices themselves.
pub(super) fn pool(node: &NodeFacts, resource: &str, allocatable: u64, capacity: u64) -> Result<GpuPool, String> {
    let label = |key: &str| node.labels.get(&format!("gpu.intel.com/{key}")).map_or("", String::as_str);
    let product = label("product");
    let devices: u64 = label("device.count").parse().unwrap_or(0);
    if product.is_empty() || devices == 0 {
        return Err(
            "the node has no labels gpu.intel.com/product and gpu.intel.com/device.count; install Node Feature Discovery \
             with the rules of Intel's device plugins: without them whole GPUs cannot be distinguished from shared ones"
                .to_owned(),
        );
    }
    let other = if resource == INTEL_XE { INTEL_I915 } else { INTEL_XE };
    if node.capacity.get(other).is_some_and(|count| *count > 0) {
        return Err(format!(
            "the node has GPUs of two drivers, {INTEL_I915} and {INTEL_XE}, and its labels do not tell how many each"
        ));
    }
    let shares = capacity / devices;
    if !capacity.is_multiple_of(devices) || !(shares == 1 || TIME_SLICES.contains(&shares)) {
        return Err(format!(
            "the node counts {capacity} units of {devices} devices; set -shared-dev-num of Intel's plugin to a number from \
             1 to 64, or wait until the labels follow the plugin"
        ));
    }
    let mode = if shares == 1 {
        exclusive()
    } else {
        sharing::Mode::TimeSlicing(sharing::TimeSlicing { replicas: narrow(shares) })
    };
    let model = Device {
        product_name: product.to_owned(),
        architecture: label("family").to_owned(),
        memory_mib: MEMORY_MIB.iter().find(|(name, _)| *name == product).map_or(0, |(_, memory)| *memory),
        sharing: Some(Sharing { mode: Some(mode) }),
        healthy: true,
        resource_name: resource.to_owned(),
        ..Device::default()
    };
    Ok(GpuPool {
        counted_by: resource.to_owned(),
        model,
        units_each: shares,
        units: allocatable / shares * shares,
        unhealthy: devices - allocatable / shares,
    })
}
