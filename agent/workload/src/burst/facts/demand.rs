//! GPU demand of a pod.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use comity_agent_kubernetes::gpu_resource::{AMD_GPU, NVIDIA_GPU, NVIDIA_MIG_PREFIX, all_known};
use comity_agent_kubernetes::pod_request::{Amounts, CPU, MEMORY};
use comity_agent_model::gpu_demand::Share;

/// GPUs in one request: the broker's own bound.
pub(crate) const MAX_GPUS_PER_REQUEST: u32 = 4_096;
const MIB: u64 = 1 << 20;

static GPU_RESOURCES: LazyLock<BTreeSet<String>> = LazyLock::new(|| all_known([]));

/// GPU demand of one pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Shape {
    /// Kubernetes resource that counts the GPUs.
    pub(crate) resource: String,
    /// How many; at least 1.
    pub(crate) gpus: u32,
    /// CPU per GPU, in thousandths of a core.
    pub(crate) cpu_milli_per_gpu: u64,
    /// Memory per GPU in MiB.
    pub(crate) memory_mib_per_gpu: u64,
}

/// The shape of a pod's request: `None` without GPUs, an error if no other cluster can serve it.
pub(crate) fn shape(amounts: &Amounts) -> Option<Result<Shape, String>> {
    let mut asked = amounts.iter().filter(|(name, amount)| **amount > 0 && GPU_RESOURCES.contains(*name));
    let (resource, &gpus) = asked.next()?;
    if let Some((other, _)) = asked.next() {
        return Some(Err(format!("it asks for {resource} and {other}; a lease has GPUs of one kind")));
    }
    if share(resource).is_none() {
        return Some(Err(format!(
            "it asks for {resource}, a part of a GPU whose size other clusters do not know; ask for {NVIDIA_GPU}, \
             {AMD_GPU} or a MIG profile"
        )));
    }
    let Some(count) = u32::try_from(gpus).ok().filter(|gpus| *gpus <= MAX_GPUS_PER_REQUEST) else {
        return Some(Err(format!("it asks for {gpus} of {resource}, more than one request may")));
    };
    let amount = |name: &str| amounts.get(name).copied().unwrap_or(0);
    Some(Ok(Shape {
        resource: resource.clone(),
        gpus: count,
        cpu_milli_per_gpu: amount(CPU).div_ceil(gpus),
        memory_mib_per_gpu: amount(MEMORY).div_ceil(MIB).div_ceil(gpus),
    }))
}

/// The share of a device that one unit of the resource is; `None` if unknown.
pub(crate) fn share(resource: &str) -> Option<Share> {
    if matches!(resource, NVIDIA_GPU | AMD_GPU) {
        return Some(Share::Whole);
    }
    let profile = resource.strip_prefix(NVIDIA_MIG_PREFIX).filter(|profile| !profile.ends_with(".shared"))?;
    // Resource names have '.' where profiles have '+'.
    Some(Share::MigProfile(profile.replacen("gb.", "gb+", 1)))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn amounts(list: &[(&str, u64)]) -> Amounts {
        list.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect()
    }

    #[test]
    fn a_shape_divides_cpu_and_memory_among_the_gpus() {
        let asked = amounts(&[("cpu", 5_000), ("memory", 3 << 30), ("nvidia.com/gpu", 2)]);
        let shape = shape(&asked).unwrap().unwrap();
        assert_eq!((shape.gpus, shape.cpu_milli_per_gpu, shape.memory_mib_per_gpu), (2, 2_500, 1_536));
    }

    #[test]
    fn without_gpus_there_is_no_shape_and_parts_of_unknown_size_are_refused() {
        assert!(shape(&amounts(&[("cpu", 1), ("example.com/fpga", 1), ("nvidia.com/gpu", 0)])).is_none());
        for name in
            ["nvidia.com/gpu.shared", "nvidia.com/gpumem", "gpu.intel.com/i915", "nvidia.com/mig-1g.10gb.shared"]
        {
            assert!(shape(&amounts(&[(name, 1)])).unwrap().unwrap_err().contains(name), "{name}");
        }
        assert!(
            shape(&amounts(&[("nvidia.com/gpu", 1), ("amd.com/gpu", 1)])).unwrap().unwrap_err().contains("one kind")
        );
        assert!(shape(&amounts(&[("nvidia.com/gpu", 1 << 40)])).unwrap().is_err());
    }

    #[test]
    fn mig_instances_are_requested_by_their_profile() {
        assert_eq!(share("nvidia.com/mig-1g.10gb.me"), Some(Share::MigProfile("1g.10gb+me".to_owned())));
        assert_eq!(share("amd.com/gpu"), Some(Share::Whole));
    }
}
