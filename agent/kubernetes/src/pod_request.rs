//! The resources that a pod takes of its node, by the Kubernetes scheduler's rule.
//!
//! `max(Σ containers + Σ sidecars, max over init containers of (its own + sidecars started before it)) + overhead`,
//! where a sidecar is an init container with `restartPolicy: Always`. Amounts for CPU and memory given for the pod as a
//! whole (KEP-2837) take the place of that sum. Source: KEP-753, k8s.io/component-helpers/resource.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use comity_policy::quantity;

/// Amounts by Kubernetes resource name: CPU in thousandths of a core, everything else in ones (memory: bytes).
pub type Amounts = BTreeMap<String, u64>;

/// The resource that is counted in thousandths.
pub const CPU: &str = "cpu";
/// Main memory, counted in bytes.
pub const MEMORY: &str = "memory";

/// The request that the scheduler counts for the pod.
pub fn effective_request(pod: &Pod) -> Amounts {
    let Some(spec) = &pod.spec else { return Amounts::new() };
    let mut total = of_containers(spec);
    if let Some(requests) = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref()) {
        total.extend(amounts(requests).into_iter().filter(|(name, _)| name == CPU || name == MEMORY));
    }
    if let Some(overhead) = &spec.overhead {
        add(&mut total, &amounts(overhead));
    }
    total
}

fn of_containers(spec: &PodSpec) -> Amounts {
    let mut running = Amounts::new();
    for container in &spec.containers {
        add(&mut running, &of_container(container));
    }
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for container in spec.init_containers.iter().flatten() {
        let own = of_container(container);
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut sidecars, &own);
            raise(&mut peak, &sidecars);
        } else {
            let mut now = sidecars.clone();
            add(&mut now, &own);
            raise(&mut peak, &now);
        }
    }
    add(&mut running, &sidecars);
    raise(&mut running, &peak);
    running
}

/// A limit without a request counts as the request: the API server sets that in new pods, but not in old stored
/// objects.
fn of_container(container: &Container) -> Amounts {
    let Some(resources) = &container.resources else { return Amounts::new() };
    let mut own = resources.limits.as_ref().map(amounts).unwrap_or_default();
    if let Some(requests) = &resources.requests {
        own.extend(amounts(requests));
    }
    own
}

/// The requested amounts; unreadable ones, which no API server stores, count as 0.
/// The amounts of a list of requests or limits; those that cannot be read are left out.
pub fn amounts(list: &BTreeMap<String, Quantity>) -> Amounts {
    list.iter()
        .filter_map(|(name, Quantity(text))| {
            let amount = if name == CPU { quantity::milli_ceil(text) } else { quantity::ones_ceil(text) };
            Some((name.clone(), amount?))
        })
        .collect()
}

fn add(total: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let sum = total.entry(name.clone()).or_default();
        *sum = sum.saturating_add(*amount);
    }
}

fn raise(total: &mut Amounts, floor: &Amounts) {
    for (name, amount) in floor {
        let most = total.entry(name.clone()).or_default();
        *most = (*most).max(*amount);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(spec: serde_json::Value) -> Amounts {
        effective_request(&serde_json::from_value(json!({ "spec": spec })).unwrap())
    }

    fn container(cpu: &str, gpus: u32) -> serde_json::Value {
        json!({ "name": "c", "resources": { "requests": { "cpu": cpu, "nvidia.com/gpu": gpus.to_string() } } })
    }

    fn sidecar(cpu: &str, gpus: u32) -> serde_json::Value {
        let mut sidecar = container(cpu, gpus);
        sidecar["restartPolicy"] = json!("Always");
        sidecar
    }

    #[test]
    fn containers_add_up() {
        let total = request(json!({ "containers": [container("1", 1), container("500m", 2)] }));
        assert_eq!((total["cpu"], total["nvidia.com/gpu"]), (1_500, 3));
    }

    #[test]
    fn an_init_container_counts_only_where_it_is_larger() {
        let total = request(
            json!({ "containers": [container("1", 4)], "initContainers": [container("3", 2), container("2", 1)] }),
        );
        assert_eq!((total["cpu"], total["nvidia.com/gpu"]), (3_000, 4));
    }

    #[test]
    fn sidecars_run_beside_the_containers_and_beside_later_init_containers() {
        let total = request(json!({
            "containers": [container("1", 1)],
            "initContainers": [container("2", 0), sidecar("1", 1), container("2500m", 3)],
        }));
        // Containers and sidecar: 2 cores, 2 GPUs. The last init container and the sidecar: 3.5 cores, 4 GPUs.
        assert_eq!((total["cpu"], total["nvidia.com/gpu"]), (3_500, 4));
    }

    #[test]
    fn overhead_adds_and_pod_level_amounts_replace() {
        let total = request(json!({
            "containers": [container("1", 1)],
            "resources": { "requests": { "cpu": "4", "nvidia.com/gpu": "9" } },
            "overhead": { "cpu": "250m", "memory": "64Mi" },
        }));
        assert_eq!((total["cpu"], total["memory"], total["nvidia.com/gpu"]), (4_250, 64 << 20, 1));
    }

    #[test]
    fn a_limit_alone_is_a_request() {
        let total =
            request(json!({ "containers": [{ "name": "c", "resources": { "limits": { "nvidia.com/gpu": "2" } } }] }));
        assert_eq!(total["nvidia.com/gpu"], 2);
    }
}
