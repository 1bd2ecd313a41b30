//! GPU demand of a pod.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use comity_agent_kubernetes::gpu_resource::{AMD_GPU, NVIDIA_GPU, NVIDIA_GPU_SHARED, NVIDIA_MIG_PREFIX, all_known};
use comity_agent_kubernetes::hami::{CORES_RESOURCE, MEMORY_PERCENT_RESOURCE, MEMORY_RESOURCE};
use comity_agent_kubernetes::pod_request::{Amounts, CPU, MEMORY, effective_request};
use comity_agent_model::gpu_demand::Share;
use comity_policy::quantity;
use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::burst::GPU_SHARE;

/// GPUs in one request: the broker's own bound.
pub(crate) const MAX_GPUS_PER_REQUEST: u32 = 4_096;
/// The smallest part of a GPU, in thousandths: the broker's own bound.
pub(crate) const SMALLEST_SHARE_MILLI: u32 = 50;
/// A whole GPU, in thousandths.
pub(crate) const WHOLE_GPU_MILLI: u32 = 1_000;
const MIB: u64 = 1 << 20;
/// Resources by which HAMi limits a container.
const HAMI_LIMITS: [&str; 3] = [MEMORY_RESOURCE, MEMORY_PERCENT_RESOURCE, CORES_RESOURCE];

static GPU_RESOURCES: LazyLock<BTreeSet<String>> = LazyLock::new(|| all_known([]));

/// GPU demand of one pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Shape {
    /// Kubernetes resource that counts the GPUs.
    pub(crate) resource: String,
    /// How much of a GPU each is; `None`: the namespace's share.
    pub(crate) share: Option<Share>,
    /// How many; at least 1.
    pub(crate) gpus: u32,
    /// CPU per GPU, in thousandths of a core.
    pub(crate) cpu_milli_per_gpu: u64,
    /// Memory per GPU in MiB.
    pub(crate) memory_mib_per_gpu: u64,
}

impl Shape {
    /// The shape in a namespace whose share has this size.
    pub(crate) fn sized(&self, share_milli: u32) -> Self {
        let share = self.share.clone().unwrap_or_else(|| part(share_milli));
        Self { share: Some(share), ..self.clone() }
    }
}

/// The shape of a pod: `None` without GPUs, an error if no other cluster can serve it.
pub(crate) fn shape(pod: &Pod) -> Option<Result<Shape, String>> {
    let annotation = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(GPU_SHARE));
    let shape = shape_of_amounts(&effective_request(pod))?;
    Some(
        shape
            .and_then(|shape| match annotation {
                None => Ok(shape),
                Some(text) => with_share(shape, text),
            })
            .and_then(|shape| check_containers(shape, pod)),
    )
}

/// The shape with the share that the pod's annotation states.
fn with_share(shape: Shape, text: &str) -> Result<Shape, String> {
    let Some(milli) = share_milli(text) else {
        return Err(format!("its annotation {GPU_SHARE} is {text:?}; write a part of a GPU, 0.05 to 1"));
    };
    if !matches!(shape.resource.as_str(), NVIDIA_GPU | NVIDIA_GPU_SHARED) {
        return Err(format!(
            "its annotation {GPU_SHARE} gives the size of {NVIDIA_GPU} or {NVIDIA_GPU_SHARED}, and it requests {}",
            shape.resource
        ));
    }
    Ok(Shape { share: Some(part(milli)), ..shape })
}

/// Thousandths of "0.25"; `None` outside 0.05 to 1.
pub(crate) fn share_milli(text: &str) -> Option<u32> {
    let milli = quantity::milli_ceil(text.trim()).and_then(|milli| u32::try_from(milli).ok())?;
    (SMALLEST_SHARE_MILLI..=WHOLE_GPU_MILLI).contains(&milli).then_some(milli)
}

fn part(milli: u32) -> Share {
    if milli == WHOLE_GPU_MILLI { Share::Whole } else { Share::Milli(milli) }
}

/// Under MPS the kubelet refuses a container with two shares after its pod is bound, and the donor is not known yet.
fn check_containers(shape: Shape, pod: &Pod) -> Result<Shape, String> {
    if !matches!(shape.share, None | Some(Share::Milli(_))) {
        return Ok(shape);
    }
    let asked = |container: &Container| {
        let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref())?;
        let Quantity(amount) = limits.get(&shape.resource)?;
        quantity::ones_ceil(amount)
    };
    let spec = pod.spec.iter();
    let containers = spec.flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    let mut large = containers.filter_map(|container| Some((container, asked(container).filter(|count| *count > 1)?)));
    match large.next() {
        None => Ok(shape),
        Some((container, count)) => Err(format!(
            "container {} requests {count} shares of {}, and a donor with MPS gives a container one; request 1 in each \
             container, with a larger {GPU_SHARE}",
            container.name, shape.resource
        )),
    }
}

fn shape_of_amounts(amounts: &Amounts) -> Option<Result<Shape, String>> {
    let wants = |name: &&str| amounts.get(*name).is_some_and(|amount| *amount > 0);
    if let Some(limit) = HAMI_LIMITS.iter().find(|name| wants(name)) {
        return Some(Err(format!(
            "it requests {limit}, which HAMi limits on a donor only in a lease's namespace; leave it out and state \
             {GPU_SHARE}, or request a lease with delivery namespace"
        )));
    }
    let mut asked = amounts.iter().filter(|(name, amount)| **amount > 0 && GPU_RESOURCES.contains(*name));
    let (resource, &gpus) = asked.next()?;
    if let Some((other, _)) = asked.next() {
        return Some(Err(format!("it requests {resource} and {other}; a lease has GPUs of one kind")));
    }
    let share = share(resource);
    if share.is_none() && resource != NVIDIA_GPU_SHARED {
        return Some(Err(format!(
            "it requests {resource}, a part of a GPU whose size other clusters do not know; request {NVIDIA_GPU}, \
             {NVIDIA_GPU_SHARED}, {AMD_GPU} or a MIG profile"
        )));
    }
    let Some(count) = u32::try_from(gpus).ok().filter(|gpus| *gpus <= MAX_GPUS_PER_REQUEST) else {
        return Some(Err(format!("it requests {gpus} of {resource}, more than one request may have")));
    };
    let amount = |name: &str| amounts.get(name).copied().unwrap_or(0);
    Some(Ok(Shape {
        resource: resource.clone(),
        share,
        gpus: count,
        cpu_milli_per_gpu: amount(CPU).div_ceil(gpus),
        memory_mib_per_gpu: amount(MEMORY).div_ceil(MIB).div_ceil(gpus),
    }))
}

/// The share of a device that one unit of the resource is; `None` if its name does not tell.
fn share(resource: &str) -> Option<Share> {
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
    use serde_json::json;

    use super::*;

    fn amounts(list: &[(&str, u64)]) -> Amounts {
        list.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect()
    }

    #[test]
    fn a_shape_divides_cpu_and_memory_among_the_gpus() {
        let asked = amounts(&[("cpu", 5_000), ("memory", 3 << 30), ("nvidia.com/gpu", 2)]);
        let shape = shape_of_amounts(&asked).unwrap().unwrap();
        assert_eq!((shape.gpus, shape.cpu_milli_per_gpu, shape.memory_mib_per_gpu), (2, 2_500, 1_536));
    }

    #[test]
    fn without_gpus_there_is_no_shape_and_parts_of_unknown_size_are_refused() {
        assert!(shape_of_amounts(&amounts(&[("cpu", 1), ("example.com/fpga", 1), ("nvidia.com/gpu", 0)])).is_none());
        for name in ["nvidia.com/gpucores", "nvidia.com/gpumem", "gpu.intel.com/i915", "nvidia.com/mig-1g.10gb.shared"]
        {
            assert!(shape_of_amounts(&amounts(&[(name, 1)])).unwrap().unwrap_err().contains(name), "{name}");
        }
        assert!(
            shape_of_amounts(&amounts(&[("nvidia.com/gpu", 1), ("amd.com/gpu", 1)]))
                .unwrap()
                .unwrap_err()
                .contains("one kind")
        );
        assert!(shape_of_amounts(&amounts(&[("nvidia.com/gpu", 1 << 40)])).unwrap().is_err());
    }

    fn of_pod(resource: &str, counts: &[u32], share: Option<&str>) -> Result<Shape, String> {
        let container = |(number, count): (usize, &u32)| json!({ "name": format!("c{number}"), "resources": { "limits": { resource: count.to_string() } } });
        let annotations = share.map(|share| json!({ GPU_SHARE: share }));
        let pod = json!({
            "metadata": { "name": "p", "annotations": annotations },
            "spec": { "containers": counts.iter().enumerate().map(container).collect::<Vec<_>>() },
        });
        shape(&serde_json::from_value(pod).unwrap()).unwrap()
    }

    #[test]
    fn a_part_is_the_annotations_or_the_namespaces() {
        let shared = of_pod(NVIDIA_GPU_SHARED, &[1, 1], None).unwrap();
        assert_eq!((shared.gpus, shared.share.clone()), (2, None));
        assert_eq!(shared.sized(50).share, Some(Share::Milli(50)));
        let quarter = of_pod(NVIDIA_GPU, &[1], Some("0.25")).unwrap();
        assert_eq!(quarter.sized(50).share, Some(Share::Milli(250)));
        assert_eq!(of_pod(NVIDIA_GPU_SHARED, &[1], Some("0.3335")).unwrap().share, Some(Share::Milli(334)));
        assert_eq!(of_pod(NVIDIA_GPU, &[4], Some("1")).unwrap().share, Some(Share::Whole));
        assert_eq!(of_pod(NVIDIA_GPU, &[4], None).unwrap().share, Some(Share::Whole));
    }

    #[test]
    fn a_part_that_no_donor_gives_is_refused_by_name() {
        for (resource, counts, share, part) in [
            (NVIDIA_GPU_SHARED, &[1, 2][..], None, "container c1 requests 2 shares"),
            (NVIDIA_GPU, &[2], Some("0.25"), "container c0 requests 2 shares"),
            (NVIDIA_GPU, &[1], Some("0.04"), "\"0.04\"; write a part of a GPU, 0.05 to 1"),
            (NVIDIA_GPU, &[1], Some("1.5"), "0.05 to 1"),
            (NVIDIA_GPU, &[1], Some("a quarter"), "0.05 to 1"),
            (AMD_GPU, &[1], Some("0.5"), "it requests amd.com/gpu"),
            ("nvidia.com/gpumem", &[5_000], None, "delivery namespace"),
        ] {
            let error = of_pod(resource, counts, share).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn mig_instances_are_requested_by_their_profile() {
        assert_eq!(share("nvidia.com/mig-1g.10gb.me"), Some(Share::MigProfile("1g.10gb+me".to_owned())));
        assert_eq!(share("amd.com/gpu"), Some(Share::Whole));
    }
}
