//! The GPUs of a node, from labels and counts: one pool for each Kubernetes resource that counts GPUs.
//!
//! Counts come from `status.allocatable`, kinds from the labels of GPU Feature Discovery (GFD), of AMD's labeller, or of
//! Node Feature Discovery with Intel's rules. Source: NVIDIA/k8s-device-plugin, docs/gpu-feature-discovery and internal/lm.

mod amd;
mod intel;

use comity_agent_kubernetes::gpu_resource::{
    AMD_GPU, INTEL_I915, INTEL_XE, NVIDIA_GPU, NVIDIA_GPU_SHARED, NVIDIA_MIG, NVIDIA_MIG_PREFIX,
};
use comity_proto::v1::{Device, Sharing, sharing};

use super::node_facts::NodeFacts;
use super::not_offered::NotOffered;

/// Compute slices of a device that can be cut by MIG.
const MIG_SLICES: u64 = 7;
/// Bounds that an offer keeps for shared devices.
const TIME_SLICES: std::ops::RangeInclusive<u64> = 2..=64;
const MPS_SHARES: std::ops::RangeInclusive<u64> = 2..=48;
const TIME_SLICED_MIG: &str = "MIG instances that are time-sliced cannot be offered; turn off time-slicing for them";

/// Devices of one kind that one resource counts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GpuPool {
    /// The resource that pods request.
    pub(crate) counted_by: String,
    /// Template of the devices: everything but index, health and use.
    pub(crate) model: Device,
    /// Units of the resource that each healthy device holds; for MIG the last one may hold fewer.
    pub(crate) units_each: u64,
    /// Units allocatable to pods.
    pub(crate) units: u64,
    /// Number of unhealthy devices.
    pub(crate) unhealthy: u64,
}

/// The pools of a node in a stable order, and the resources that cannot be offered.
pub(crate) fn pools(node: &NodeFacts) -> (Vec<GpuPool>, Vec<NotOffered>) {
    let (mut pools, mut not_offered) = (Vec::new(), Vec::new());
    for (resource, &capacity) in &node.capacity {
        let allocatable = node.allocatable.get(resource).copied().unwrap_or(0);
        match pool(node, resource, allocatable, capacity.max(allocatable)) {
            Ok(Some(pool)) if pool.units > 0 || pool.unhealthy > 0 => pools.push(pool),
            Ok(_) => {}
            Err(reason) => not_offered.push(NotOffered { node: node.name.clone(), resource: resource.clone(), reason }),
        }
    }
    (pools, not_offered)
}

/// `None` for a resource that counts no GPUs, or that the device plugin no longer serves.
fn pool(node: &NodeFacts, resource: &str, allocatable: u64, capacity: u64) -> Result<Option<GpuPool>, String> {
    if capacity == 0 {
        return Ok(None);
    }
    match resource {
        NVIDIA_GPU | NVIDIA_GPU_SHARED => nvidia(node, resource, allocatable, capacity),
        AMD_GPU => amd::pool(node, allocatable, capacity).map(Some),
        INTEL_I915 | INTEL_XE => intel::pool(node, resource, allocatable, capacity).map(Some),
        _ => match resource.strip_prefix(NVIDIA_MIG_PREFIX) {
            Some(profile) => mig_mixed(node, resource, profile, allocatable),
            None if amd::is_partition(resource) => Err(amd::PARTITIONED.to_owned()),
            None => Ok(None),
        },
    }
}

fn nvidia(node: &NodeFacts, resource: &str, allocatable: u64, capacity: u64) -> Result<Option<GpuPool>, String> {
    if node.hami.is_some() {
        // The resource counts places of containers, not devices: see hami_devices.
        return Ok(None);
    }
    let label = |key: &str| node.labels.get(key).map_or("", String::as_str);
    let product = label("nvidia.com/gpu.product");
    if product.is_empty() {
        return Err(
            "the node has no label nvidia.com/gpu.product; install GPU Feature Discovery: without it whole GPUs \
             cannot be distinguished from shared ones"
                .to_owned(),
        );
    }
    let replicas = label("nvidia.com/gpu.replicas").parse().unwrap_or(1_u64);
    if replicas == 0 && label("nvidia.com/mig.strategy") == "mixed" {
        // Every GPU is partitioned. The kubelet remembers the name for five minutes.
        return no_longer_served(allocatable);
    }
    let unshared = product.strip_suffix("-SHARED").unwrap_or(product);
    let model = nvidia_model(node, unshared, resource)?;
    if replicas == 0 {
        return Err(
            "the GPUs are in MIG mode, but the device plugin's MIG strategy is none and offers each as whole; \
                    set the strategy to single or mixed, or turn MIG mode off"
                .to_owned(),
        );
    }
    if resource != served_name(product, label("nvidia.com/gpu.sharing-strategy"), replicas) {
        return no_longer_served(allocatable);
    }
    check_count(label("nvidia.com/gpu.count").parse().ok(), replicas, capacity)?;
    if let Some((_, profile)) = unshared.rsplit_once("-MIG-") {
        if replicas > 1 {
            return Err(TIME_SLICED_MIG.to_owned());
        }
        return mig(model, resource, &profile_of_name(profile), allocatable).map(Some);
    }
    shared_or_whole(model, label("nvidia.com/gpu.sharing-strategy"), replicas, allocatable, capacity).map(Some)
}

/// The resource by which the device plugin counts GPUs with these labels. Where it renames shared GPUs, GPU Feature
/// Discovery leaves the suffix of the product out.
fn served_name(product: &str, strategy: &str, replicas: u64) -> &'static str {
    let is_shared = replicas > 1 && matches!(strategy, "time-slicing" | "mps");
    if is_shared && !product.ends_with("-SHARED") { NVIDIA_GPU_SHARED } else { NVIDIA_GPU }
}

/// A resource that the device plugin served under an earlier configuration: the kubelet keeps its capacity for five
/// minutes, with nothing allocatable. Source: kubernetes, pkg/kubelet/cm/devicemanager, endpointStopGracePeriod.
fn no_longer_served(allocatable: u64) -> Result<Option<GpuPool>, String> {
    if allocatable == 0 {
        return Ok(None);
    }
    Err("GPU Feature Discovery's labels describe another resource; wait until they follow the device plugin".to_owned())
}

/// Compares the capacity of a resource with the devices that the labels describe. A node with MIG devices counts those
/// in `count`, too, so that fewer units are right.
fn check_count(count: Option<u64>, replicas: u64, capacity: u64) -> Result<(), String> {
    let Some(described) = count.map(|count| count.saturating_mul(replicas)) else { return Ok(()) };
    if capacity > described {
        return Err(format!(
            "the node counts {capacity} units, but GPU Feature Discovery's labels describe {described}: the node has \
             several kinds of GPU, or its configuration is changing; wait, or use one kind of GPU for each node"
        ));
    }
    if !capacity.is_multiple_of(replicas) {
        return Err(format!(
            "the node counts {capacity} units, which is not a multiple of {replicas} replicas: only some of its GPUs \
             are shared, and labels do not tell which; share all of them, or none"
        ));
    }
    Ok(())
}

fn shared_or_whole(
    mut model: Device,
    strategy: &str,
    replicas: u64,
    allocatable: u64,
    capacity: u64,
) -> Result<GpuPool, String> {
    let shared = match strategy {
        "time-slicing" if TIME_SLICES.contains(&replicas) => {
            Some(sharing::Mode::TimeSlicing(sharing::TimeSlicing { replicas: narrow(replicas) }))
        }
        "mps" if MPS_SHARES.contains(&replicas) => Some(sharing::Mode::Mps(sharing::Mps { shares: narrow(replicas) })),
        "" | "none" if replicas <= 1 => None,
        // One replica is not shared, whatever the strategy is called.
        "time-slicing" | "mps" if replicas == 1 => None,
        strategy => {
            return Err(format!(
                "sharing strategy {strategy:?} with {replicas} replicas cannot be offered; use 2 to 64 time slices or \
                 2 to 48 MPS shares"
            ));
        }
    };
    let units_each = if shared.is_some() { replicas } else { 1 };
    model.sharing = Some(Sharing { mode: Some(shared.unwrap_or_else(exclusive)) });
    Ok(GpuPool {
        counted_by: model.resource_name.clone(),
        model,
        units_each,
        // No device is partly unhealthy: all slices of a device are healthy, or none.
        units: allocatable / units_each * units_each,
        unhealthy: capacity / units_each - allocatable / units_each,
    })
}

/// Properties that all devices of the node share.
pub(super) fn nvidia_model(node: &NodeFacts, product: &str, resource: &str) -> Result<Device, String> {
    let label = |key: &str| node.labels.get(key).map_or("", String::as_str);
    if product.ends_with("-MIG-INVALID") {
        return Err(
            "GPU Feature Discovery reports an invalid MIG layout; make it the same on all GPUs of the node, or \
            use the mixed strategy"
                .to_owned(),
        );
    }
    if let state @ ("pending" | "rebooting" | "failed") = label("nvidia.com/mig.config.state") {
        return Err(format!("the MIG layout is being changed: nvidia.com/mig.config.state is {state:?}"));
    }
    board_model(node, product, resource)
}

/// The same while the MIG layout may be changing.
pub(super) fn board_model(node: &NodeFacts, product: &str, resource: &str) -> Result<Device, String> {
    let label = |key: &str| node.labels.get(key).map_or("", String::as_str);
    match label("nvidia.com/gpu-driver-upgrade-state") {
        "" | "upgrade-done" => {}
        state => return Err(format!("the driver is being upgraded: nvidia.com/gpu-driver-upgrade-state is {state:?}")),
    }
    let dotted = |keys: &[&str]| {
        let parts: Vec<&str> = keys.iter().map(|key| label(key)).collect();
        if parts.iter().any(|part| part.is_empty()) { String::new() } else { parts.join(".") }
    };
    let driver = match label("nvidia.com/cuda.driver-version.full") {
        "" => dotted(&["nvidia.com/cuda.driver.major", "nvidia.com/cuda.driver.minor", "nvidia.com/cuda.driver.rev"]),
        full => full.to_owned(),
    };
    Ok(Device {
        index: 0,
        product_name: product.rsplit_once("-MIG-").map_or(product, |(board, _)| board).to_owned(),
        architecture: architecture(label("nvidia.com/gpu.family")),
        memory_mib: label("nvidia.com/gpu.memory").parse().unwrap_or(0),
        cuda_compute_capability: dotted(&["nvidia.com/gpu.compute.major", "nvidia.com/gpu.compute.minor"]),
        driver_version: driver,
        sharing: None,
        healthy: true,
        local_use_milli: 0,
        resource_name: resource.to_owned(),
        numa_node: None,
        nvlink_clique: label("nvidia.com/gpu.clique").to_owned(),
        fault: None,
    })
}

/// One spelling for all sources: GPU Feature Discovery writes "ada-lovelace", while NVIDIA's DRA driver, whose spelling
/// policy uses, writes "Ada Lovelace".
pub(super) fn architecture(family: &str) -> String {
    let capital = |word: &str| {
        let mut letters = word.chars();
        letters.next().map(|first| first.to_ascii_uppercase().to_string() + letters.as_str()).unwrap_or_default()
    };
    family.split('-').map(capital).collect::<Vec<_>>().join(" ")
}

/// The mixed strategy: one resource and one family of labels for each profile.
///
/// The device plugin counts instances with media extensions (`+me`) by the name of the profile without them, while GPU
/// Feature Discovery labels them apart (both of k8s-device-plugin 0.19).
fn mig_mixed(node: &NodeFacts, resource: &str, profile: &str, allocatable: u64) -> Result<Option<GpuPool>, String> {
    let labels_of = |resource: &str| node.labels.contains_key(&format!("{resource}.product"));
    let with_media = format!("{resource}.me");
    let (labelled, profile) = match (labels_of(resource), labels_of(&with_media)) {
        (false, true) => (with_media.as_str(), profile_of_name(&format!("{profile}.me"))),
        _ => (resource, profile_of_name(profile)),
    };
    let label = |key: &str| node.labels.get(&format!("{labelled}.{key}")).map_or("", String::as_str);
    if profile.ends_with(".shared") || label("replicas").parse().unwrap_or(1_u64) > 1 {
        return Err(TIME_SLICED_MIG.to_owned());
    }
    if allocatable == 0 {
        // The instances were removed, or are all unhealthy, which nobody tells apart.
        return Ok(None);
    }
    if label("product").is_empty() {
        return Err(format!(
            "the node has no label {resource}.product; wait until GPU Feature Discovery follows the device plugin, \
             with the MIG strategy mixed"
        ));
    }
    let mut model = nvidia_model(node, label("product"), NVIDIA_MIG)?;
    model.memory_mib = label("memory").parse().unwrap_or(0);
    mig(model, resource, &profile, allocatable).map(Some)
}

/// MIG instances of one profile, on as few devices as could hold them. No label shows the real device of an instance,
/// and nothing depends on it. Instances of different profiles are never on one device, so that local use of one profile
/// does not reduce another.
fn mig(mut model: Device, counted_by: &str, profile: &str, instances: u64) -> Result<GpuPool, String> {
    let slices = compute_slices(profile).ok_or_else(|| format!("{profile:?} is not a MIG profile such as 1g.10gb"))?;
    let units_each = (MIG_SLICES / slices).max(1);
    model.sharing = Some(mig_sharing(profile, units_each));
    Ok(GpuPool { counted_by: counted_by.to_owned(), model, units_each, units: instances, unhealthy: 0 })
}

/// Sharing of a device with a number of instances of one profile.
pub(crate) fn mig_sharing(profile: &str, count: u64) -> Sharing {
    let instances = vec![sharing::MigInstances { profile: profile.to_owned(), count: narrow(count) }];
    Sharing { mode: Some(sharing::Mode::Mig(sharing::Mig { instances, layout: None })) }
}

/// 1 for "1g.10gb" and "1g.10gb+me", 3 for "3g.40gb", 1 for "1c.3g.20gb", a compute instance.
fn compute_slices(profile: &str) -> Option<u64> {
    let (first, rest) = profile.split_once('.')?;
    if let Some(instances) = first.strip_suffix('c') {
        return instances.parse().ok().filter(|slices| (1..=MIG_SLICES).contains(slices) && rest.contains('.'));
    }
    first.strip_suffix('g')?.parse().ok().filter(|slices| (1..=MIG_SLICES).contains(slices))
}

/// Resource names and label values have '.' where profiles have '+'.
fn profile_of_name(name: &str) -> String {
    name.strip_suffix(".me").map_or_else(|| name.to_owned(), |base| format!("{base}+me"))
}

pub(super) fn exclusive() -> sharing::Mode {
    sharing::Mode::Exclusive(sharing::Exclusive {})
}

/// A count of one node; larger counts exceed the limits of an offer anyway.
fn narrow(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
