//! Names by which Kubernetes counts GPUs and other devices.

use std::collections::BTreeSet;

/// NVIDIA's whole GPUs.
pub const NVIDIA_GPU: &str = "nvidia.com/gpu";
/// The same, renamed where the device plugin shares them.
pub const NVIDIA_GPU_SHARED: &str = "nvidia.com/gpu.shared";
/// MIG instances where each profile has its own name: this and the profile.
pub const NVIDIA_MIG_PREFIX: &str = "nvidia.com/mig-";
/// Name of MIG devices in an offer; the broker adds "-" and the profile.
pub const NVIDIA_MIG: &str = "nvidia.com/mig";
/// AMD's GPUs.
pub const AMD_GPU: &str = "amd.com/gpu";
/// Intel's GPUs with the driver i915.
pub const INTEL_I915: &str = "gpu.intel.com/i915";
/// Intel's GPUs with the driver xe.
pub const INTEL_XE: &str = "gpu.intel.com/xe";

/// Domain of NVIDIA's resources.
const NVIDIA_DOMAIN: &str = "nvidia.com/";
/// How NVIDIA's UUIDs of GPUs and of MIG instances begin.
const NVIDIA_UUID_PREFIXES: [&str; 2] = ["GPU-", "MIG-"];
/// Resources of HAMi that count memory and compute: their units are MiB and per cent.
const HAMI_AMOUNTS: [&str; 3] = ["nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"];

/// Before a lease's id: the extended resource that only the lease's nodes have.
pub const LEASE_RESOURCE_PREFIX: &str = "lease.comity.dev/";
/// Before a lease's id: the extended resource that counts the lease's GPUs on each of its nodes, if it has several.
pub const LEASE_GPUS_PREFIX: &str = "gpus.lease.comity.dev/";
/// Units of a lease's own resource on each of its nodes: more containers than any kubelet runs.
pub const LEASE_PLACES: u64 = 10_000;

/// Names that count GPUs, or parts of them, whether or not a node has them now: a device plugin may be installed while
/// a lease runs.
const WELL_KNOWN: [&str; 18] = [
    NVIDIA_GPU,
    NVIDIA_GPU_SHARED,
    "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage",
    "nvidia.com/gpucores",
    "nvidia.com/pgpu",
    AMD_GPU,
    "amd.com/gpumem",
    "amd.com/gpucores",
    INTEL_I915,
    INTEL_XE,
    "gpu.intel.com/i915_monitoring",
    "gpu.intel.com/xe_monitoring",
    "gpu.intel.com/millicores",
    "gpu.intel.com/memory.max",
    "gpu.intel.com/tiles",
    "habana.ai/gaudi",
    "aliyun.com/gpu-mem",
];

/// Profiles that NVIDIA's boards have; the mixed strategy counts each by its own name. Source: MIG User Guide.
const MIG_PROFILES: [&str; 64] = [
    "1g.5gb",
    "1g.5gb.me",
    "2g.10gb",
    "3g.20gb",
    "4g.20gb",
    "7g.40gb",
    "1g.10gb",
    "1g.10gb.me",
    "1g.20gb",
    "2g.20gb",
    "3g.40gb",
    "4g.40gb",
    "7g.79gb",
    "7g.80gb",
    "1g.6gb",
    "1g.6gb.me",
    "2g.12gb",
    "2g.12gb.me",
    "4g.24gb",
    "1g.12gb",
    "1g.12gb.me",
    "1g.24gb",
    "2g.24gb",
    "3g.47gb",
    "4g.47gb",
    "7g.94gb",
    "3g.48gb",
    "4g.48gb",
    "7g.96gb",
    "1g.18gb",
    "1g.18gb.me",
    "1g.35gb",
    "2g.35gb",
    "3g.71gb",
    "4g.71gb",
    "7g.141gb",
    "1g.23gb",
    "1g.23gb.me",
    "1g.45gb",
    "2g.45gb",
    "3g.90gb",
    "4g.90gb",
    "7g.180gb",
    "1g.47gb",
    "2g.47gb",
    "3g.93gb",
    "4g.93gb",
    "7g.186gb",
    "1g.34gb",
    "1g.34gb.me",
    "1g.67gb",
    "2g.67gb",
    "3g.135gb",
    "4g.135gb",
    "7g.269gb",
    "1g.35gb.me",
    "1g.70gb",
    "2g.70gb",
    "3g.139gb",
    "4g.139gb",
    "7g.278gb",
    "1g.24gb.me",
    "2g.48gb",
    "4g.96gb",
];

/// Whether the name is an extended resource: a device that a plugin or an administrator counts.
pub fn is_extended(name: &str) -> bool {
    name.split_once('/').is_some_and(|(domain, _)| domain != "kubernetes.io" && !domain.ends_with(".kubernetes.io"))
}

/// Whether units of the resource are GPUs, or parts of them, that a lease may have.
pub fn counts_gpus(name: &str) -> bool {
    matches!(name, NVIDIA_GPU | NVIDIA_GPU_SHARED | AMD_GPU | INTEL_I915 | INTEL_XE)
        || name.starts_with(NVIDIA_MIG_PREFIX)
}

/// Whether NVIDIA's device plugin hands out the units of the resource.
pub fn counts_nvidia_gpus(name: &str) -> bool {
    name.starts_with(NVIDIA_DOMAIN) && counts_gpus(name)
}

/// Whether a unit that a kubelet lists is a GPU or a part of one.
///
/// An owner may rename resources of NVIDIA's device plugin. It names every unit by the UUID of its device, which network
/// functions such as `nvidia.com/ib_vf` do not have.
pub fn is_gpu_unit(resource: &str, id: &str) -> bool {
    let has_uuid = || NVIDIA_UUID_PREFIXES.iter().any(|prefix| id.starts_with(prefix));
    counts_gpus(resource) || (resource.starts_with(NVIDIA_DOMAIN) && !HAMI_AMOUNTS.contains(&resource) && has_uuid())
}

/// Whether a lease set this resource on its nodes.
pub fn is_of_lease(name: &str) -> bool {
    name.starts_with(LEASE_RESOURCE_PREFIX) || name.starts_with(LEASE_GPUS_PREFIX)
}

/// Every device name that a lease must not use unless it was leased: all names that nodes count, and all well-known
/// ones. The leases' own resources are no devices.
pub fn all_known<'a>(on_nodes: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    let profiles = MIG_PROFILES.iter().flat_map(|profile| {
        let name = format!("{NVIDIA_MIG_PREFIX}{profile}");
        [format!("{name}.shared"), name]
    });
    let well_known = WELL_KNOWN.iter().map(|name| (*name).to_owned());
    on_nodes
        .into_iter()
        .filter(|name| is_extended(name) && !is_of_lease(name))
        .map(str::to_owned)
        .chain(well_known)
        .chain(profiles)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_extended_resources_and_machine_parts_are_not() {
        for name in
            ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb.shared", "amd.com/cpx_nps4", "rdma/hca", "example.com/fpga"]
        {
            assert!(is_extended(name), "{name}");
        }
        for name in
            ["cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "pods", "attachable-volumes-x.kubernetes.io/y"]
        {
            assert!(!is_extended(name), "{name}");
        }
    }

    #[test]
    fn gpus_are_told_from_other_devices_by_name_and_by_uuid() {
        const UUID: &str = "GPU-1d7f0c5e-2a64-4c1b-9f0b-6a8de1c2b7a0";
        const PCI: &str = "0000:3b:00.2";
        // Resource, unit, whether the name counts GPUs, whether the unit is a GPU.
        let cases = [
            ("nvidia.com/gpu", UUID, true, true),
            ("nvidia.com/gpu.shared", "GPU-1d7f0c5e-2a64-4c1b-9f0b-6a8de1c2b7a0::3", true, true),
            ("nvidia.com/mig-1g.10gb", "MIG-5f0c1a5e-2a64-4c1b-9f0b-6a8de1c2b7a0", true, true),
            ("nvidia.com/mig-1g.10gb.shared", "MIG-5f0c1a5e-2a64-4c1b-9f0b-6a8de1c2b7a0::0", true, true),
            ("amd.com/gpu", "0000:c1:00.0", true, true),
            ("gpu.intel.com/i915", "card0-0", true, true),
            ("gpu.intel.com/xe", "card1-0", true, true),
            // Renamed by the owner in the device plugin's configuration.
            ("nvidia.com/a100", UUID, false, true),
            ("nvidia.com/ib_vf", PCI, false, false),
            ("nvidia.com/hostdev", PCI, false, false),
            ("nvidia.com/mlnxnics", PCI, false, false),
            ("rdma/hca_shared_devices_a", "0", false, false),
            ("nvidia.com/gpumem", UUID, false, false),
            ("nvidia.com/gpumem-percentage", UUID, false, false),
            ("nvidia.com/gpucores", UUID, false, false),
            ("gpu.intel.com/i915_monitoring", "all", false, false),
            ("gpu.intel.com/millicores", "card0", false, false),
            ("amd.com/nic", PCI, false, false),
            ("devices.kubevirt.io/kvm", "kvm0", false, false),
            ("example.com/fpga", UUID, false, false),
        ];
        for (resource, unit, counts, is_gpu) in cases {
            assert_eq!((counts_gpus(resource), is_gpu_unit(resource, unit)), (counts, is_gpu), "{resource} {unit}");
            assert_eq!(counts_nvidia_gpus(resource), counts && resource.starts_with("nvidia.com/"), "{resource}");
        }
    }

    #[test]
    fn what_nodes_count_joins_the_well_known_names() {
        let names = all_known([
            "cpu",
            "amd.com/cpx_nps4",
            "nvidia.com/gpu",
            "lease.comity.dev/lease-7",
            "gpus.lease.comity.dev/lease-7",
        ]);
        assert!(
            names.contains("amd.com/cpx_nps4")
                && names.contains("nvidia.com/mig-1g.10gb.shared")
                && names.contains("nvidia.com/mig-3g.71gb")
                && !names.contains("cpu")
                && !names.iter().any(|name| name.contains("lease.comity.dev/"))
        );
        assert!(names.len() < 256, "a quota has room for 512, and a cluster's own devices need some");
    }
}
